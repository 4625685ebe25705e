"""Estimate a set's loss and recall, the gain of calls, and the chance of an answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.acquisition import cutoff
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.capacity import LIKELY, Capacity
from boundarymorph.selection.pool import Pool

FURTHER_CALLS = (10, 50)  # numbers of calls whose expected gain is reported
# The recall of independent documents is too small. These are added to its log-odds, for the expectation and for an
# interval that covers four sets in five from 25 scores on (docs/results.md).
EXPECTED, LOWER, UPPER = 0.4, -0.7, 2.0
# Standard deviations that are added to the expected loss before a session stops by it. Unlikely documents of great
# worth skew the loss, and sessions would stop where it is underestimated (docs/results.md).
CAUTION = 3.0
CERTAIN = 1e-4  # distance of an uncertain recall from 0 and 1
# The number of missed documents beyond the expected ones if nothing was read, and the shape of the gamma distribution
# of the expected number. Chosen on five systematic reviews (docs/results.md).
STRAY, SHAPE = 1.0, 2.0
COVERED = 0.8  # probability that an interval of the recall covers


@dataclass(frozen=True, slots=True)
class Recall:
    """The share of the relevant documents that a set holds.

    Attributes:
        expected: The expectation.
        low: The lower end of an interval of 80 % coverage.
        high: The upper end.
        probability: The probability that the share reaches the target; None without a target.
    """

    expected: float
    low: float
    high: float
    probability: float | None = None

    @classmethod
    def estimate(cls, probabilities: NDArray[np.float64], inside: NDArray[np.bool_]) -> Recall | None:
        """Estimate the recall of a set.

        Args:
            probabilities: (N,) probabilities that each document is relevant.
            inside: (N,) mask of the set.

        Returns:
            The recall; None if no document can be relevant.
        """
        held, missed = float(probabilities[inside].sum()), float(probabilities[~inside].sum())
        if held + missed == 0.0:
            return None
        if missed == 0.0:
            return cls(1.0, 1.0, 1.0)
        share = min(max(held / (held + missed), CERTAIN), 1.0 - CERTAIN)
        odds = share / (1.0 - share) * np.exp([EXPECTED, LOWER, UPPER])
        return cls(*(odds / (1.0 + odds)).tolist())


@dataclass(frozen=True, slots=True)
class Search:
    """Documents found by reading, and documents that were not read.

    The number of missed documents has a Poisson distribution whose mean has a gamma distribution: a negative binomial
    distribution. Its expectation is the sum of the probabilities, plus a share of `STRAY` for documents that no score
    points to.

    Attributes:
        found: The number of relevant documents among those that were read.
        unread: (n,) probabilities that the others are relevant.
        count: The number of all documents.
    """

    found: int
    unread: NDArray[np.float64]
    count: int

    @property
    def missed(self) -> float:
        """The expected number of missed documents."""
        return float(self.unread.sum()) + STRAY * len(self.unread) / self.count

    def recall(self, wanted: float) -> Recall:
        """Return the share of relevant documents that is found, 1 if none exists.

        Its `probability` is the probability that the share is at least `wanted`.
        """
        if not self.unread.size:
            return Recall(1.0, 1.0, 1.0, 1.0)
        missed, steps = self.missed, np.arange(len(self.unread))
        ratios = (steps + SHAPE) / (steps + 1.0) * (missed / (SHAPE + missed))
        at_most = np.cumsum(np.cumprod(np.concatenate([[1.0], ratios])))  # 0, 1, ..., n missed documents
        at_most /= at_most[-1]
        low, high = (
            self._share(float(np.searchsorted(at_most, share))) for share in ((1.0 + COVERED) / 2, (1.0 - COVERED) / 2)
        )
        allowed = math.floor(self.found * (1.0 - wanted) / wanted + CERTAIN)
        expected = self._share(missed) if self.found else float(at_most[0] > 0.5)  # 1 if nothing exists to find
        return Recall(expected, low, high, float(at_most[min(allowed, len(self.unread))]))

    def _share(self, missed: float) -> float:
        return self.found / (self.found + missed) if self.found + missed > 0.0 else 1.0

    def gains(self) -> NDArray[np.float64]:
        """Return the expected gain in recall of reading 1, 2, ... further documents."""
        return _sums(self.unread) / max(self.found + self.missed, 1.0)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The expected quality of a set.

    Attributes:
        loss: `Session.expected_loss`, clipped to 1.
        gains: The expected gain by number of further calls, as a share of the best set's expected relevance.
        recall: The expected recall; None without `min_relevance`.
        answerable: The probability that some document scores enough; None if it cannot be estimated.
    """

    loss: float
    gains: dict[int, float]
    recall: Recall | None = None
    answerable: float | None = None


