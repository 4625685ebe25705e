"""Exhaustive search, exact at any depth."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.local.products import SharedProducts
from boundarymorph.retrieval.local.rows import Neighbours, RowBook, Rows, with_room
from boundarymorph.retrieval.local.vector_index import check_vectors
from boundarymorph.retrieval.vectors import check_search

_BLOCK = 16_384  # rows gathered at a time


@dataclass(frozen=True, slots=True)
class FlatView:
    """The state of a `FlatIndex` that one search sees.

    matrix: (capacity, d), of which the first `rows.count` rows never change; products: computes inner products with all
    rows, together for concurrent queries.
    """

    rows: Rows
    matrix: NDArray[np.float32]
    products: SharedProducts

    def __len__(self) -> int:
        return len(self.rows)

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        """See `VectorView.search`."""
        check_search(query, depth, self.matrix.shape[1])
        rows = self.rows if within is None else self.rows.among(within)
        found = scan(self.matrix, rows, query, depth, self._scores)
        return rows.ranked(query, depth, found, self.matrix, found)

    def _scores(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        return self.products(query, self.rows.count)


class FlatIndex:
    """A `VectorIndex` in memory: exhaustive search, exact at any depth. Takes 4d to 8d bytes per document.

    Float32 sums depend on the order of summation. They therefore only nominate candidates, slightly more than the
    depth, which are ranked by inner products in float64, ties in order of insertion. Concurrent searches read the rows
    together.
    """

    def __init__(
        self,
        dimension: int,
        capacity: int = 0,
        *,
        matrix: NDArray[np.float32] | None = None,
        book: RowBook | None = None,
        sequence: int = 0,
    ) -> None:
        """capacity: documents to make room for, before the matrix must be copied to a larger one.

        matrix: used instead of a new one, with the rows of the book; sequence: the store's last change in a matrix that
        is, or is to be, in a file.
        """
        self._dimension = dimension
        self._book = book or RowBook()
        self._writing = threading.Lock()
        self._view = self._over(np.empty((capacity, dimension), np.float32) if matrix is None else matrix)
        self.sequence = sequence
        self.changed = 0
        """Documents written or removed since the matrix was in a file, or since the beginning."""

    def __len__(self) -> int:
        return len(self._view)

    def upsert(
        self, ids: Sequence[str], vectors: NDArray[np.float32], sequences: NDArray[np.int64] | None = None
    ) -> None:
        check_vectors(ids, vectors, self._dimension)
        with self._writing:
            count = self._book.now.count
            matrix = with_room(self._view.matrix, count, len(ids))
            matrix[count : count + len(ids)] = vectors
            self._book.add(ids, sequences)
            self._publish(matrix)
            self.changed += len(ids)

    def remove(self, ids: Sequence[str]) -> None:
        with self._writing:
            self._book.drop(ids)
            self._publish(self._view.matrix)
            self.changed += len(ids)

    def saved(self) -> NDArray[np.int64]:
        """See `Structure.saved`."""
        rows = self._view.rows
        return rows.sequences[: rows.count][rows.alive]

    def view(self) -> FlatView:
        """The current state of the index."""
        return self._view

    def as_of(self, sequence: int) -> FlatIndex:
        """Return the current state of this index, which is that of the store after this change, to be kept in a file.

        It shares the rows, so it must not be changed.
        """
        book = RowBook()
        book.now = self._view.rows
        return FlatIndex(self._dimension, matrix=self._view.matrix, book=book, sequence=sequence)

    def _publish(self, matrix: NDArray[np.float32]) -> None:
        """Make a new state visible to searches, without its dead rows once they are as many as the living."""
        now = self._book.now
        if now.count > 2 * now.living + 1024:
            matrix = matrix[self._book.close_gaps()]
        self._view = self._over(matrix)

    def _over(self, matrix: NDArray[np.float32]) -> FlatView:
        before: FlatView | None = getattr(self, "_view", None)
        same = before is not None and before.matrix is matrix
        products = before.products if before and same else SharedProducts(matrix, slots=os.cpu_count() or 1)
        return FlatView(self._book.now, matrix, products)


def scan(
    matrix: NDArray[np.float32],
    rows: Rows,
    query: NDArray[np.float32],
    depth: int,
    products: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None,
) -> NDArray[np.int64]:
    """Return ascending rows of living documents that certainly include the nearest `depth`.

    matrix: at least (rows.count, d) unit rows; products: returns (rows.count,) inner products with a query; by default
    they are computed here.
    """
    if depth >= rows.living:
        return np.flatnonzero(rows.alive)
    if 4 * rows.living < rows.count:
        alive = np.flatnonzero(rows.alive)
        parts = [matrix[alive[start : start + _BLOCK]] @ query for start in range(0, len(alive), _BLOCK)]
        return alive[nominated(np.concatenate(parts), depth, rounding_error(query.size))]
    scores = matrix[: rows.count] @ query if products is None else products(query)
    if rows.living < rows.count:
        scores[~rows.alive] = -np.inf
    return nominated(scores, depth, rounding_error(query.size))


def nominated(scores: NDArray[np.float32], depth: int, error: float) -> NDArray[np.int64]:
    """Return ascending positions that certainly include the best `depth`.

    scores: (n,), n >= depth, each within `error` of the true one. `depth` items have true scores of at least the
    depth-th score here minus the error; so a better one has a score here of at least that minus the error again.
    """
    last = np.partition(scores, len(scores) - depth)[len(scores) - depth]
    return np.flatnonzero(scores >= last - 2 * error)


def rounding_error(dimension: int) -> float:
    """Return a bound on the error of a float32 inner product of two unit vectors, for any order of summation."""
    return dimension * float(np.finfo(np.float32).eps)
