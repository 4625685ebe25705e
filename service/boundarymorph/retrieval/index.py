"""The vector index: nearest documents by inner product."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidEmbeddings, InvalidInput


@dataclass(frozen=True, slots=True)
class Neighbours:
    """n documents, best first.

    vectors: (n, d) float32 unit rows; scores: (n,) float64 inner products with the query.
    """

    ids: list[str]
    vectors: NDArray[np.float32]
    scores: NDArray[np.float64]


class VectorIndex(Protocol):
    """Unit vectors by document id. Safe to share between threads: a search sees each call that writes whole or not."""

    def __len__(self) -> int:
        """Documents in the index."""

    def upsert(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Add n documents with their (n, d) unit rows, replacing those of the same id; a later one of an id wins."""

    def remove(self, ids: Sequence[str]) -> None:
        """Take documents out; unknown ids are ignored."""

    def search(self, query: NDArray[np.float32], depth: int) -> Neighbours:
        """The `depth` nearest to a (d,) unit query, or all when there are fewer; equal scores in order of insertion."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What one search sees. Rows up to `count` never change once they are in a snapshot.

    matrix: (capacity, d); ids: at least count; alive: (count,) False where a row was removed or replaced.
    """

    matrix: NDArray[np.float32]
    ids: list[str]
    alive: NDArray[np.bool_]
    living: int

    @property
    def count(self) -> int:
        return len(self.alive)


class FlatIndex:
    """A `VectorIndex` in memory: exhaustive search by FAISS, exact at any depth.

    FAISS adds up in float32 and in no particular order among equals. Its ranking therefore only nominates candidates, a
    little beyond the depth; they are ranked by inner products in float64, equal ones in order of insertion.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        # Bounds the error of a float32 inner product of two unit vectors, whatever the order of summation.
        self._tolerance = dimension * float(np.finfo(np.float32).eps)
        self._rows: dict[str, int] = {}
        self._writing = threading.Lock()
        self._snapshot = _Snapshot(np.empty((0, dimension), np.float32), [], np.empty(0, np.bool_), 0)

    def __len__(self) -> int:
        return self._snapshot.living

    def upsert(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        if vectors.shape != (len(ids), self._dimension):
            raise InvalidEmbeddings(f"{len(ids)} documents need embeddings of {self._dimension}, not {vectors.shape}")
        with self._writing:
            now = self._snapshot
            matrix = _with_room(now.matrix, now.count, len(ids))
            matrix[now.count : now.count + len(ids)] = vectors
            now.ids.extend(ids)
            alive = np.concatenate([now.alive, np.ones(len(ids), np.bool_)])
            for row, id in enumerate(ids, start=now.count):
                if (replaced := self._rows.get(id)) is not None:
                    alive[replaced] = False
                self._rows[id] = row
            self._publish(_Snapshot(matrix, now.ids, alive, len(self._rows)))

    def remove(self, ids: Sequence[str]) -> None:
        with self._writing:
            now = self._snapshot
            alive = now.alive.copy()
            for id in ids:
                if (row := self._rows.pop(id, None)) is not None:
                    alive[row] = False
            self._publish(_Snapshot(now.matrix, now.ids, alive, len(self._rows)))

    def search(self, query: NDArray[np.float32], depth: int) -> Neighbours:
        if query.shape != (self._dimension,):
            raise InvalidEmbeddings(f"the index takes queries of {self._dimension} dimensions, not {query.shape}")
        if depth < 1:
            raise InvalidInput(f"the depth must be at least 1, not {depth}")
        snapshot = self._snapshot
        rows = self._candidates(snapshot, query, depth)
        vectors = snapshot.matrix[rows]
        scores = np.einsum("nd,d->n", vectors, query, dtype=np.float64)
        best = np.argsort(-scores, kind="stable")[:depth]
        return Neighbours([snapshot.ids[row] for row in rows[best]], vectors[best], scores[best])

    def _candidates(self, snapshot: _Snapshot, query: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
        """Rows, ascending, of living documents among which the nearest `depth` are for certain."""
        reach = depth + snapshot.count - snapshot.living + 64
        while reach < snapshot.count:
            (scores,), (rows,) = faiss.knn(
                query[None], snapshot.matrix[: snapshot.count], reach, metric=faiss.METRIC_INNER_PRODUCT
            )
            living = snapshot.alive[rows]
            # Whatever lies beyond the reach is further than the last one within by more than float32 can confuse.
            if scores[-1] < scores[living][depth - 1] - 2 * self._tolerance:
                return np.sort(rows[living])
            reach *= 2
        return np.flatnonzero(snapshot.alive)

    def _publish(self, snapshot: _Snapshot) -> None:
        """Let searches see a new state, without its dead rows once they are as many as the living."""
        if snapshot.count > 2 * snapshot.living + 1024:
            rows = np.flatnonzero(snapshot.alive)
            ids = [snapshot.ids[row] for row in rows]
            self._rows = {id: row for row, id in enumerate(ids)}
            snapshot = _Snapshot(snapshot.matrix[rows], ids, np.ones(len(ids), np.bool_), len(ids))
        self._snapshot = snapshot


def _with_room(matrix: NDArray[np.float32], count: int, more: int) -> NDArray[np.float32]:
    """The same array where it holds `more` rows after `count`, else a copy of at least twice the size."""
    if count + more <= len(matrix):
        return matrix
    larger = np.empty((max(count + more, 2 * count), matrix.shape[1]), dtype=np.float32)
    larger[:count] = matrix[:count]
    return larger