def gains_of_a_set(
    shares: NDArray[np.float64], scores: NDArray[np.float64], scored: NDArray[np.bool_], capacity: Capacity, loss: float
) -> NDArray[np.float64]:
    """Return the expected gain of 1, 2, ... further calls.

    Gains are shares of the best set's expected relevance. The gain of a call is the gain of knowing its own document's
    score: the document may join the set, or leave it. Evidence about other documents is not counted.

    Args:
        shares: (m, N) probabilities of each document's outcomes.
        scores: (m, N) scores of the outcomes.
        scored: (N,) mask of scored documents.
        capacity: The capacity for the documents.
        loss: The expected loss.
    """
    across, scale = _across(shares, scores, capacity, loss)
    worth = np.einsum("mn,mn->n", shares, across)
    worth[scored] = 0.0
    return _sums(worth) * scale


def cautious_loss_of_a_set(
    shares: NDArray[np.float64], scores: NDArray[np.float64], scored: NDArray[np.bool_], capacity: Capacity, loss: float
) -> float:
    """Return the expected loss plus `CAUTION` times its standard deviation.

    The arguments are as for `gains_of_a_set`.
    """
    return loss + CAUTION * deviation_of_loss(shares, scores, scored, capacity, loss)


def deviation_of_loss(
    shares: NDArray[np.float64], scores: NDArray[np.float64], scored: NDArray[np.bool_], capacity: Capacity, loss: float
) -> float:
    """Return the standard deviation of a set's loss, a share of the best set's relevance.

    A set loses where the outcomes of its documents fall below the boundary, and where outcomes of other documents rise
    above it. The documents are independent, so their variances add up: a document that comes in with a small
    probability p and is worth s adds p s^2. The arguments are as for `gains_of_a_set`.
    """
    across, scale = _across(shares, scores, capacity, loss)
    variances = np.einsum("mn,mn,mn->n", shares, across, across) - np.square(np.einsum("mn,mn->n", shares, across))
    return scale * math.sqrt(max(float(variances[~scored].sum()), 0.0))


def _across(
    shares: NDArray[np.float64], scores: NDArray[np.float64], capacity: Capacity, loss: float
) -> tuple[NDArray[np.float64], float]:
    """Return how far each outcome moves its document across the boundary, and a scale.

    Returns:
        (m, N) distances, 0 where the document stays on its side; and one over the best set's expected relevance.
    """
    mean = np.einsum("mn,mn->n", shares, scores)
    margin, inside = capacity.margin(mean)
    across = scores - (mean - margin + cutoff(margin, inside))
    across *= np.where(inside, -1.0, 1.0)
    chosen = float(mean[inside].sum())
    return np.maximum(across, 0.0, out=across), (1.0 - loss) / chosen if chosen > 0 else 0.0


