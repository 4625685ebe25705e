"""A large index: a segment that never changes, what was written since, and what of the segment is no longer so."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.local.segment import Block, Segment
from boundarymorph.retrieval.local.vectors import FlatIndex, FlatView, Neighbours, among, check_vectors, scan
from boundarymorph.retrieval.vectors import check_search, exact_scores

_BLOCK = 8_192


@dataclass(frozen=True, slots=True)
class SegmentedView:
    """What one search sees of a `SegmentedIndex`; it never changes.

    alive: (n,) False where a document of the base was removed, replaced or is not asked for; living: how many are
    alive; recent: what was written since, all of it later than the base; exactly: whether candidates must be certain.
    """

    base: Segment
    alive: NDArray[np.bool_]
    living: int
    recent: FlatView
    exactly: bool = False

    @property
    def dead(self) -> int:
        """Documents of the base that are no longer so."""
        return len(self.alive) - self.living

    def __len__(self) -> int:
        return self.living + self.recent.living

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        """As `VectorView.search`; the base's structure may miss some of the nearest, unless `exactly`."""
        check_search(query, depth, self.base.info.dimension)
        if within is not None:
            return self.part(within).search(query, depth)
        recent = self.recent
        old = self.base.nominate(query, depth, self.alive, self.living, exactly=self.exactly)
        new = scan(recent.matrix, recent.alive, recent.living, query, depth)
        vectors = np.concatenate([self.base.vectors(old), recent.matrix[new]])
        scores = exact_scores(vectors, query)
        best = np.argsort(-scores, kind="stable")[:depth]
        ids = np.empty(len(best), object)
        of_base = best < len(old)
        ids[of_base] = self.base.ids.at(old[best[of_base]])
        ids[~of_base] = [recent.ids[row] for row in new[best[~of_base] - len(old)]]
        sequences = np.concatenate([self.base.sequences[old], recent.sequences[new]])
        return Neighbours(ids.tolist(), vectors[best], scores[best], sequences[best])

    def strays(self, living: NDArray[np.int64]) -> list[str]:
        """As `VectorView.strays`."""
        rows = np.flatnonzero(self.alive & ~among(self.base.sequences, living))
        return self.base.ids.at(rows) + self.recent.strays(living)

    def part(self, within: NDArray[np.int64]) -> SegmentedView:
        """Only the documents of these ascending sequence numbers, to be searched exactly."""
        alive = self.alive & among(self.base.sequences, within)
        return SegmentedView(self.base, alive, int(alive.sum()), self.recent.part(within), exactly=True)

    def blocks(self) -> Iterator[Block]:
        """All documents in order of insertion, some thousands at a time."""
        rows = np.flatnonzero(self.alive)
        for start in range(0, len(rows), _BLOCK):
            part = rows[start : start + _BLOCK]
            yield Block(self.base.ids.at(part), self.base.vectors(part), self.base.sequences[part])
        rows = np.flatnonzero(self.recent.alive)
        for start in range(0, len(rows), _BLOCK):
            part = rows[start : start + _BLOCK]
            ids = [self.recent.ids[row] for row in part]
            yield Block(ids, self.recent.matrix[part], self.recent.sequences[part])


class SegmentedIndex:
    """A `VectorIndex` over a segment and a `FlatIndex` of what was written since. Exact where the segment is.

    Scores are exact whatever the segment's structure, and no document is found twice, in an old state, or once it is
    removed: a structure that is not exact can only miss some of the nearest.
    """

    def __init__(self, dimension: int, base: Segment | None = None) -> None:
        self._recent = FlatIndex(dimension)
        self._writing = threading.Lock()
        base = base or Segment.empty(dimension)
        self._view = SegmentedView(base, np.ones(len(base), np.bool_), len(base), self._recent.view())

    def __len__(self) -> int:
        return len(self._view)

    def upsert(
        self, ids: Sequence[str], vectors: NDArray[np.float32], sequences: NDArray[np.int64] | None = None
    ) -> None:
        check_vectors(ids, vectors, self._view.base.info.dimension)
        with self._writing:
            self._recent.upsert(ids, vectors, sequences)
            self._publish_without(ids)

    def remove(self, ids: Sequence[str]) -> None:
        with self._writing:
            self._recent.remove(ids)
            self._publish_without(ids)

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        return self._view.search(query, depth, within=within)

    def view(self) -> SegmentedView:
        """The index as it is now."""
        return self._view

    def _publish_without(self, ids: Sequence[str]) -> None:
        """Let searches see what was written, and the base's documents of these ids no more."""
        now = self._view
        rows = now.base.rows(ids)
        alive, living = now.alive, now.living
        rows = rows[alive[rows]]
        if len(rows):
            alive = alive.copy()
            alive[rows] = False
            living -= len(rows)
        self._view = SegmentedView(now.base, alive, living, self._recent.view())
