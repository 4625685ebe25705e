"""Choose the documents that are worth the next cross-encoder calls, alone or in rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from math import isqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.belief import Belief, interpolated
from boundarymorph.selection.capacity import Capacity, top_k
from boundarymorph.selection.pool import Pool
from boundarymorph.selection.posterior import BeliefSource, Posterior

HEAD_LOOKS = 20  # documents at the head to ask before searching the whole ranking
# Small scores are noise if their odds differ by less than a factor of ALIKE. Fewer than FEWEST_ALIKE scores may be
# alike by chance, and MOST_ALIKE or more of them are informative.
SMALL, ALIKE, FEWEST_ALIKE, MOST_ALIKE = 0.05, 4.0, 5, 20
# log(phi(z) - z Phi(-z)) at steps of 1 / PER_UNIT, for interpolation: numpy has no normal distribution function.
LARGEST, PER_UNIT = 37, 100
LOG_EXCESS = np.array(
    [
        math.log(math.exp(-z * z / 2) / math.sqrt(2 * math.pi) - z * math.erfc(z / math.sqrt(2)) / 2)
        for z in (step / PER_UNIT for step in range(LARGEST * PER_UNIT + 2))
    ]
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A document to score next.

    Attributes:
        document: The position of the document.
        counterpart: The other document of the contested pair; None without a pair.
        value: The optimum of the rule; None if the rule did not apply.
    """

    document: int
    counterpart: int | None
    value: float | None


class Acquisition(Protocol):
    """A rule that reads the belief and names one unscored document."""

    def choose(self, belief: Belief, incumbents: NDArray[np.bool_], step: int) -> Choice:
        """Return the next document to score; at least one document is unscored.

        Args:
            belief: The belief about N documents.
            incumbents: (N,) mask of the current set, which is neither empty nor the whole pool.
            step: The number of documents scored so far.
        """

    def shortlist(self, belief: Belief, incumbents: NDArray[np.bool_], n: int) -> list[int]:
        """Return at most n unscored documents likely to be chosen soon, likeliest first.

        The list is a hint and decides nothing.
        """


@dataclass(frozen=True, slots=True)
class BoundaryGap:
    """Ask where the standardized boundary gap is smallest (paper eq. argmin).

    The gap between incumbent j and challenger i is (mu_j - mu_i) / (sigma_j + sigma_i). The less certain document of
    the best pair is asked.

    The search is exact in O(N): numerator and denominator separate over j and i, so Dinkelbach's method finds the
    minimal ratio as the root of F(lambda) = min_j (mu_j - lambda sigma_j) - max_i (mu_i + lambda sigma_i), in two or
    three passes. Pairs of two scored documents are left out. Ties go to the earlier incumbent, then to the earlier
    challenger. With equal sigmas the incumbent is asked.
    """

    def choose(self, belief: Belief, incumbents: NDArray[np.bool_], step: int) -> Choice:
        mean, std = belief.mean, belief.std
        inside = np.flatnonzero(incumbents)
        incumbent_scored = belief.scored[inside]
        open_inside, scored_inside = inside[~incumbent_scored], inside[incumbent_scored]
        open_mean, open_std = mean[open_inside], std[open_inside]
        outside_mean = np.where(incumbents | belief.scored, -np.inf, mean)
        scored_outside = np.flatnonzero(belief.scored & ~incumbents)

        scored_incumbent = int(scored_inside[np.argmin(mean[scored_inside])]) if scored_inside.size else None
        scored_challenger = int(scored_outside[np.argmax(mean[scored_outside])]) if scored_outside.size else None
        optimistic = np.empty_like(mean)

        ratio = np.inf
        pair: tuple[int, int] | None = None
        while True:
            trial = ratio if pair else 0.0
            np.multiply(std, trial, out=optimistic)
            optimistic += outside_mean
            challenger: int | None = int(optimistic.argmax())
            if optimistic[challenger] == -np.inf:
                challenger = None
            incumbent = int(open_inside[np.argmin(open_mean - trial * open_std)]) if open_inside.size else None

            best = _least(
                ((incumbent, challenger), (incumbent, scored_challenger), (scored_incumbent, challenger)),
                mean,
                std,
                trial,
            )
            found = float((mean[best[0]] - mean[best[1]]) / (std[best[0]] + std[best[1]]))
            if pair is not None and found > ratio:
                break
            converged = found == ratio
            pair, ratio = best, found
            if converged:
                break
        incumbent_of, challenger_of = pair
        if std[incumbent_of] >= std[challenger_of]:
            return Choice(incumbent_of, challenger_of, ratio)
        return Choice(challenger_of, incumbent_of, ratio)

    def shortlist(self, belief: Belief, incumbents: NDArray[np.bool_], n: int) -> list[int]:
        distance = np.abs(belief.mean - cutoff(belief.mean, incumbents))
        deviations = np.full_like(distance, np.inf)  # standard deviations between a document and the cutoff
        np.divide(distance, belief.std, out=deviations, where=~belief.scored)
        return _largest(-deviations, n)


