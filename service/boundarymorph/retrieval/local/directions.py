"""The main directions of an index's vectors. Requests of few calls need no others (docs/evaluation.md)."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.halves import halves_from_floats, to_unit_length, unit_from_halves
from boundarymorph.retrieval.local.lookup import fact, last_sequence

COUNT = 64
SAMPLE = 4_096  # documents from which they are learned
FEWEST = 1_000  # writes before the first time; the next time is after twice as many as the last
LEARNED_AT = "directions_at"  # the key of the sequence number of the last write before they were learned
_BLOCK = 64  # rows projected at a time
_SPARE, _ITERATIONS = 16, 4  # of the randomized decomposition


class Directions:
    """The main directions of the vectors of one index. Thread-safe.

    basis: (d, m) float32, orthonormal columns that span most of what the vectors have. Documents that were found once
    are kept projected, in 2m + 1 bytes for each number up to the last one.
    """

    def __init__(self, basis: NDArray[np.float32]) -> None:
        self.basis = basis
        self._growing = threading.Lock()
        self._kept = np.zeros((0, basis.shape[1]), np.float16)
        self._known = np.zeros(0, np.bool_)

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
        self, sequences: NDArray[np.int64], vectors: Callable[[NDArray[np.intp]], NDArray[np.floating]]
    ) -> NDArray[np.float32]:
        """Return `units` of n documents of the index, by their sequence numbers.

        vectors: returns the (k, d) rows of those at k places, for documents that were not projected before.
        """
        kept, known = self._with_room(int(sequences.max(initial=-1)) + 1)
        missing = np.flatnonzero(~known[sequences])
        for start in range(0, len(missing), _BLOCK):
            places = missing[start : start + _BLOCK]
            kept[sequences[places]] = self._halves(vectors(places))
            known[sequences[places]] = True
        return unit_from_halves(kept[sequences])

    def _halves(self, vectors: NDArray[np.floating]) -> NDArray[np.float16]:
        """Project rows to unit length in float16. One that has none of the directions gets the last.

        Rows are multiplied in blocks of one shape, as the rounding of a product may depend on the number of rows.
        """
        count = len(vectors)
        padded = np.zeros((-(-count // _BLOCK), _BLOCK, len(self.basis)), np.float32)
        padded.reshape(-1, len(self.basis))[:count] = vectors
        parts, lengths = to_unit_length(np.concatenate([block @ self.basis for block in padded])[:count])
        parts[~(lengths > np.finfo(np.float16).tiny)] = np.eye(self.basis.shape[1], dtype=np.float32)[-1]
        return halves_from_floats(parts)

    def _with_room(self, count: int) -> tuple[NDArray[np.float16], NDArray[np.bool_]]:
        """Return what is kept, with room for sequence numbers below `count`."""
        with self._growing:
            if count > len(self._known):
                known = np.zeros(max(count, 2 * len(self._known)), np.bool_)
                kept = np.zeros((len(known), self.basis.shape[1]), np.float16)
                kept[: len(self._kept)], known[: len(self._known)] = self._kept, self._known
                self._kept, self._known = kept, known
            return self._kept, self._known


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
