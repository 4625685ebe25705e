"""The interface of a dual encoder: the model alone, which a `BatchingEncoder` calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.batching.model import Model, TokenSequence


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


def unit_rows(states: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Normalize (n, d) rows in float64; rows without length, or with values that are not finite, become NaN."""
    exact = states.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    usable = np.isfinite(lengths) & (lengths > 0)
    rows: NDArray[np.float32] = np.divide(exact, lengths, out=np.full_like(exact, np.nan), where=usable).astype(
        np.float32
    )
    return rows
