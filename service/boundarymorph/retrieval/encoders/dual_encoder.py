"""A dual encoder: the model alone, which a `BatchingEncoder` feeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.batching.model import Model, TokenSequence


class DualEncoder(Model[TokenSequence], Protocol):
    """A `Model` whose results are unit vectors."""

    @property
    def dimension(self) -> int:
        """d, the length of the vectors."""

    def tokenize_query(self, text: str) -> TokenSequence:
        """A query as the model reads it."""

    def tokenize_documents(self, texts: Sequence[str]) -> list[TokenSequence]:
        """n documents as the model reads them."""

    def run(self, texts: Sequence[TokenSequence], /) -> NDArray[np.float32]:
        """(n, d) unit rows of a batch. Raises OutOfMemory or DeviceLost."""


def unit_rows(states: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """(n, d) brought to unit length in float64; rows of no length, or that are no numbers, become NaN."""
    exact = states.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    usable = np.isfinite(lengths) & (lengths > 0)
    rows: NDArray[np.float32] = np.divide(exact, lengths, out=np.full_like(exact, np.nan), where=usable).astype(
        np.float32
    )
    return rows
