"""The prior of a scorer on a collection, from what past requests told of it: empirical Bayes, eight numbers.

Given an amplitude a, the log-odds y of a request's scored documents are normal with mean level + a F m and covariance
a^2 (K + noise I + H D^2 H'), with H the level and features F, m the slopes and D the deviations of `TrendPrior`. Sums
of H and y whitened by K (`Evidence`) say how likely y is under any prior, so that a request is seventeen numbers. The
amplitude of each request is integrated out; the prior that is chosen makes all requests most likely, given how such
numbers scatter over collections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.prior import DEFAULT_PRIOR, Evidence, TrendPrior

AMPLITUDES = np.exp(np.linspace(-2.5, 3.0, 45))  # over which the amplitude of a request is integrated
LEARNED_SCORES = 4.0  # as how many scores a learned amplitude counts
# How such numbers scatter over collections, in the order and on the scale of `_coded`.
SCATTER = np.array([3.0, 1.0, 0.5, 0.5, 0.7, 0.5, 0.7, 1.0])


def log_likelihoods(prior: TrendPrior, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """Return (m,) the log-densities in nats of the scores of m requests under a prior, each but for a constant of the
    request."""
    products = np.stack([one.products for one in evidence])
    loads, counts = np.stack([one.loads for one in evidence]), np.array([one.count for one in evidence])
    # Of y less the level, and of F m, whitened by K and noise; then by what the uncertainty of level and slopes adds.
    ones, slopes = products[:, :, 0], products[:, :, 1:] @ prior.slopes
    above = loads - prior.level * ones
    square = np.array([one.square for one in evidence]) - 2.0 * prior.level * loads[:, 0] + prior.level**2 * ones[:, 0]
    cross = above[:, 1:] @ prior.slopes
    leaning = slopes[:, 1:] @ prior.slopes
    scaled = products * np.multiply.outer(prior.deviations, prior.deviations) + np.eye(4)
    sides = np.stack([above, slopes], axis=2) * prior.deviations[:, None]
    removed = sides.swapaxes(1, 2) @ np.linalg.solve(scaled, sides)
    square, cross, leaning = square - removed[:, 0, 0], cross - removed[:, 0, 1], leaning - removed[:, 1, 1]
    volumes = np.linalg.slogdet(scaled)[1] / 2.0
    a = AMPLITUDES
    fit = -(square[:, None] / a**2 - 2.0 * cross[:, None] / a + leaning[:, None]) / 2.0
    weights = -prior.scores * np.log(a) - prior.scores * prior.scale / (2.0 * a**2)
    weights -= np.log(np.exp(weights - weights.max()).sum()) + weights.max()
    log_densities = fit - counts[:, None] * np.log(a) + weights
    most = log_densities.max(axis=1)
    total: NDArray[np.float64] = most + np.log(np.exp(log_densities - most[:, None]).sum(axis=1)) - volumes
    return total


def fitted(evidence: Sequence[Evidence]) -> TrendPrior:
    """Return the prior that these requests make likely. Of a scorer with a few grades the slopes alone: its level and
    amplitude are those of its grades."""
    from scipy.optimize import minimize  # as a service imports no scipy before it learns

    graded = sum(one.graded for one in evidence) > len(evidence) / 2
    start = _coded(replace(DEFAULT_PRIOR, scores=LEARNED_SCORES))
    free = np.array([not graded, not graded, True, True, not graded, True, not graded, not graded])

    def decoded(values: NDArray[np.float64]) -> TrendPrior:
        code = start.copy()
        code[free] = values
        return _decoded(code, DEFAULT_PRIOR.scores if graded else LEARNED_SCORES)

    def cost(values: NDArray[np.float64]) -> float:
        unusual = np.square((values - start[free]) / SCATTER[free]).sum() / 2.0
        return float(unusual - log_likelihoods(decoded(values), evidence).sum())

    found = minimize(cost, start[free], method="L-BFGS-B", options={"maxiter": 60})
    return decoded(found.x)


def _coded(prior: TrendPrior) -> NDArray[np.float64]:
    """(8,) with the logarithms of what is positive."""
    level_deviation, slope_deviation, words_deviation, scale = np.log(
        [prior.level_deviation, prior.slope_deviation, prior.words_deviation, prior.scale]
    )
    slopes = prior.rank, prior.similarity
    return np.array([prior.level, level_deviation, *slopes, slope_deviation, prior.words, words_deviation, scale])


def _decoded(code: NDArray[np.float64], scores: float) -> TrendPrior:
    level, level_deviation, rank, similarity, slope_deviation, words, words_deviation, scale = code.tolist()
    deviations = np.exp([level_deviation, slope_deviation, words_deviation]).tolist()
    return TrendPrior(
        level, deviations[0], rank, similarity, deviations[1], words, deviations[2], float(np.exp(scale)), scores
    )