def gains_of_doubt(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the expected gain in F1 of 1, 2, ... further calls.

    The set has all documents with a probability above one half.

    Args:
        probabilities: (N,) probabilities that each document is relevant.
    """
    size = np.count_nonzero(probabilities > LIKELY) + float(probabilities.sum())
    return _sums(np.minimum(probabilities, 1.0 - probabilities)) * (2.0 / size if size > 0 else 0.0)


def _sums(worth: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums of the 1, 2, ... largest values, up to as many as are reported."""
    most = max(FURTHER_CALLS)
    lost = -worth if len(worth) <= most else np.partition(-worth, most - 1)[:most]
    return np.cumsum(-np.sort(lost))


def gains_by_calls(gains: NDArray[np.float64], loss: float, calls: Sequence[int] = FURTHER_CALLS) -> dict[int, float]:
    """Return the gains by number of calls, clipped to the expected loss."""
    return {n: min(loss, float(gains[min(n, len(gains)) - 1])) if len(gains) else 0.0 for n in calls}


def expected_f1(shares: NDArray[np.float64]) -> float:
    """Return the expected F1 of the set of all documents with a probability above one half.

    If the set is empty, it is the probability that no document is relevant.
    """
    likely = shares > LIKELY
    if not likely.any():
        return float(np.prod(1.0 - shares))
    return float(2.0 * shares[likely].sum() / (np.count_nonzero(likely) + shares.sum()))


# Whether a pool has an answer: the probability that at least one of its documents scores enough. The numbers were
# chosen on two collections of docs/results.md, cystic_fibrosis and trec_dl19_pool, and are reported on the two others
# (`python -m load_tests.studies answerable`): by logistic regression where no scored document was an answer, after 5 to
# 50 scores. A third of the questions had lost every document that the scorer or people accept, and a sixth all but one.
ENOUGH = 0.5  # the score of an answer, for requests without `min_relevance`
LEVEL, SLOPE = -2.1, 0.37  # log-odds where one answer is expected, and slope by the log of the expected number
# Log-odds before any score, and slope by the distance of the best similarities from the pool's mean.
LEVEL_BEFORE, SLOPE_BEFORE = -0.2, 4.5
BEST, FARTHEST = 10, 0.3  # number of best similarities, and the largest distance, close to the largest observed
NEVER_CERTAIN = 1e-12  # distance of an uncertain probability from 0 and 1


def answerable_after(belief: Belief) -> float:
    """Return the probability that the pool has an answer, once something is scored.

    A scored document that scores enough is proof. Otherwise, if the others were independent given the scores, and L
    were the sum of -log(1 - p), none would score enough with probability exp(-L). But neighbours have similar scores,
    and doubt about the trend affects all of them, so L counts only by its logarithm: the log-odds are `LEVEL` plus
    `SLOPE` times log L.

    Args:
        belief: The belief about the event that each document scores enough.
    """
    if (belief.mean[belief.scored] > 0.0).any():
        return 1.0
    shares = np.minimum(belief.mean[~belief.scored], 1.0 - NEVER_CERTAIN)
    expected = -float(np.log1p(-shares).sum())
    return 0.0 if expected == 0.0 else _logistic(LEVEL + SLOPE * math.log(expected))


def answerable_before(pool: Pool, shares: NDArray[np.float64], usual: NDArray[np.float64]) -> float:
    """Return the probability that the pool has an answer, before any score.

    The level of the scores is unknown then, so the similarities of the list decide. The odds of an answer differ from
    the usual ones by as much as the odds of the likeliest document.

    Args:
        pool: The pool.
        shares: (n,) probabilities that each document scores enough.
        usual: (n,) probabilities that each document scores `ENOUGH`.
    """
    if not shares.size:
        return 0.0
    similarities = np.sort(pool.embeddings @ pool.query)[::-1]
    above = float(similarities[:BEST].mean() - similarities.mean())
    rarer = _log_odds(float(shares.max())) - _log_odds(float(usual.max()))
    return _logistic(LEVEL_BEFORE + SLOPE_BEFORE * min(above, FARTHEST) + rarer)


def _log_odds(share: float) -> float:
    held = min(max(share, NEVER_CERTAIN), 1.0 - NEVER_CERTAIN)
    return math.log(held) - math.log1p(-held)


def _logistic(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-log_odds))
