"""Synthetic pools with known scores, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection import Pool

if TYPE_CHECKING:  # benchmarks use this with other versions, which may lack the module
    from boundarymorph.selection import Session

Scores = NDArray[np.float64]


def clustered(n: int, d: int, seed: int, dtype: type = np.float64, clusters: int = 12) -> tuple[Pool, Scores]:
    """Return a pool around `clusters` directions, and its scores.

    The cross-encoder prefers some clusters, which the query finds only in part.
    """
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(clusters, d))
    embeddings = centres[rng.integers(clusters, size=n)] + 0.8 * rng.normal(size=(n, d)) + rng.normal(size=d)
    query = centres[0] + 0.5 * centres[1] + 0.8 * rng.normal(size=d)
    pool = Pool.from_embeddings([f"d{i}" for i in range(n)], embeddings.astype(dtype), query)
    centres /= np.linalg.norm(centres, axis=1)[:, None]
    liking = pool.embeddings.astype(np.float64) @ centres.T @ rng.normal(size=clusters)
    return pool, 1 / (1 + np.exp(-6 * (liking + 0.2 * rng.normal(size=n) - 0.3)))


def random(n: int, d: int, seed: int, dtype: type = np.float64) -> tuple[Pool, Scores]:
    """Return a pool without structure."""
    rng = np.random.default_rng(seed)
    pool = Pool.from_embeddings([f"d{i}" for i in range(n)], rng.normal(size=(n, d)).astype(dtype), rng.normal(size=d))
    return pool, rng.uniform(size=n)


def duplicated_and_tied(n: int, d: int, seed: int, dtype: type = np.float64) -> tuple[Pool, Scores]:
    """Return a pool with every embedding five times, and scores of four values."""
    rng = np.random.default_rng(seed)
    distinct: NDArray[np.floating] = rng.normal(size=(-(-n // 5), d)).astype(dtype)
    pool = Pool.from_embeddings([f"d{i}" for i in range(n)], np.repeat(distinct, 5, axis=0)[:n], rng.normal(size=d))
    return pool, rng.integers(4, size=n) / 3


def constant(n: int, d: int, seed: int, dtype: type = np.float64) -> tuple[Pool, Scores]:
    """Return a pool whose cross-encoder gives every document the same score."""
    pool, scores = clustered(n, d, seed, dtype)
    return pool, np.full_like(scores, 0.25)


def saturated(n: int, d: int, seed: int, dtype: type = np.float64) -> tuple[Pool, Scores]:
    """Return a pool with most scores near 0 and few near 1, like most cross-encoders."""
    pool, scores = clustered(n, d, seed, dtype)
    return pool, scores**8


FAMILIES: dict[str, Callable[..., tuple[Pool, Scores]]] = {
    family.__name__: family for family in (clustered, random, duplicated_and_tied, constant, saturated)
}


def play_by_rounds(session: Session, scores: Scores) -> Session:
    """Score the documents that the session asks for, in rounds that grow as in the service.

    `scores` are (N,).
    """
    while (asked := session.ask_round()).size:
        session.tell(asked, scores[asked])
    return session


def play(session: Session, scores: Scores, batch: int = 1) -> Session:
    """Score the documents that the session asks for, in rounds of `batch`, until its end.

    `scores` are (N,).
    """
    while (asked := session.ask(batch)).size:
        session.tell(asked, scores[asked])
    return session
