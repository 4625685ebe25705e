"""The scale on which scores are believed: probabilities in, log-odds inside, probabilities out."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

FLOOR, CEILING = 1e-7, 0.25
NOTHING = 1e-9  # so that documents believed worthless keep their order


def resolution(scores: Iterable[float]) -> float:
    """How close to 0 or 1 a score is taken at its word: half the smallest distance from an end that was seen.

    So an exact 0 or 1 of a coarse scorer sits half a step away from its neighbours, while a continuous scorer is
    hardly touched. Between 1e-7 and 0.25.
    """
    distances = [distance for score in scores for distance in (score, 1.0 - score) if distance > 0]
    return min(max(min(distances, default=0.0) / 2, FLOOR), CEILING)


def log_odds(scores: NDArray[np.float64], clip: float) -> NDArray[np.float64]:
    """log(p / (1 - p)) of scores held between `clip` and 1 - `clip`."""
    held = np.clip(scores, clip, 1.0 - clip)
    return np.log(held) - np.log1p(-held)


def probability(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)), without overflow."""
    values: NDArray[np.float64] = 0.5 * (1.0 + np.tanh(0.5 * log_odds))
    return values


def expected_probability(mean: NDArray[np.float64], variance: NDArray[np.float64]) -> NDArray[np.float64]:
    """E[sigmoid(x)] for x ~ N(mean, variance), by the probit approximation: off by at most 0.02."""
    return probability(mean / np.sqrt(1.0 + math.pi / 8.0 * variance))


def stretched(expected: NDArray[np.float64], clip: float) -> NDArray[np.float64]:
    """Expected scores back on the scale of the scores: `log_odds` pressed them between `clip` and 1 - `clip`.

    What is believed to score 0 lies at `clip` before and near 0 after, in the same order.
    """
    values: NDArray[np.float64] = np.maximum((expected - clip) / (1.0 - 2.0 * clip), NOTHING * expected)
    return np.minimum(values, 1.0)
