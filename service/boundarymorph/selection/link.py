"""The scale on which scores are believed: scores in, log-odds inside, scores out."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

FLOOR, CEILING = 1e-7, 0.25
NOTHING = 1e-9  # so that documents believed worthless keep their order
NODES = np.linspace(-4.0, 4.0, 15)  # evenly spaced, as a score turns from 0 to 1 between two of wider ones
NODE_WEIGHTS = np.exp(-np.square(NODES) / 2) / np.exp(-np.square(NODES) / 2).sum()
BLOCK = 1_024  # documents whose outcomes are looked at together, so that they stay in the cache
DEVIATIONS = np.linspace(-12.0, 12.0, 2_401)
TRIALS = 33  # of a cut between two levels
BELOW = np.array([math.erfc(-z / math.sqrt(2.0)) / 2.0 for z in DEVIATIONS])  # normal distribution, to be interpolated
Number = TypeVar("Number", bound=np.floating)


@dataclass(frozen=True, slots=True)
class Scale:
    """Log-odds log(p / (1 - p)) of scores held between `clip` and 1 - `clip`.

    low, high: `clip` where scores were held at 0 or at 1, else 0. There the way back stretches: what was held at `clip`
    is worth nothing again, and half a step further everything is as it is.
    levels: the scores of a scorer with a few grades (fewer than half of its scores differ), ascending; empty for any
    other. cuts: for each level but the lowest, the log-odds from which on the scorer gives it.
    """

    clip: float = FLOOR
    low: float = 0.0
    high: float = 0.0
    levels: tuple[float, ...] = ()
    cuts: tuple[float, ...] = ()

    @classmethod
    def of(cls, scores: Collection[float]) -> Scale:
        """How close to 0 or 1 a score is taken at its word: half the smallest distance from an end that was seen.

        So an exact 0 or 1 of a coarse scorer sits half a step away from its neighbours, while a continuous scorer is
        hardly touched. Between 1e-7 and 0.25.
        """
        distances = [distance for score in scores for distance in (score, 1.0 - score) if distance > 0]
        clip = min(max(min(distances, default=0.0) / 2, FLOOR), CEILING)
        low = clip if min(scores, default=0.5) < clip else 0.0
        high = clip if max(scores, default=0.5) > 1.0 - clip else 0.0
        levels = tuple(sorted(set(scores)))
        return cls(clip, low, high, levels if 1 < len(levels) < len(scores) / 2 else ())

    def log_odds(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        held = np.clip(scores, self.clip, 1.0 - self.clip)
        return np.log(held) - np.log1p(-held)

    def scores(self, log_odds: NDArray[Number]) -> NDArray[Number]:
        """The way back, in the type of the log-odds."""
        return self._scores(-log_odds)

    def _scores(self, against: NDArray[Number]) -> NDArray[Number]:
        """The scores of negated log-odds, whose array is overwritten."""
        with np.errstate(over="ignore"):
            probabilities: NDArray[Number] = np.exp(against, out=against)
        probabilities += 1.0
        np.reciprocal(probabilities, out=probabilities)
        if not (self.low or self.high):
            return probabilities
        stretched = np.maximum(2.0 * (probabilities - self.low), NOTHING * probabilities)
        scores: NDArray[Number] = np.minimum(probabilities, stretched)
        np.maximum(scores, 2.0 * (probabilities + self.high) - 1.0, out=scores)
        np.minimum(scores, 1.0, out=scores)
        return scores

    def moments(
        self, weights: NDArray[np.float64], means: NDArray[np.float64], variances: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(N,) the expected score and its variance, for log-odds that are a mixture, with weights (q,), of normal ones
        with (q, N) means and variances, of a scorer without levels.

        By 15 outcomes of each member, in float32. Expectations are within 0.004 up to a deviation of 4 and 0.01 up to
        6; with `clip` at its largest, where the way back bends most, within 0.015 up to a deviation of 2.
        """
        expected, variance = np.empty((2, means.shape[1]))
        shares = np.outer(NODE_WEIGHTS, weights).ravel().astype(np.float32)
        for start in range(0, means.shape[1], BLOCK):
            block = slice(start, start + BLOCK)
            against = _log_odds_against(means[:, block], np.sqrt(variances[:, block]))
            scores = self._scores(against).reshape(len(shares), -1)
            centre = shares @ scores
            scores -= centre
            expected[block], variance[block] = centre, shares @ np.square(scores, out=scores)
        return expected, variance

    def outcomes(
        self, weights: NDArray[np.float64], means: NDArray[np.float64], variances: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.floating]]:
        """Shares and scores of m outcomes that stand for all that may come, (m, N) or of a shape that broadcasts to
        it: the levels, or 15 outcomes of each member."""
        deviations = np.sqrt(variances)
        if self.levels:
            reached = self._reached(weights, means, deviations)
            return -np.diff(reached, axis=0, prepend=1.0, append=0.0), np.array(self.levels)[:, None]
        scores = self._scores(_log_odds_against(means, deviations))
        return np.outer(NODE_WEIGHTS, weights).reshape(-1, 1), scores.reshape(-1, means.shape[1])

    def reaching(
        self, least: float, weights: NDArray[np.float64], means: NDArray[np.float64], variances: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """(N,) how likely each score is to be `least` or more; for the arguments see `moments`."""
        deviations = np.sqrt(variances)
        if least <= (self.levels[0] if self.levels else 0.0):
            return np.ones(means.shape[1])
        if self.levels and least <= self.levels[-1]:
            place = int(np.searchsorted(self.levels, least))
            reached: NDArray[np.float64] = self._reached(weights, means, deviations)[place - 1]
            return reached
        held = min(max(least, least / 2.0 + self.low), (1.0 + least) / 2.0 - self.high)  # `scores` the other way
        with np.errstate(divide="ignore"):
            mark = np.log(held) - np.log1p(-held)
        shares: NDArray[np.float64] = weights @ normal_share((means - mark) / deviations)
        return shares

    def cut(
        self,
        scores: NDArray[np.float64],
        weights: NDArray[np.float64],
        means: NDArray[np.float64],
        deviations: NDArray[np.float64],
    ) -> Scale:
        """The same with cuts by which of t scores as many were to be expected at each level as there were. means,
        deviations: (q, t) of what each member expected of their log-odds when it knew those before them."""
        marks = self.log_odds(np.array(self.levels)).tolist()
        cuts = []
        for level, low, high in zip(self.levels[1:], marks, marks[1:], strict=False):
            trials = np.linspace(low, high, TRIALS)
            reached = normal_share((means[:, :, None] - trials) / deviations[:, :, None]).sum(axis=1)
            cuts.append(float(np.interp(-np.count_nonzero(scores >= level), -(weights @ reached), trials)))
        return replace(self, cuts=tuple(cuts))

    def _reached(
        self, weights: NDArray[np.float64], means: NDArray[np.float64], deviations: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """(levels - 1, N): the probability of each level but the lowest, or of a higher one."""
        return np.stack([weights @ normal_share((means - cut) / deviations) for cut in self.cuts])


def _log_odds_against(means: NDArray[np.float64], deviations: NDArray[np.float64]) -> NDArray[np.float32]:
    """(15, q, N) negated log-odds: each mean with NODES times its deviation, which have the shares NODE_WEIGHTS."""
    against = np.multiply.outer(NODES.astype(np.float32), deviations.astype(np.float32))
    against -= means.astype(np.float32)
    return against


def normal_share(deviations: NDArray[np.floating]) -> NDArray[np.float64]:
    """The share of a standard normal distribution that is below."""
    shares: NDArray[np.float64] = np.interp(deviations, DEVIATIONS, BELOW)
    return shares