def _least(
    pairs: tuple[tuple[int | None, int | None], ...], mean: NDArray[np.float64], std: NDArray[np.float64], trial: float
) -> tuple[int, int]:
    """Return the pair j, i with the least mu_j - mu_i - trial (sigma_j + sigma_i).

    Ties go by position. A pair with a missing side is ignored.
    """
    ranked = [
        (mean[j] - trial * std[j] - (mean[i] + trial * std[i]), j, i)
        for j, i in pairs
        if j is not None and i is not None
    ]
    _, j, i = min(ranked)
    return j, i


@dataclass(frozen=True, slots=True)
class UpperConfidenceBound:
    """Ask the unscored document with the largest mu + beta sigma: GP-UCB (paper eq. ucb).

    The factor beta is beta0 / sqrt(step + 1).
    """

    beta0: float = 1.0

    def choose(self, belief: Belief, incumbents: NDArray[np.bool_], step: int) -> Choice:
        bound = self._bound(belief, step)
        document = int(np.argmax(bound))
        return Choice(document, None, float(bound[document]))

    def shortlist(self, belief: Belief, incumbents: NDArray[np.bool_], n: int) -> list[int]:
        return _largest(self._bound(belief, int(np.count_nonzero(belief.scored))), n)

    def _bound(self, belief: Belief, step: int) -> NDArray[np.float64]:
        bound: NDArray[np.float64] = belief.mean + self.beta0 / np.sqrt(step + 1) * belief.std
        bound[belief.scored] = -np.inf
        return bound


def _largest(values: NDArray[np.float64], n: int) -> list[int]:
    """Return the positions of the n largest values, largest first, ties by position.

    Values of -inf are never included.
    """
    if n < 1:
        return []
    n = min(n, len(values))
    best = np.sort(np.argpartition(-values, n - 1)[:n])
    best = best[np.argsort(-values[best], kind="stable")]
    likely: list[int] = best[values[best] > -np.inf].tolist()
    return likely


@dataclass(frozen=True, slots=True)
class ValueAtCutoff:
    """Ask where an exact score has the largest expected gain against the cutoff tau of the set.

    The gain is sigma (phi(z) - z Phi(-z)) with z = |mu - tau| / sigma.
    """

    def choose(self, belief: Belief, incumbents: NDArray[np.bool_], step: int) -> Choice:
        value = self._value(belief, incumbents)
        document = int(np.argmax(value))
        return Choice(document, None, float(value[document]))

    def shortlist(self, belief: Belief, incumbents: NDArray[np.bool_], n: int) -> list[int]:
        return _largest(self._value(belief, incumbents), n)

    def _value(self, belief: Belief, incumbents: NDArray[np.bool_]) -> NDArray[np.float64]:
        value = expected_excess(np.abs(belief.mean - cutoff(belief.mean, incumbents)), belief.std)
        value[belief.scored] = -np.inf
        return value


@dataclass(frozen=True, slots=True)
class MostDoubtful:
    """Ask the document with the largest standard deviation.

    In a belief about events, its probability is the closest to one half.
    """

    def choose(self, belief: Belief, incumbents: NDArray[np.bool_], step: int) -> Choice:
        (document,) = self.shortlist(belief, incumbents, 1)
        return Choice(document, None, float(belief.std[document]))

    def shortlist(self, belief: Belief, incumbents: NDArray[np.bool_], n: int) -> list[int]:
        return _largest(np.where(belief.scored, -np.inf, belief.std), n)


@dataclass(frozen=True, slots=True)
class MostLikely:
    """Ask the document with the largest mean; in a belief about events, the most probable one.

    Choices have no value, so a round has the n most probable documents, without fantasies.
    """

    def choose(self, belief: Belief, incumbents: NDArray[np.bool_], step: int) -> Choice:
        return Choice(self.shortlist(belief, incumbents, 1)[0], None, None)

    def shortlist(self, belief: Belief, incumbents: NDArray[np.bool_], n: int) -> list[int]:
        return _largest(np.where(belief.scored, -np.inf, belief.mean), n)


