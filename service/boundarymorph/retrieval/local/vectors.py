"""The vector index: nearest documents by inner product."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidEmbeddings
from boundarymorph.retrieval.vectors import check_search, exact_scores

Scalar = TypeVar("Scalar", bound=np.generic)

_BLOCK = 16_384  # rows that are gathered at a time


@dataclass(frozen=True, slots=True)
class Neighbours:
    """n documents, best first.

    vectors: (n, d) float32 unit rows; scores: (n,) float64 inner products with the query; sequences: (n,) int64, what
    the store's `changes` told with each, 0 where it was not told; warnings: what to know of how they were found.
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

    def strays(self, living: NDArray[np.int64]) -> list[str]:
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


@dataclass(frozen=True, slots=True)
class FlatView:
    """What one search sees of a `FlatIndex`. Rows up to `count` never change once they are in a view.

    matrix: (capacity, d); sequences: (capacity,); ids: at least count; alive: (count,) False where a row was removed,
    replaced or is not asked for; living: how many are alive; numbering: changes when documents move to other rows.
    """

    matrix: NDArray[np.float32]
    sequences: NDArray[np.int64]
    ids: list[str]
    alive: NDArray[np.bool_]
    living: int
    numbering: int = 0

    @property
    def count(self) -> int:
        return len(self.alive)

    def __len__(self) -> int:
        return self.living

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        """As `VectorView.search`."""
        check_search(query, depth, self.matrix.shape[1])
        view = self if within is None else self.part(within)
        return self.ranked(query, depth, scan(self.matrix, view.alive, view.living, query, depth))

    def strays(self, living: NDArray[np.int64]) -> list[str]:
        """As `VectorView.strays`."""
        rows = np.flatnonzero(self.alive & ~among(self.sequences[: self.count], living))
        return [self.ids[row] for row in rows]

    def part(self, within: NDArray[np.int64]) -> FlatView:
        """Only the documents of these ascending sequence numbers."""
        alive = self.alive & among(self.sequences[: self.count], within)
        return replace(self, alive=alive, living=int(alive.sum()))

    def ranked(self, query: NDArray[np.float32], depth: int, rows: NDArray[np.int64]) -> Neighbours:
        """The best `depth` of these rows, which ascend, by their exact scores."""
        vectors = self.matrix[rows]
        scores = exact_scores(vectors, query)
        best = np.argsort(-scores, kind="stable")[:depth]
        chosen = rows[best]
        return Neighbours([self.ids[row] for row in chosen], vectors[best], scores[best], self.sequences[chosen])


