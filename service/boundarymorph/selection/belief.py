"""Represent beliefs about the scores of all documents, and the log-odds scale.

The posterior is Gaussian on that scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """The belief about the scores of N documents at one moment of a session.

    Attributes:
        mean: (N,) float64 expected scores; the score of a scored document.
        std: (N,) float64 standard deviations; 0 for a scored document.
        scored: (N,) mask of scored documents.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    scored: NDArray[np.bool_]

    def subset(self, documents: NDArray[np.intp]) -> Belief:
        """Return the belief about a subset of the documents."""
        return Belief(self.mean[documents], self.std[documents], self.scored[documents])

    @classmethod
    def from_probabilities(
        cls, shares: NDArray[np.float64], observed: NDArray[np.intp], happened: NDArray[np.bool_]
    ) -> Belief:
        """Return the belief about an event with (N,) probabilities.

        Args:
            shares: (N,) probabilities of the event.
            observed: (t,) positions of the documents for which the event was observed.
            happened: (t,) whether the event happened for them.
        """
        shares = np.clip(shares, 0.0, 1.0)
        return cls.from_observations(shares, np.sqrt(shares * (1.0 - shares)), observed, happened.astype(np.float64))

    @classmethod
    def from_observations(
        cls,
        mean: NDArray[np.float64],
        std: NDArray[np.float64],
        observed: NDArray[np.intp],
        values: NDArray[np.float64],
    ) -> Belief:
        """Return the belief with this mean and std, changed in place for observed documents.

        Args:
            mean: (N,) expected scores.
            std: (N,) standard deviations.
            observed: (t,) positions of the observed documents.
            values: (t,) their values.
        """
        scored = np.zeros(len(mean), dtype=np.bool_)
        mean[observed] = values
        std[observed] = 0.0
        scored[observed] = True
        return cls(mean, std, scored)


def share_scores(belief: Belief, texts: NDArray[np.intp]) -> Belief:
    """Return the belief with each score copied to all documents of the same text.

    Args:
        belief: The belief about N documents.
        texts: (N,) numbers, equal for equal texts.
    """
    scores = np.full(int(texts.max(initial=0)) + 1, np.nan)
    scores[texts[belief.scored]] = belief.mean[belief.scored]
    of_text = scores[texts]
    copies = ~belief.scored & ~np.isnan(of_text)
    if not copies.any():
        return belief
    return Belief(np.where(copies, of_text, belief.mean), np.where(copies, 0.0, belief.std), belief.scored | copies)


