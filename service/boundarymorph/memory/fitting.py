"""The prior of a scorer on a collection, from what past requests told of it: empirical Bayes, eight numbers.

Given an amplitude a, the log-odds y of a request's scored documents are normal with mean level + a F m and covariance
a^2 (K + noise I + H D^2 H'), with H the level and features F, m the slopes and D the deviations of `TrendPrior`. Sums
of H and y whitened by K (`Evidence`) say how likely y is under any prior, so that a request is seventeen numbers. The
amplitude of each request is integrated out; the prior that is chosen makes all requests most likely, given how such
numbers scatter over collections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.prior import DEFAULT_PRIOR, Evidence, TrendPrior

AMPLITUDES = np.exp(np.linspace(-2.5, 3.0, 45))  # over which the amplitude of a request is integrated
LEARNED_SCORES = 4.0  # as how many scores a learned amplitude counts
# How such numbers scatter over collections, in the order and on the scale of `_coded`.
SCATTER = np.array([3.0, 1.0, 0.5, 0.5, 0.7, 0.5, 0.7, 1.0])
STEPS, LONGEST = 60, 1.5  # of a search at most, and the length of one, in units of `SCATTER`
CLOSE = 1e-5  # nats that a step must be expected to gain, or the search ends
Cost: TypeAlias = Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]]


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """The evidence of m requests, stacked: products (m, 4, 4), loads (m, 4), squares and counts (m,)."""

    products: NDArray[np.float64]
    loads: NDArray[np.float64]
    squares: NDArray[np.float64]
    counts: NDArray[np.float64]

    @classmethod
    def of(cls, evidence: Sequence[Evidence]) -> Self:
        return cls(
            np.array([one.products for one in evidence]),
            np.array([one.loads for one in evidence]),
            np.array([one.square for one in evidence]),
            np.array([one.count for one in evidence], dtype=np.float64),
        )


def log_likelihoods(prior: TrendPrior, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """Return (m,) the log-densities in nats of the scores of m requests under a prior, each but for a constant of the
    request."""
    return _likelihoods(prior, Sums.of(evidence))[0]


def _likelihoods(prior: TrendPrior, sums: Sums) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the `log_likelihoods`, and (8,) the gradient of their sum by what `_coded` returns."""
    deviations, slopes = prior.deviations, prior.slopes
    # Of y less the level, and of F m, whitened by K and noise; then by what the uncertainty of level and slopes adds.
    sides = np.empty((len(sums.counts), 4, 2))
    sides[:, :, 0] = sums.loads - prior.level * sums.products[:, :, 0]
    sides[:, :, 1] = sums.products[:, :, 1:] @ slopes
    squares = np.empty((len(sums.counts), 3))  # of y less the level, of it and F m, and of F m
    squares[:, 0] = sums.squares - prior.level * (sums.loads[:, 0] + sides[:, 0, 0])
    squares[:, 1:] = slopes @ sides[:, 1:]
    inverse = np.linalg.inv(sums.products * np.multiply.outer(deviations, deviations) + np.eye(4))
    scaled = sides * deviations[:, None]
    solved = inverse @ scaled
    squares -= (scaled[:, :, [0, 0, 1]] * solved[:, :, [0, 1, 1]]).sum(axis=1)
    volumes = -np.linalg.slogdet(inverse)[1] / 2.0

    a = AMPLITUDES
    before = -prior.scores * (np.log(a) + prior.scale / (2.0 * a**2))
    before -= np.log(np.exp(before - before.max()).sum()) + before.max()
    log_densities = squares @ np.stack([-0.5 / a**2, 1.0 / a, np.full_like(a, -0.5)])
    log_densities += before - sums.counts[:, None] * np.log(a)
    most = log_densities.max(axis=1)
    densities = np.exp(log_densities - most[:, None])
    totals = densities.sum(axis=1)
    values: NDArray[np.float64] = most + np.log(totals) - volumes

    # By the means over the amplitude, given the scores, of 1/a^2 and 1/a. The inverse of the whole covariance changes
    # with log D_i by -2 z_i z_i', z being what is solved.
    precision, root = (densities @ np.stack([1.0 / a**2, 1.0 / a], axis=1) / totals[:, None]).T
    left = sides - sums.products @ (deviations[:, None] * solved)
    by_level = precision * left[:, 0, 0] - root * left[:, 0, 1]
    by_slopes = root[:, None] * left[:, 1:, 0] - left[:, 1:, 1]
    of_y, of_means = solved[:, :, 0], solved[:, :, 1]
    by_deviations = precision[:, None] * of_y**2 - 2.0 * root[:, None] * of_y * of_means + of_means**2
    by_deviations += np.diagonal(inverse, axis1=1, axis2=2) - 1.0
    by_scale = -prior.scores * prior.scale / 2.0 * (precision - np.exp(before) @ (1.0 / a**2))
    rank, similarity, words = by_slopes.sum(axis=0)
    level_deviation, *slope_deviations, words_deviation = by_deviations.sum(axis=0)
    by_slope_deviation = sum(slope_deviations)
    return values, np.array(
        [by_level.sum(), level_deviation, rank, similarity, by_slope_deviation, words, words_deviation, by_scale.sum()]
    )


def fitted(evidence: Sequence[Evidence]) -> TrendPrior:
    """Return the prior that these requests make likely, to a hundredth of its `SCATTER`. Of a scorer with a few grades
    the slopes alone: its level and amplitude are those of its grades."""
    graded = sum(one.graded for one in evidence) > len(evidence) / 2
    start, sums = _coded(replace(DEFAULT_PRIOR, scores=LEARNED_SCORES)), Sums.of(evidence)
    free = np.array([not graded, not graded, True, True, not graded, True, not graded, not graded])
    scatter = SCATTER[free]

    def decoded(unusual: NDArray[np.float64]) -> TrendPrior:
        code = start.copy()
        code[free] += scatter * unusual
        return _decoded(code, DEFAULT_PRIOR.scores if graded else LEARNED_SCORES)

    def cost(unusual: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        likelihoods, gradient = _likelihoods(decoded(unusual), sums)
        return float(unusual @ unusual / 2.0 - likelihoods.sum()), unusual - scatter * gradient[free]

    return decoded(_minimum(cost, len(scatter)))


def _minimum(cost: Cost, size: int) -> NDArray[np.float64]:
    """Return where a function is least, searched from 0 on by the method of Broyden, Fletcher, Goldfarb and Shanno."""
    at, inverse = np.zeros(size), np.eye(size)
    value, gradient = cost(at)
    for number in range(STEPS):
        step = -inverse @ gradient
        step *= min(1.0, LONGEST / max(float(np.linalg.norm(step)), 1e-300))
        slope = float(gradient @ step)
        if slope > -CLOSE:
            break
        below, there = cost(at + step)
        while not below <= value + 1e-4 * slope:
            step, slope = step / 2.0, slope / 2.0
            if slope > -CLOSE:
                return at
            below, there = cost(at + step)
        change = there - gradient
        at, value, gradient = at + step, below, there
        if (curvature := float(change @ step)) > 0.0:
            if number == 0:
                inverse *= curvature / float(change @ change)
            left = np.eye(size) - np.multiply.outer(step, change) / curvature
            inverse = left @ inverse @ left.T + np.multiply.outer(step, step) / curvature
    return at


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
