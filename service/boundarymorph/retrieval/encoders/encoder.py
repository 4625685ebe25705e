"""Run an encoder in this process, by default the embedded one, in batches of all requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import EncoderFailed, EncoderUnavailable
from boundarymorph.inference.batching import CHARACTERS_A_TOKEN, Batcher
from boundarymorph.inference.concurrency import gather
from boundarymorph.inference.models import Model, ModelRole, OnnxTextModel, TokenSequence, embedded_encoder
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.ranking import unit_vectors
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
QUERY_PATIENCE = 0.0  # seconds: a caller waits for a query, while documents are encoded in bulk
SLICE_TOKENS = 8192  # tokens of a slice of a call's documents, or of two batches if they have more
SLICES = 2  # queued slices of a call, so that one is tokenized while another is encoded
_BGE_QUERY_PREFIX = "Represent this sentence for searching relevant passages: "


class DualEncoder(Model, Protocol):
    @property
    def dimension(self) -> int: ...

    def tokenize_query(self, text: str) -> TokenSequence: ...

    def tokenize_documents(self, texts: Sequence[str]) -> list[TokenSequence]: ...

    def run(self, texts: Sequence[TokenSequence], /) -> NDArray[np.float32]:
        """Return the (n, d) unit rows of a batch. Raises OutOfMemory or DeviceLost."""


class BatchingEncoder(Batcher[DualEncoder]):
    """An `Encoder` that batches texts across requests, queries first.

    A call queues two slices of documents.
    """

    def __init__(self, model: DualEncoder, **options: Any) -> None:
        self.role = replace(ENCODER, shape=(model.dimension,))
        super().__init__(model, **options)
        self._slice_tokens = min(max(SLICE_TOKENS, 2 * model.batch_tokens), self.queue_tokens)

    @property
    def dimension(self) -> int:
        return self.model.dimension

    async def check(self) -> None:
        """Warm up with a batch of the largest size, then encode a probe."""
        await self.encode_documents(["warm " * self.model.max_length] * self.full_batch())
        await self.encode_query("probe")

    async def encode_query(self, text: str, caller: str = "") -> NDArray[np.float32]:
        results = await self.run(
            lambda: [self.model.tokenize_query(text)], [len(text)], patience=QUERY_PATIENCE, caller=caller
        )
        vector: NDArray[np.float32] = results.values[0]
        return vector

    async def encode_documents(self, texts: Sequence[str], caller: str = "") -> Embeddings:
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
                    caller=caller,
                )
                vectors[part] = results.values
                truncated += results.truncated

        if texts:
            self.enter(map(len, texts[next(self._slices(texts))]), caller)
            await gather([worker() for _ in range(SLICES)])
        return Embeddings(vectors, truncated)

    def _slices(self, texts: Sequence[str]) -> Iterator[slice]:
        """Yield slices of consecutive texts, each about one batch of tokens at most.

        A slice has at least one text.
        """
        start, tokens = 0, 0
        for position, text in enumerate(texts):
            more = 1 + min(self.model.max_length, len(text) // CHARACTERS_A_TOKEN)
            if position > start and tokens + more > self._slice_tokens:
                yield slice(start, position)
                start, tokens = position, 0
            tokens += more
        yield slice(start, len(texts))


class OnnxDualEncoder(OnnxTextModel):
    """The `DualEncoder` that comes with the service.

    An embedding is the last hidden state of the first token.
    """

    dimension = 384

    @classmethod
    def embedded(cls, *, max_length: int = 512, threads: int | None = None) -> OnnxDualEncoder:
        return cls(embedded_encoder(), max_length=max_length, threads=threads)

    def tokenize_query(self, text: str) -> TokenSequence:
        return self.tokenize_documents([_BGE_QUERY_PREFIX + text])[0]

    def tokenize_documents(self, texts: Sequence[str]) -> list[TokenSequence]:
        return self.encode_texts(texts)

    def run(self, texts: Sequence[TokenSequence]) -> NDArray[np.float32]:
        return unit_vectors(np.array([self.infer(text.ids, text.type_ids)[0] for text in texts]))
