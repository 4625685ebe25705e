"""Documents by row: what every index of this machine knows of them beside their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.local.vector_index import Neighbours
from boundarymorph.retrieval.vectors import exact_scores

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Rows:
    """Documents by row, in order of insertion, as they were at one moment. It never changes.

    ids, sequences: of at least `count` rows; alive: (count,) False where a row was removed, replaced or is not asked
    for; living: how many are alive; numbering: changes when documents move to other rows.
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
        """Only the documents of these ascending sequence numbers."""
        alive = self.alive & among(self.sequences[: self.count], within)
        return replace(self, alive=alive, living=int(alive.sum()))

    def others(self, living: NDArray[np.int64]) -> list[str]:
        """As `VectorView.others`."""
        rows = np.flatnonzero(self.alive & ~among(self.sequences[: self.count], living))
        return [self.ids[row] for row in rows]

    def ranked(
        self, query: NDArray[np.float32], depth: int, rows: NDArray[np.int64], vectors: NDArray[np.float32]
    ) -> Neighbours:
        """The best `depth` of m ascending rows, whose (m, d) vectors are given, by their exact scores."""
        scores = exact_scores(vectors, query)
        best = np.argsort(-scores, kind="stable")[:depth]
        chosen = rows[best]
        return Neighbours([self.ids[row] for row in chosen], vectors[best], scores[best], self.sequences[chosen])


class RowBook:
    """Which row each document is in. `now` is given out to searches; calls come one at a time."""

    def __init__(self) -> None:
        self.now = Rows([], np.empty(0, np.int64), np.empty(0, np.bool_), 0)
        self._row_of: dict[str, int] = {}

    @classmethod
    def of(cls, ids: list[str], sequences: NDArray[np.int64], alive: NDArray[np.bool_]) -> RowBook:
        """Rows that are there already, of which some are alive."""
        book = cls()
        book._row_of = {ids[row]: row for row in np.flatnonzero(alive).tolist()}
        book.now = Rows(ids, sequences, alive, len(book._row_of))
        return book

    def add(self, ids: Sequence[str], sequences: NDArray[np.int64] | None) -> None:
        """Documents in the next rows, in place of those of the same ids; a later one of an id wins."""
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
        """Take documents out; unknown ids are ignored."""
        alive = self.now.alive.copy()
        for id in ids:
            if (row := self._row_of.pop(id, None)) is not None:
                alive[row] = False
        self.now = replace(self.now, alive=alive, living=len(self._row_of))

    def close_gaps(self) -> NDArray[np.int64]:
        """Give the living the first rows, in their order; the rows in which they were."""
        now = self.now
        rows = np.flatnonzero(now.alive)
        ids = [now.ids[row] for row in rows]
        self._row_of = {id: row for row, id in enumerate(ids)}
        self.now = Rows(ids, now.sequences[rows], np.ones(len(ids), np.bool_), len(ids), now.numbering + 1)
        return rows


def among(sequences: NDArray[np.int64], within: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(n,) whether each of (n,) sequence numbers is one of (m,) ascending ones."""
    if len(within) == 0:
        return np.zeros(len(sequences), np.bool_)
    found: NDArray[np.bool_] = within[np.minimum(np.searchsorted(within, sequences), len(within) - 1)] == sequences
    return found


def with_room(rows: NDArray[Scalar], count: int, more: int) -> NDArray[Scalar]:
    """The same array where it holds `more` rows after `count`, else a copy of at least twice the size."""
    if count + more <= len(rows):
        return rows
    larger = np.empty((max(count + more, 2 * count), *rows.shape[1:]), dtype=rows.dtype)
    larger[:count] = rows[:count]
    return larger
