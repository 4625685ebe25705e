"""The interface of an index of vectors: the nearest documents by inner product."""

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

    matrix: float32 unit rows, in which theirs are at (n,) places; scores: (n,) float64 inner products with the query;
    sequences: (n,) int64, the store's sequence number of each, 0 if unknown; warnings: about how they were found.
    """

    ids: list[str]
    matrix: NDArray[np.float32]
    places: NDArray[np.int64]
    scores: NDArray[np.float64]
    sequences: NDArray[np.int64]
    warnings: tuple[str, ...] = ()

    @property
    def vectors(self) -> NDArray[np.float32]:
        """(n, d) unit rows, copied each time."""
        return self.matrix[self.places]

    def vectors_at(self, numbers: NDArray[np.intp]) -> NDArray[np.float32]:
        """(k, d) unit rows of some of the documents."""
        return self.matrix[self.places[numbers]]


class VectorView(Protocol):
    """A `VectorIndex` at one moment. Immutable."""

    def __len__(self) -> int:
        """Number of documents in it."""

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        """Return the `depth` nearest to a (d,) unit query, or all if there are fewer; ties in order of insertion.

        within: ascending sequence numbers of the only documents to search, exactly for any structure; unknown numbers
        are ignored.
        """

    def others(self, living: NDArray[np.int64]) -> list[str]:
        """Return the ids of the documents whose sequence numbers are not among these ascending ones."""


class VectorIndex(Protocol):
    """Unit vectors by document id. Thread-safe: a view contains all or nothing of each writing call."""

    def __len__(self) -> int:
        """Number of documents in the index."""

    def upsert(
        self, ids: Sequence[str], vectors: NDArray[np.float32], sequences: NDArray[np.int64] | None = None
    ) -> None:
        """Add n documents with their (n, d) unit rows, replacing those of the same id; the last one of an id wins.

        sequences: (n,) positive numbers, one per version of a document, for `within`.
        """

    def remove(self, ids: Sequence[str]) -> None:
        """Remove documents; unknown ids are ignored."""

    def view(self) -> VectorView:
        """The current state of the index, to be searched."""


def check_vectors(ids: Sequence[str], vectors: NDArray[np.float32], dimension: int) -> None:
    """Raise InvalidEmbeddings unless there is one vector of this dimension for each id."""
    if vectors.shape != (len(ids), dimension):
        raise InvalidEmbeddings(f"{len(ids)} documents need embeddings of {dimension}, not {vectors.shape}")
