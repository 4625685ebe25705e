"""The main directions of an index's vectors. Requests of few calls need no others (docs/evaluation.md)."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.halves import halves_from_floats, to_unit_length, unit_from_halves
from boundarymorph.retrieval.local.lookup import fact, last_sequence
from boundarymorph.selection.pool import Pool

COUNT = 64
SAMPLE = 4_096  # documents from which they are learned
FEWEST = 1_000  # writes before the first time; the next time is after twice as many as the last
LEARNED_AT = "directions_at"  # the key of the sequence number of the last write before they were learned
_SPARE, _ITERATIONS = 16, 4  # of the randomized decomposition


@dataclass(frozen=True, slots=True, eq=False)
class Directions:
    """basis: (d, m) float32, orthonormal columns that span most of what the vectors have."""

    basis: NDArray[np.float32]

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

    def project(self, pool: Pool) -> Pool:
        """Return the pool with vectors and query of m numbers and unit length. Its scores remain."""
        return replace(pool, embeddings=self._units(pool.embeddings), query=self._units(pool.query[None])[0])

    def _units(self, vectors: NDArray[np.floating]) -> NDArray[np.float32]:
        """(n, m) unit rows that `halves` restores bit for bit. One that has none of the directions gets the last."""
        parts, lengths = to_unit_length(vectors.astype(np.float32, copy=False) @ self.basis)
        parts[~(lengths > np.finfo(np.float16).tiny)] = np.eye(self.basis.shape[1], dtype=np.float32)[-1]
        return unit_from_halves(halves_from_floats(parts))


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
