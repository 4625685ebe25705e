"""The interface of an index of vectors: the nearest documents by inner product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidEmbeddings
from boundarymorph.retrieval.local.rows import Neighbours, Rows


class VectorView(Protocol):
    """A `VectorIndex` at one moment. Immutable."""

    @property
    def rows(self) -> Rows:
        """The documents in it."""

    def __len__(self) -> int:
        """Number of documents in it."""

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        """Return the `depth` nearest to a (d,) unit query, or all if there are fewer; ties in order of insertion.

        within: ascending sequence numbers of the only documents to search, exactly for any structure; unknown numbers
        are ignored.
        """


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
