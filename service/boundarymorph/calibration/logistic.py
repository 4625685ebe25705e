"""A logistic regression of grades on a few signals, held back by ridges."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.pool import COMPLETE, Pool, signals, standardised

SIMILARITY, WORDS = "similarity", "bm25"
INTERCEPT_RIDGE = 0.01
QUERY_RIDGE = 1.0  # of the levels that queries may have of their own


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


def sigmoid(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of log-odds of any size."""
    return np.exp(-np.logaddexp(0.0, -log_odds))


def log_loss(log_odds: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) the loss of each prediction, in nats. targets: (n,) in [0, 1]."""
    losses: NDArray[np.float64] = np.logaddexp(0.0, log_odds) - targets * log_odds
    return losses


def fit(
    columns: NDArray[np.float64],
    targets: NDArray[np.float64],
    ridges: NDArray[np.float64],
    *,
    towards: float = 0.0,
    queries: NDArray[np.intp] | None = None,
) -> tuple[NDArray[np.float64], float]:
    """Return the (p,) coefficients and the intercept that minimise the log loss of n targets in [0, 1] plus
    ridges * coefficients^2 / 2. The first coefficient, that of the scorer, is never negative.

    columns: (n, p). towards: what the ridge draws the first coefficient to. queries: (n,) numbers of the targets'
    queries, from 0: each then has a level of its own, so that slopes compare documents of one query only.
    """
    from scipy.optimize import minimize

    parts = columns.shape[1]
    levels = 0 if queries is None else int(queries.max()) + 1
    centre = np.zeros(parts)
    centre[0] = towards

    def objective(free: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        slopes, intercept, own = free[:parts], free[parts], free[parts + 1 :]
        log_odds = columns @ slopes + intercept + (0.0 if queries is None else own[queries])
        errors = sigmoid(log_odds) - targets
        off = slopes - centre
        value = log_loss(log_odds, targets).sum() + (ridges @ off**2 + INTERCEPT_RIDGE * intercept**2) / 2
        gradient = np.concatenate([columns.T @ errors + ridges * off, [errors.sum() + INTERCEPT_RIDGE * intercept]])
        if queries is not None:
            value += QUERY_RIDGE * (own @ own) / 2
            gradient = np.concatenate([gradient, np.bincount(queries, errors, levels) + QUERY_RIDGE * own])
        return float(value), gradient

    bounds = [(0.0, None), *[(None, None)] * (parts + levels)]
    found = minimize(objective, np.zeros(parts + 1 + levels), jac=True, method="L-BFGS-B", bounds=bounds).x
    return found[:parts], float(found[parts])
