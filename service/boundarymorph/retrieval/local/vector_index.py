"""Nearest documents by inner product: what an index of vectors does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidEmbeddings


@dataclass(frozen=True, slots=True)
class Neighbours:
    """n documents, best first.

    vectors: (n, d) float32 unit rows; scores: (n,) float64 inner products with the query; sequences: (n,) int64, what
    the store's sequence number of each, 0 where unknown; warnings: what to know of how they were found.
    """

    ids: list[str]
    vectors: NDArray[np.float32]
    scores: NDArray[np.float64]
    sequences: NDArray[np.int64]
    warnings: tuple[str, ...] = ()


class VectorView(Protocol):
    """A `VectorIndex` as it was at one moment. It never changes."""

    def __len__(self) -> int:
        """Documents in it."""

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        """The `depth` nearest to a (d,) unit query, or all when there are fewer; equal scores in order of insertion.

        within: ascending sequence numbers; only these documents, exactly, whatever the structure, and unknown numbers
        are ignored.
        """

    def others(self, living: NDArray[np.int64]) -> list[str]:
        """Ids of the documents whose sequence numbers are not among these ascending ones."""


class VectorIndex(Protocol):
    """Unit vectors by document id. Safe to share between threads: a view has each call that writes whole or not."""

    def __len__(self) -> int:
        """Documents in the index."""

    def upsert(
        self, ids: Sequence[str], vectors: NDArray[np.float32], sequences: NDArray[np.int64] | None = None
    ) -> None:
        """Add n documents with their (n, d) unit rows, replacing those of the same id; a later one of an id wins.

        sequences: (n,) positive numbers, one a version of a document, by which they can be asked for, too.
        """

    def remove(self, ids: Sequence[str]) -> None:
        """Take documents out; unknown ids are ignored."""

    def view(self) -> VectorView:
        """The index as it is now."""

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        """As `VectorView.search`, of the index as it is now."""


def check_vectors(ids: Sequence[str], vectors: NDArray[np.float32], dimension: int) -> None:
    """Raises InvalidEmbeddings unless there is one vector of this dimension for each id."""
    if vectors.shape != (len(ids), dimension):
        raise InvalidEmbeddings(f"{len(ids)} documents need embeddings of {dimension}, not {vectors.shape}")
