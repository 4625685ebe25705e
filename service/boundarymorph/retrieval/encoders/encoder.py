"""Encoders, which map queries and documents to unit vectors of one space, and the models that they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.batching.model import Model, TokenSequence


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