def first_of_each(documents: NDArray[np.intp], texts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the first document of each text among these, in their order."""
    return documents[np.sort(np.unique(texts[documents], return_index=True)[1])]


FLOOR, CEILING = 1e-7, 0.25
NOTHING = 1e-9  # share of a score that keeps the order of documents expected to score 0
NODES = np.linspace(-4.0, 4.0, 15)  # evenly spaced: between wider nodes a score could rise from 0 to 1
NODE_LINES = np.stack([NODES, np.full_like(NODES, -1.0)], axis=1).astype(np.float32)
NODE_WEIGHTS = np.exp(-np.square(NODES) / 2) / np.exp(-np.square(NODES) / 2).sum()
BLOCK = 1_024  # documents whose outcomes are computed together; this many fit in the processor's cache
LARGEST, PER_UNIT = 12, 100  # the table of the normal distribution: its largest deviation, and entries per unit
TRIALS = 33  # values of a cut to try between two levels
LOGISTIC = math.pi / math.sqrt(3.0)  # inverse scale of the logistic distribution with variance 1
BELOW = np.array(  # the normal distribution function from -LARGEST on, for interpolation
    [math.erfc((LARGEST - step / PER_UNIT) / math.sqrt(2.0)) / 2.0 for step in range(2 * LARGEST * PER_UNIT + 2)]
)
Number = TypeVar("Number", bound=np.floating)


@dataclass(frozen=True, slots=True)
class Scale:
    """The log-odds log(p / (1 - p)) of scores clipped to `clip` and 1 - `clip`.

    Attributes:
        clip: The smallest distance of a clipped score from 0 and 1.
        low: `clip` if a score was clipped at 0, else 0. The inverse then maps `clip` back to 0, and is the logistic
            function again from 2 * `clip` on.
        high: The same at 1.
        levels: The ascending scores of a scorer with a few grades (fewer than half of its scores differ); empty for
            other scorers.
        cuts: For each level but the lowest, the log-odds above which the scorer gives it.
    """

    clip: float = FLOOR
    low: float = 0.0
    high: float = 0.0
    levels: tuple[float, ...] = ()
    cuts: tuple[float, ...] = ()

    @classmethod
    def from_scores(cls, scores: Collection[float]) -> Scale:
        """Choose the scale by the scores.

        `clip` is half the smallest distance of a score from 0 or 1 that is not 0 itself, between 1e-7 and 0.25. A 0 or
        1 of a coarse scorer is then half a step away from the next score, and a continuous scorer is hardly clipped at
        all.
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
        """Return the scores of log-odds, in the type of the log-odds."""
        return self._scores(-log_odds)

    def _scores(self, against: NDArray[Number]) -> NDArray[Number]:
        """Return the scores of negated log-odds, and overwrite the array."""
        with np.errstate(over="ignore"):
            probabilities: NDArray[Number] = np.exp(against, out=against)
        probabilities += 1.0
        np.divide(1.0, probabilities, out=probabilities)  # numpy's reciprocal takes twice as long
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
        """Return the (N,) expected scores and their (N,) variances, ignoring levels.

        The log-odds of each document are a mixture of q normal distributions. The expectations are a quadrature of 15
        nodes in float32. Errors of the expectation are at most 0.004 up to a standard deviation of 4, and 0.01 up to 6.
        With the largest `clip` they are at most 0.015 up to a standard deviation of 2.

        Args:
            weights: (q,) weights of the mixture.
            means: (q, N) means.
            variances: (q, N) variances.
        """
        expected, variance = np.empty((2, means.shape[1]))
        shares = np.multiply.outer(NODE_WEIGHTS, weights).astype(np.float32).ravel()
        for start in range(0, means.shape[1], BLOCK):
            block = slice(start, start + BLOCK)
            against = _log_odds_against(means[:, block], np.sqrt(variances[:, block]))
            scores = self._scores(against).reshape(len(shares), -1)
            centre = shares @ scores
            scores -= centre
            expected[block], variance[block] = centre, shares @ np.square(scores, out=scores)
        return expected, variance

    def outcomes(
        self,
        weights: NDArray[np.float64],
        means: NDArray[np.float64],
        variances: NDArray[np.float64],
        *,
        heavy: bool = False,
    ) -> tuple[NDArray[np.float64], NDArray[np.floating]]:
        """Return a discrete approximation of each document's score.

        The outcomes are the levels, or 15 nodes of each member of the mixture.

        Args:
            weights: As for `moments`.
            means: As for `moments`.
            variances: As for `moments`.
            heavy: Take the log-odds behind levels as logistic instead of normal, so that an unlikely level stays
                possible.

        Returns:
            The probabilities and the scores of m outcomes, both of a shape that broadcasts to (m, N).
        """
        deviations = np.sqrt(variances)
        if self.levels:
            reached = self._reached(weights, means, deviations, logistic_share if heavy else normal_share)
            return -np.diff(reached, axis=0, prepend=1.0, append=0.0), np.array(self.levels)[:, None]
        scores = self._scores(_log_odds_against(means, deviations))
        return np.outer(NODE_WEIGHTS, weights).reshape(-1, 1), scores.reshape(-1, means.shape[1])

    def reach_probabilities(
        self, least: float, weights: NDArray[np.float64], means: NDArray[np.float64], variances: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the (N,) probabilities that each score is at least `least`.

        The other arguments are as for `moments`.
        """
        deviations = np.sqrt(variances)
        if least <= (self.levels[0] if self.levels else 0.0):
            return np.ones(means.shape[1])
        if least > 1.0:
            return np.zeros(means.shape[1])
        if self.levels and least <= self.levels[-1]:
            place = int(np.searchsorted(self.levels, least))
            reached: NDArray[np.float64] = self._reached(weights, means, deviations, normal_share)[place - 1]
            return reached
        held = min(max(least, least / 2.0 + self.low), (1.0 + least) / 2.0 - self.high)  # the inverse of `scores`
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
        """Return the scale with estimated cuts.

        With these cuts, the expected number of scores at each level equals the observed number.

        Args:
            scores: (t,) observed scores.
            weights: (q,) weights of the members.
            means: (q, t) each member's prediction of a score's log-odds from the scores before it.
            deviations: (q, t) standard deviations of these predictions.
        """
        marks = self.log_odds(np.array(self.levels)).tolist()
        cuts = []
        for level, low, high in zip(self.levels[1:], marks, marks[1:], strict=False):
            trials = np.linspace(low, high, TRIALS)
            reached = normal_share((means[:, :, None] - trials) / deviations[:, :, None]).sum(axis=1)
            cuts.append(float(np.interp(-np.count_nonzero(scores >= level), -(weights @ reached), trials)))
        return replace(self, cuts=tuple(cuts))

    def _reached(
        self,
        weights: NDArray[np.float64],
        means: NDArray[np.float64],
        deviations: NDArray[np.float64],
        share: Callable[[NDArray[np.floating]], NDArray[np.float64]],
    ) -> NDArray[np.float64]:
        """Return the (levels - 1, N) probabilities of reaching each level but the lowest.

        `share` is a distribution function with mean 0 and variance 1.
        """
        return np.stack([weights @ share((means - cut) / deviations) for cut in self.cuts])


def _log_odds_against(means: NDArray[np.float64], deviations: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the (15, q, N) negated log-odds at the nodes of the quadrature."""
    lines = np.concatenate([deviations, means], dtype=np.float32, casting="same_kind").reshape(2, -1)
    against: NDArray[np.float32] = NODE_LINES @ lines  # one pass over the result instead of two
    return against.reshape(len(NODES), *means.shape)


def normal_share(deviations: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the standard normal distribution function."""
    return interpolated(BELOW, np.clip(deviations, -LARGEST, LARGEST) * PER_UNIT + LARGEST * PER_UNIT)


def interpolated(table: NDArray[np.float64], places: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the values of a table at fractional places, from 0 to below its last one.

    This is `np.interp` in a sixth of the time.
    """
    below = places.astype(np.intp)
    low = table.take(below)
    values: NDArray[np.float64] = low + (places - below) * (table.take(below + 1) - low)
    return values


def logistic_share(deviations: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the logistic distribution function with mean 0 and variance 1."""
    shares: NDArray[np.float64] = 0.5 + 0.5 * np.tanh(LOGISTIC / 2.0 * deviations)
    return shares
