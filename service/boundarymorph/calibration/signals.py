"""The evidence beside a score: how near a document is to the query, its words, and signals of the caller's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.features import signals, standardised
from boundarymorph.selection.pool import COMPLETE, Pool

SIMILARITY, WORDS = "similarity", "bm25"


def signals_of(pool: Pool) -> dict[str, NDArray[np.float64]]:
    """(N,) each: the standardised similarity or retrieval score, log(1 + BM25) and, by their ranks, other features of
    the pool, whichever it has. A pool with equal scores has no similarity."""
    found = {}
    similarity = standardised(pool.features.get(SIMILARITY, pool.scores))
    if similarity.any():
        found[SIMILARITY] = similarity
    if WORDS in pool.features:
        found[WORDS] = np.log1p(np.maximum(pool.features[WORDS], 0.0))
    others = sorted(pool.features.keys() - set(COMPLETE))
    return {**found, **dict(zip(others, signals(pool), strict=True))}


def log_odds(scores: NDArray[np.float64], clip: float) -> NDArray[np.float64]:
    """Of scores in [0, 1], which are held between `clip` and 1 - `clip`."""
    held = np.clip(scores, clip, 1.0 - clip)
    return np.log(held) - np.log1p(-held)


def clip_of(scores: NDArray[np.float64]) -> float:
    """How close to 0 or 1 a score is taken at its word: half the smallest distance from an end that was seen, between
    1e-7 and 1/4, so that the levels of a coarse scorer are about evenly spaced."""
    distances = np.minimum(scores, 1.0 - scores)
    seen = distances[distances > 0]
    return float(np.clip(seen.min() / 2 if seen.size else 0.25, 1e-7, 0.25))
