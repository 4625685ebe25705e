"""The documents of a vector index by row, without their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.executors import computing
from boundarymorph.retrieval.vectors import are_among, exact_scores

_BLOCK = 256  # vectors that are read at a time, so that they stay in the cache
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """n documents, best first.

    matrix: float32 unit rows, in which theirs are at (n,) places; scores: (n,) float64 inner products with the query;
    sequences: (n,) int64, the store's sequence number of each, 0 if unknown; rows: (n,) where they are in the index;
    warnings: about how they were found.
    """

    ids: list[str]
    matrix: NDArray[np.float32]
    places: NDArray[np.int64]
    scores: NDArray[np.float64]
    sequences: NDArray[np.int64]
    rows: NDArray[np.int64]
    warnings: tuple[str, ...] = ()

    @property
    def vectors(self) -> NDArray[np.float32]:
        """(n, d) unit rows, copied each time."""
        return self.matrix[self.places]

    def vectors_at(self, numbers: NDArray[np.intp]) -> NDArray[np.float32]:
        """(k, d) unit rows of some of the documents."""
        return self.matrix[self.places[numbers]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Documents by row, in order of insertion, at one moment. Immutable.

    ids, sequences: of at least `count` rows; alive: (count,) False for rows that were removed, replaced or excluded;
    living: number of living rows; numbering: changes when documents move to other rows.
    """

    ids: list[str]
    sequences: NDArray[np.int64]
    alive: NDArray[np.bool_]
    living: int
    numbering: int = 0

    @property
    def count(self) -> int:
        return len(self.alive)

    def __len__(self) -> int:
        return self.living

    def among(self, within: NDArray[np.int64]) -> Rows:
        """Return the same with only the documents of these ascending sequence numbers alive."""
        alive = self.alive & are_among(self.sequences[: self.count], within)
        return replace(self, alive=alive, living=int(alive.sum()))

    def others(self, living: NDArray[np.int64]) -> list[str]:
        """Return the ids of the documents whose sequence numbers are not among these ascending ones."""
        rows = np.flatnonzero(self.alive & ~are_among(self.sequences[: self.count], living))
        return [self.ids[row] for row in rows]

    def ranked(
        self,
        query: NDArray[np.float32],
        depth: int,
        rows: NDArray[np.int64],
        matrix: NDArray[np.float32],
        places: NDArray[np.int64],
        warnings: tuple[str, ...] = (),
    ) -> Neighbours:
        """Return the best `depth` of m ascending rows, by their exact scores. Their vectors are those of the matrix at
        (m,) places."""
        with computing():
            blocks = (matrix[places[start : start + _BLOCK]] for start in range(0, len(places), _BLOCK))
            scores = np.concatenate([np.empty(0), *(exact_scores(block, query) for block in blocks)])
            best = np.argsort(-scores, kind="stable")[:depth]
            chosen = rows[best]
            ids = list(map(self.ids.__getitem__, chosen.tolist()))
            return Neighbours(ids, matrix, places[best], scores[best], self.sequences[chosen], chosen, warnings)


class RowBook:
    """Tracks which row each document is in. `now` is the state for searches; calls must not be concurrent."""

    def __init__(self) -> None:
        self.now = Rows([], np.empty(0, np.int64), np.empty(0, np.bool_), 0)
        self._row_of: dict[str, int] = {}

    @classmethod
    def of(cls, ids: list[str], sequences: NDArray[np.int64], alive: NDArray[np.bool_]) -> RowBook:
        """Return a book of existing rows, some of which are alive."""
        book = cls()
        book._row_of = {ids[row]: row for row in np.flatnonzero(alive).tolist()}
        book.now = Rows(ids, sequences, alive, len(book._row_of))
        return book

    def add(self, ids: Sequence[str], sequences: NDArray[np.int64] | None) -> None:
        """Add documents in the next rows, replacing those of the same ids; the last one of an id wins."""
        now, count = self.now, self.now.count
        numbers = with_room(now.sequences, count, len(ids))
        numbers[count : count + len(ids)] = 0 if sequences is None else sequences
        now.ids.extend(ids)
        alive = np.concatenate([now.alive, np.ones(len(ids), np.bool_)])
        for row, id in enumerate(ids, start=count):
            if (replaced := self._row_of.get(id)) is not None:
                alive[replaced] = False
            self._row_of[id] = row
        self.now = replace(now, sequences=numbers, alive=alive, living=len(self._row_of))

    def drop(self, ids: Sequence[str]) -> None:
        """Remove documents; unknown ids are ignored."""
        alive = self.now.alive.copy()
        for id in ids:
            if (row := self._row_of.pop(id, None)) is not None:
                alive[row] = False
        self.now = replace(self.now, alive=alive, living=len(self._row_of))

    def close_gaps(self, base: int) -> NDArray[np.int64]:
        """Move the living documents after the first `base` rows together, in order; return the former rows of these."""
        now = self.now
        moved = np.flatnonzero(now.alive[base:]) + base
        rows = np.concatenate([np.arange(base), moved])
        ids = now.ids[:base] + [now.ids[row] for row in moved]
        self._row_of |= {id: row for row, id in enumerate(ids[base:], start=base)}
        self.now = Rows(ids, now.sequences[rows], now.alive[rows], now.living, now.numbering + 1)
        return moved


def with_room(rows: NDArray[Scalar], count: int, more: int) -> NDArray[Scalar]:
    """Return the array if it has room for `more` rows after `count`, else a copy of at least twice the size."""
    if count + more <= len(rows):
        return rows
    larger = np.empty((max(count + more, 2 * count), *rows.shape[1:]), dtype=rows.dtype)
    larger[:count] = rows[:count]
    return larger