@dataclass(frozen=True, slots=True)
class Exploration:
    """Ask by the boundary gap for the first calls, then by the value at the cutoff.

    The gap explores more, which pays while there are few scores. Neither rule applies while all scores are equal. Then
    the ranks around k come first, because they show the trend. Next comes the head of the ranking, where a scorer that
    rejects almost everything may accept something, and last the whole ranking. The whole ranking is also searched while
    all scores are small and similar.
    """

    gap_calls: int = 6

    def choose(self, belief: Belief, incumbents: NDArray[np.bool_], step: int) -> Choice:
        looks = _looks(belief, incumbents)
        return self._rule(step).choose(belief, incumbents, step) if looks is None else Choice(next(looks), None, None)

    def shortlist(self, belief: Belief, incumbents: NDArray[np.bool_], n: int) -> list[int]:
        looks = _looks(belief, incumbents)
        if looks is None:
            return self._rule(int(np.count_nonzero(belief.scored))).shortlist(belief, incumbents, n)
        return list(islice(looks, n))

    def _rule(self, step: int) -> Acquisition:
        return BoundaryGap() if step < self.gap_calls else ValueAtCutoff()


def _looks(belief: Belief, incumbents: NDArray[np.bool_]) -> Iterator[int] | None:
    """Return unscored documents to ask while no score stands out; None once one does."""
    scores, k = belief.mean[belief.scored], int(np.count_nonzero(incumbents))
    low, high = float(scores.min(initial=1.0)), float(scores.max(initial=0.0))
    if low >= high:
        return _first_looks(belief.scored, k)
    alike = low > 0 and high < SMALL and high * (1 - low) < ALIKE * low * (1 - high)
    return _first_looks(belief.scored, k, head=0) if alike and FEWEST_ALIKE <= len(scores) < MOST_ALIKE else None


