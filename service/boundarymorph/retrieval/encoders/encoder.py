"""Encoders, which map queries and documents to unit vectors of one space, the models that they run, and the one that
runs a model in this process, in batches shared by all requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import EncoderFailed, EncoderUnavailable
from boundarymorph.inference.batching import CHARACTERS_A_TOKEN, Batcher
from boundarymorph.inference.concurrency import together
from boundarymorph.inference.models import Model, ModelRole, TokenSequence
from boundarymorph.telemetry import metrics

ENCODER = ModelRole(
    name="encoder",
    item="text",
    result="vector",
    done="encoded",
    dtype=np.float32,
    unavailable=EncoderUnavailable,
    failed=EncoderFailed,
    metrics=metrics.encoder_batches,
)
QUERY_PATIENCE = 0.0  # seconds: somebody waits for a query, while documents are encoded in bulk
SLICE_TOKENS = 8192  # of one call's documents queued together, or two batches' worth
SLICES = 2  # of one call at a time, so that one is tokenized while another is encoded


@dataclass(frozen=True, slots=True)
class Embeddings:
    """vectors: (n, d) float32 unit rows, in the order of the texts; truncated: number of texts that were truncated;
    encoder: the full name of the encoder, if another process reports it."""

    vectors: NDArray[np.float32]
    truncated: int = 0
    encoder: str | None = None


class Encoder(Protocol):
    """Maps queries and documents to one space. A text's embedding does not depend on the other texts of a call."""

    @property
    def name(self) -> str:
        """Model and precision; an index answers text queries only with the encoder that it was built with."""

    @property
    def dimension(self) -> int:
        """d, the length of the vectors."""

    async def check(self) -> None:
        """Warm up and encode a probe; then name and dimension are known. Raises as `encode_query` does."""

    async def encode_query(self, text: str) -> NDArray[np.float32]:
        """Return the (d,) unit vector of a query. Raises Overloaded, EncoderUnavailable or EncoderFailed."""

    async def encode_documents(self, texts: Sequence[str]) -> Embeddings:
        """Return (n, d) unit rows for n documents. Raises as `encode_query` does."""

    async def close(self) -> None:
        """Release threads and connections; later calls fail."""


class DualEncoder(Model[TokenSequence], Protocol):
    """A `Model` that returns unit vectors."""

    @property
    def dimension(self) -> int:
        """d, the length of the vectors."""

    def tokenize_query(self, text: str) -> TokenSequence:
        """Tokenize a query."""

    def tokenize_documents(self, texts: Sequence[str]) -> list[TokenSequence]:
        """Tokenize n documents."""

    def run(self, texts: Sequence[TokenSequence], /) -> NDArray[np.float32]:
        """Return the (n, d) unit rows of a batch. Raises OutOfMemory or DeviceLost."""


def unit_vectors(states: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Normalize (n, d) rows in float64; rows without length, or with values that are not finite, become NaN."""
    exact = states.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    usable = np.isfinite(lengths) & (lengths > 0)
    rows: NDArray[np.float32] = np.divide(exact, lengths, out=np.full_like(exact, np.nan), where=usable).astype(
        np.float32
    )
    return rows


class BatchingEncoder(Batcher[DualEncoder, TokenSequence]):
    """An `Encoder` that batches the texts of all requests together; see `Batcher` for the order and the limits.

    Queries go first. A call with many documents queues at most two slices of them, so that calls take turns, and a call
    that is cancelled or fails wastes no more than these. A query may wait for `patience` seconds before it is rejected
    on arrival.
    """

    def __init__(self, model: DualEncoder, **options: Any) -> None:
        """options: see `Batcher`."""
        self.role = replace(ENCODER, shape=(model.dimension,))
        super().__init__(model, **options)
        self._slice_tokens = min(max(SLICE_TOKENS, 2 * model.batch_tokens), self.queue_tokens)

    @property
    def dimension(self) -> int:
        return self.model.dimension

    async def check(self) -> None:
        """Warm up with a batch of the largest size, then encode a probe. Raises as `encode_query` does."""
        await self.encode_documents(["warm " * self.model.max_length] * self.full_batch())
        await self.encode_query("probe")

    async def encode_query(self, text: str) -> NDArray[np.float32]:
        results = await self.run(lambda: [self.model.tokenize_query(text)], [len(text)], patience=QUERY_PATIENCE)
        vector: NDArray[np.float32] = results.values[0]
        return vector

    async def encode_documents(self, texts: Sequence[str]) -> Embeddings:
        self.check_open()
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        slices = self._slices(texts)
        truncated = 0

        async def worker() -> None:
            nonlocal truncated
            for part in slices:
                chosen = texts[part]
                results = await self.run(
                    lambda chosen=chosen: self.model.tokenize_documents(chosen),  # type: ignore[misc]
                    map(len, chosen),
                    admitted=True,
                )
                vectors[part] = results.values
                truncated += results.truncated

        if texts:
            self.enter(map(len, texts[next(self._slices(texts))]))
            await together([worker() for _ in range(SLICES)])
        return Embeddings(vectors, truncated)

    def _slices(self, texts: Sequence[str]) -> Iterator[slice]:
        """Yield consecutive texts with an estimated total of at most this many tokens, but at least one text."""
        start, tokens = 0, 0
        for position, text in enumerate(texts):
            more = 1 + min(self.model.max_length, len(text) // CHARACTERS_A_TOKEN)
            if position > start and tokens + more > self._slice_tokens:
                yield slice(start, position)
                start, tokens = position, 0
            tokens += more
        if start < len(texts):
            yield slice(start, len(texts))
