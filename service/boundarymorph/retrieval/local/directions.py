"""The main directions of an index's vectors. Requests of few calls need no others (docs/evaluation.md)."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.local.tables import fact, last_sequence
from boundarymorph.retrieval.local.vectors import with_room
from boundarymorph.retrieval.vectors import halves_from_floats, to_unit_length, unit_from_halves

COUNT = 64
SAMPLE = 4_096  # documents from which they are learned
FEWEST = 1_000  # writes before the first time; the next time is after twice as many as the last
LEARNED_AT = "directions_at"  # the key of the sequence number of the last write before they were learned
SPAN, ROOM = 64, 2**16  # sequence numbers for each document in use, and in any index, up to which documents are kept
_BLOCK = 1024  # documents projected at a time
_SPARE, _ITERATIONS = 16, 4  # of the randomized decomposition


class Directions:
    """The main directions of the vectors of one index. Thread-safe.

    basis: (d, m) float32, orthonormal columns that span most of what the vectors have. Documents that were found are
    kept projected, in 2m bytes each, and 4 bytes for each sequence number up to the last.
    """

    def __init__(self, basis: NDArray[np.float32]) -> None:
        self.basis = basis
        self._precise = basis.astype(np.float64)
        self._keeping = threading.Lock()
        self._places = np.empty(0, np.int32)  # of documents among the kept, by sequence number; -1 for none
        self._kept = np.empty((0, basis.shape[1]), np.float16)
        self._count = 0

    @classmethod
    def of(cls, vectors: NDArray[np.float32], seed: int = 0) -> Directions:
        """Learn at most COUNT directions from (n, d) unit rows: the first right singular vectors, by subspace iteration
        from random directions (Halko, Martinsson and Tropp 2011, algorithm 4.4)."""
        rng = np.random.default_rng(seed)
        span = rng.standard_normal((vectors.shape[1], min(COUNT + _SPARE, *vectors.shape)), np.float32)
        for _ in range(_ITERATIONS):
            span = np.linalg.qr(vectors.T @ (vectors @ span))[0]
        inner = np.linalg.svd(vectors @ span, full_matrices=False)[2]
        return cls(np.ascontiguousarray(span @ inner[:COUNT].T))

    def units(self, vectors: NDArray[np.floating]) -> NDArray[np.float32]:
        """Project (n, d) rows. Returns (n, m) unit rows, each one the same wherever it is among the n."""
        return unit_from_halves(self._halves(vectors))

    def units_of(
        self, sequences: NDArray[np.int64], vectors: Callable[[NDArray[np.intp]], NDArray[np.floating]], living: int
    ) -> NDArray[np.float32]:
        """Return `units` of n documents of the index, by their sequence numbers, of which `living` are in use.

        vectors: returns the (k, d) rows of those at k places, for documents that are not kept.
        """
        last = int(sequences.max(initial=0))
        if last > SPAN * living + ROOM:
            return self.units(vectors(np.arange(len(sequences))))
        with self._keeping:
            if last >= len(self._places):
                larger = np.full(max(last + 1, 2 * len(self._places)), -1, np.int32)
                larger[: len(self._places)] = self._places
                self._places = larger
            missing = np.flatnonzero(self._places[sequences] < 0)
            if self._count + len(missing) > 2 * living + ROOM:  # many that are kept are gone
                self._places.fill(-1)
                self._count, missing = 0, np.arange(len(sequences))
            self._kept = with_room(self._kept, self._count, len(missing))
            for start in range(0, len(missing), _BLOCK):
                some = missing[start : start + _BLOCK]
                end = self._count + len(some)
                self._kept[self._count : end] = self._halves(vectors(some))
                self._places[sequences[some]] = np.arange(self._count, end)
                self._count = end
            halves = self._kept[self._places[sequences]]
        return unit_from_halves(halves)

    def _halves(self, vectors: NDArray[np.floating]) -> NDArray[np.float16]:
        """Project rows to unit length in float16. One that has none of the directions gets the last.

        The sums are in float64: how float32 rounds them depends on the machine and on the other rows, and the
        difference can be seen in float16.
        """
        parts, lengths = to_unit_length((vectors.astype(np.float64) @ self._precise).astype(np.float32))
        parts[~(lengths > np.finfo(np.float16).tiny)] = np.eye(self.basis.shape[1], dtype=np.float32)[-1]
        return halves_from_floats(parts)


def due(connection: sqlite3.Connection) -> bool:
    """Whether there are enough writes to learn directions, for the first time or again."""
    at = fact(connection, LEARNED_AT)
    return last_sequence(connection) >= (FEWEST if at is None else 2 * at)


def read(connection: sqlite3.Connection, dimension: int) -> Directions:
    """Return the directions, of which there must be some. dimension: d."""
    return Directions(np.frombuffer(fact(connection, "directions"), "<f4").reshape(dimension, -1))


def write(connection: sqlite3.Connection, directions: Directions) -> None:
    """Replace the directions."""
    rows = {"directions": directions.basis.astype("<f4").tobytes(), LEARNED_AT: last_sequence(connection)}
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows.items())