def _first_looks(scored: NDArray[np.bool_], k: int, head: int = HEAD_LOOKS) -> Iterator[int]:
    """Yield unscored documents in the order to ask them while no score stands out.

    They are the ranks around k, the head, and then the whole ranking in ever finer steps, so that no group of documents
    in it is missed.
    """
    count = len(scored)
    around = (0, k, k // 2, 2 * k, 4 * k)
    looked: set[int] = set()
    for position in chain(around, range(head), _spread(count)):
        if position < count and position not in looked and not scored[position]:
            looked.add(position)
            yield position


def _spread(count: int) -> Iterator[int]:
    """Yield all positions: the middle one first, then the quarters, the eighths, and so on."""
    parts = 1
    while parts < 2 * count:
        parts *= 2
        yield from (count * part // parts for part in range(1, parts, 2))


def cutoff(margin: NDArray[np.float64], incumbents: NDArray[np.bool_]) -> float:
    """Return the midpoint between the smallest incumbent and the largest challenger."""
    return float(margin[incumbents].min() + margin[~incumbents].max()) / 2


def expected_excess(distance: NDArray[np.float64], std: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return E[max(x - distance, 0)] for x ~ N(0, std^2) and distance >= 0.

    This is sigma (phi(z) - z Phi(-z)) with z = distance / sigma, and 0 where `std` is 0.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = distance / std
    steps *= PER_UNIT
    np.fmin(steps, LARGEST * PER_UNIT, out=steps)
    excess: NDArray[np.float64] = std * np.exp(interpolated(LOG_EXCESS, steps))
    return excess


CONTESTED, MOST_CONTESTED = 32, 128  # documents considered per document of a round, and for the whole round


@dataclass(frozen=True, eq=False)
class Competition:
    """Documents that compete for a capacity.

    Attributes:
        belief: The belief about the whole pool.
        capacity: The capacity for the competing documents.
        left: Ascending positions of the competing documents.
        known: `Capacity.margin` of these documents, if it was computed before.
    """

    belief: Belief
    capacity: Capacity
    left: NDArray[np.intp]
    known: tuple[NDArray[np.float64], NDArray[np.bool_]] | None = None

    @cached_property
    def _divided(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        return self.known or self.capacity.margin(self._competing.mean)

    @cached_property
    def _competing(self) -> Belief:
        return self.belief if len(self.left) == len(self.belief.mean) else self.belief.subset(self.left)

    def replace_belief(self, belief: Belief) -> Competition:
        """Return the competition under another belief.

        If both beliefs share the array of means, the margins are reused.
        """
        return Competition(belief, self.capacity, self.left, self._divided if belief.mean is self.belief.mean else None)

    @cached_property
    def margins(self) -> tuple[Belief, NDArray[np.bool_]]:
        """The belief about the competing documents, and the mask of the incumbents.

        The belief has margins to the boundary in place of means.
        """
        belief = self._competing
        if self.capacity.holds_all(len(self.left)):
            return belief, np.ones_like(belief.scored)
        margin, incumbents = self._divided
        scores = belief.mean[belief.scored]
        if scores.size and scores.min() == scores.max():
            return belief, incumbents  # margins would differ where means do not
        return Belief(margin, belief.std, belief.scored), incumbents

    def choice(self, rule: Acquisition) -> Choice:
        """Return the next document by a rule, as a position in the belief of the competition."""
        contested, incumbents = self.margins
        choice = rule.choose(contested, incumbents, int(np.count_nonzero(contested.scored)))
        counterpart = None if choice.counterpart is None else int(self.left[choice.counterpart])
        return Choice(int(self.left[choice.document]), counterpart, choice.value)

    def round_candidates(self, rule: Acquisition, n: int) -> NDArray[np.bool_]:
        """Return the (N,) mask of documents that a round may need.

        It has n documents that the rule is likely to choose soon, the two documents next to the boundary, and all
        scored ones.
        """
        contested, incumbents = self.margins
        likely = self.belief.scored.copy()
        likely[self.left[rule.shortlist(contested, incumbents, n)]] = True
        likely[self.left[np.where(incumbents, contested.mean, np.inf).argmin()]] = True
        likely[self.left[np.where(incumbents, -np.inf, contested.mean).argmax()]] = True
        return likely

    def narrow(self, mask: NDArray[np.bool_]) -> Competition:
        """Return the competition among the documents of a mask, with all others decided."""
        documents = np.flatnonzero(mask)
        of_left = mask[self.left]
        left = np.searchsorted(documents, self.left[of_left])
        return Competition(self.belief.subset(documents), self.capacity.narrow(of_left, self.margins[1]), left)


def choose_round(
    competition: Competition,
    posterior: Posterior,
    rule: Acquisition,
    n: int,
    view: Callable[[BeliefSource, NDArray[np.intp]], Belief] = lambda beliefs, documents: beliefs.belief(),
) -> list[Choice]:
    """Choose the next n documents, for n > 1 by kriging believer.

    Each document is chosen as if those before it had scored their posterior mean. Only the most contested documents are
    considered, because updating the others would take most of the time. If fewer than n of them are unscored, fewer are
    chosen.

    Args:
        competition: The documents that compete.
        posterior: The posterior over the pool.
        rule: The acquisition rule.
        n: The number of documents.
        view: Turns a posterior's belief about some documents into the competition's.
    """
    if n == 1:
        return [competition.choice(rule)]
    few = competition.round_candidates(rule, max(n, min(CONTESTED * n, MOST_CONTESTED)))
    documents = np.flatnonzero(few)
    fantasy = posterior.subset(documents, n)
    narrowed = competition.narrow(few)
    chosen: list[Choice] = []
    while True:
        choice = narrowed.choice(rule)
        if choice.value is None:  # no rule applied, and fantasies would not change that
            likely = competition.left[rule.shortlist(*competition.margins, n)]
            return [Choice(document, None, None) for document in likely.tolist()]
        counterpart = None if choice.counterpart is None else int(documents[choice.counterpart])
        chosen.append(Choice(int(documents[choice.document]), counterpart, choice.value))
        if len(chosen) == n:
            return chosen
        fantasy.fantasise(choice.document)
        narrowed = narrowed.replace_belief(view(fantasy, documents))
        if narrowed.margins[0].scored.all():
            return chosen


FIRST = 2  # documents of the first round: those at ranks 0 and k, which are chosen without scores
HEADS = 3  # with this many rounds or fewer, the first takes the head of the list (docs/results.md)
LISTED = 2 / 3  # share of the head that comes from the list; the rest are the best by BM25


def growing_round_size(known: int, left: int, budget: int) -> int:
    """Return the size of the next round of a session whose rounds grow.

    It is one more than a quarter of the known scores, and at most 2 + sqrt(budget / 2). Rounds are small while each
    score changes much. The last two are about equal. 10 calls make five rounds of 2; 50 make rounds of 2, 2, 2, 3, 4,
    5, 6, 7, 7, 6 and 6.

    Args:
        known: The number of known scores.
        left: The number of calls that remain.
        budget: The number of calls in all.
    """
    size = min(max(1 + -(-known // 4), FIRST), 2 + isqrt(budget // 2))
    return size if left >= 2 * size else left if left <= size else -(-left // 2)


def head(pool: Pool, documents: NDArray[np.intp], n: int) -> NDArray[np.intp]:
    """Return n of these ascending positions: the first ones, and the best of the rest by BM25.

    Without BM25, all of them are the first ones.
    """
    words = pool.features.get("bm25")
    if words is None or n == 1:
        return documents[:n]
    first, others = np.split(documents, [round(LISTED * n)])
    matching = others[words[others] > 0.0]
    best = matching[top_k(words[matching], n - len(first))]
    best = best[np.argsort(-words[best], kind="stable")]
    rest = others[:n]
    return np.concatenate([first, best, rest[~np.isin(rest, best)]])[:n]


def equal_round_size(rounds: int, done: int, left: int, full: int = 1) -> int:
    """Return the size of the next of `rounds` rounds.

    Args:
        rounds: The number of rounds in all.
        done: The number of rounds so far.
        left: The number of calls that remain.
        full: The size is a multiple of this, unless fewer calls remain.
    """
    return min(left, -(-left // (max(1, rounds - done) * full)) * full)