class FlatIndex:
    """A `VectorIndex` in memory: exhaustive search, exact at any depth. 4d bytes a document, and up to twice that.

    Sums in float32 come in no particular order. They therefore only nominate candidates, a little beyond the depth;
    these are ranked by inner products in float64, equal ones in order of insertion.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._rows: dict[str, int] = {}
        self._writing = threading.Lock()
        nothing = np.empty((0, dimension), np.float32)
        self._snapshot = FlatView(nothing, np.empty(0, np.int64), [], np.empty(0, np.bool_), 0)

    def __len__(self) -> int:
        return self._snapshot.living

    def upsert(
        self, ids: Sequence[str], vectors: NDArray[np.float32], sequences: NDArray[np.int64] | None = None
    ) -> None:
        check_vectors(ids, vectors, self._dimension)
        with self._writing:
            now = self._snapshot
            matrix = _with_room(now.matrix, now.count, len(ids))
            matrix[now.count : now.count + len(ids)] = vectors
            numbers = _with_room(now.sequences, now.count, len(ids))
            numbers[now.count : now.count + len(ids)] = 0 if sequences is None else sequences
            now.ids.extend(ids)
            alive = np.concatenate([now.alive, np.ones(len(ids), np.bool_)])
            for row, id in enumerate(ids, start=now.count):
                if (replaced := self._rows.get(id)) is not None:
                    alive[replaced] = False
                self._rows[id] = row
            self._publish(FlatView(matrix, numbers, now.ids, alive, len(self._rows), now.numbering))

    def remove(self, ids: Sequence[str]) -> None:
        with self._writing:
            now = self._snapshot
            alive = now.alive.copy()
            for id in ids:
                if (row := self._rows.pop(id, None)) is not None:
                    alive[row] = False
            self._publish(replace(now, alive=alive, living=len(self._rows)))

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        return self._snapshot.search(query, depth, within=within)

    def view(self) -> FlatView:
        """The index as it is now."""
        return self._snapshot

    def _publish(self, view: FlatView) -> None:
        """Let searches see a new state, without its dead rows once they are as many as the living."""
        if view.count > 2 * view.living + 1024:
            rows = np.flatnonzero(view.alive)
            ids = [view.ids[row] for row in rows]
            self._rows = {id: row for row, id in enumerate(ids)}
            alive = np.ones(len(ids), np.bool_)
            view = FlatView(view.matrix[rows], view.sequences[rows], ids, alive, len(ids), view.numbering + 1)
        self._snapshot = view


def scan(
    matrix: NDArray[np.float32],
    alive: NDArray[np.bool_],
    living: int,
    query: NDArray[np.float32],
    depth: int,
    products: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None,
) -> NDArray[np.int64]:
    """Rows, ascending, of living documents among which the nearest `depth` are for certain.

    matrix: at least (n, d) unit rows; alive: (n,), of which `living` are True; products: (n,) inner products with a
    query, where they are not simply to be computed here.
    """
    if depth >= living:
        return np.flatnonzero(alive)
    if 4 * living < len(alive):
        rows = np.flatnonzero(alive)
        parts = [matrix[rows[start : start + _BLOCK]] @ query for start in range(0, len(rows), _BLOCK)]
        return rows[nominated(np.concatenate(parts), depth, rounding_error(query.size))]
    scores = matrix[: len(alive)] @ query if products is None else products(query)
    if living < len(alive):
        scores[~alive] = -np.inf
    return nominated(scores, depth, rounding_error(query.size))


def nominated(scores: NDArray[np.float32], depth: int, error: float) -> NDArray[np.int64]:
    """Positions, ascending, among which the best `depth` are for certain.

    scores: (n,), n >= depth, each within `error` of the true one. `depth` of them score at least what the depth-th one
    scores here, less the error; so a better one than those cannot show less than that, less the error again.
    """
    last = np.partition(scores, len(scores) - depth)[len(scores) - depth]
    return np.flatnonzero(scores >= last - 2 * error)


def rounding_error(dimension: int) -> float:
    """Bounds the error of a float32 inner product of two unit vectors, whatever the order of summation."""
    return dimension * float(np.finfo(np.float32).eps)


def check_vectors(ids: Sequence[str], vectors: NDArray[np.float32], dimension: int) -> None:
    """Raises InvalidEmbeddings unless there is one vector of this dimension for each id."""
    if vectors.shape != (len(ids), dimension):
        raise InvalidEmbeddings(f"{len(ids)} documents need embeddings of {dimension}, not {vectors.shape}")


def among(sequences: NDArray[np.int64], within: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(n,) whether each of (n,) sequence numbers is one of (m,) ascending ones."""
    if len(within) == 0:
        return np.zeros(len(sequences), np.bool_)
    found: NDArray[np.bool_] = within[np.minimum(np.searchsorted(within, sequences), len(within) - 1)] == sequences
    return found


def _with_room(rows: NDArray[Scalar], count: int, more: int) -> NDArray[Scalar]:
    """The same array where it holds `more` rows after `count`, else a copy of at least twice the size."""
    if count + more <= len(rows):
        return rows
    larger = np.empty((max(count + more, 2 * count), *rows.shape[1:]), dtype=rows.dtype)
    larger[:count] = rows[:count]
    return larger
