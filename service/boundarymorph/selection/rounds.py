"""A round: how many documents are scored at once, and which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.acquisition import Acquisition, Choice
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.capacity import Capacity, top_k
from boundarymorph.selection.pool import Pool
from boundarymorph.selection.posterior import Believed, Posterior

CONTESTED, MOST_CONTESTED = 32, 128  # documents considered for each one of a round, and for all of them


@dataclass(frozen=True, eq=False)
class Contest:
    """Documents that compete for a capacity. belief: about the whole pool; left: ascending positions of the competing
    documents."""

    belief: Belief
    capacity: Capacity
    left: NDArray[np.intp]

    @cached_property
    def _divided(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """`Capacity.margin` of the competing documents."""
        return self.capacity.margin(self._competing.mean)

    @cached_property
    def _competing(self) -> Belief:
        return self.belief if len(self.left) == len(self.belief.mean) else self.belief.of(self.left)

    def under(self, belief: Belief) -> Contest:
        """The contest under another belief. Where its means are the same array, margins stay as they are."""
        contest = replace(self, belief=belief)
        if belief.mean is self.belief.mean:
            contest.__dict__["_divided"] = self._divided
        return contest

    @cached_property
    def margins(self) -> tuple[Belief, NDArray[np.bool_]]:
        """The belief about the competing documents, with margins to the boundary in place of means, and the mask of the
        incumbents."""
        belief = self._competing
        if self.capacity.holds_all(len(self.left)):
            return belief, np.ones_like(belief.scored)
        margin, incumbents = self._divided
        scores = belief.mean[belief.scored]
        if scores.size and scores.min() == scores.max():
            return belief, incumbents  # margins would differ where means do not
        return Belief(margin, belief.std, belief.scored), incumbents

    def choice(self, rule: Acquisition) -> Choice:
        """The next document by a rule, at its position in the contest's beliefs."""
        contested, incumbents = self.margins
        choice = rule.choose(contested, incumbents, int(np.count_nonzero(contested.scored)))
        rival = None if choice.rival is None else int(self.left[choice.rival])
        return Choice(int(self.left[choice.document]), rival, choice.value)

    def likeliest(self, rule: Acquisition, n: int) -> NDArray[np.bool_]:
        """(N,) mask of n documents that the rule is likely to choose soon, the two next to the boundary, and all scored
        ones."""
        contested, incumbents = self.margins
        likely = self.belief.scored.copy()
        likely[self.left[rule.shortlist(contested, incumbents, n)]] = True
        likely[self.left[np.where(incumbents, contested.mean, np.inf).argmin()]] = True
        likely[self.left[np.where(incumbents, -np.inf, contested.mean).argmax()]] = True
        return likely

    def among(self, mask: NDArray[np.bool_]) -> Contest:
        """The contest among some of the documents, with all others decided."""
        documents = np.flatnonzero(mask)
        of_left = mask[self.left]
        left = np.searchsorted(documents, self.left[of_left])
        return Contest(self.belief.of(documents), self.capacity.among(of_left, self.margins[1]), left)


def choose_round(
    contest: Contest,
    posterior: Posterior,
    rule: Acquisition,
    n: int,
    view: Callable[[Believed, NDArray[np.intp]], Belief] = lambda beliefs, documents: beliefs.belief(),
) -> list[Choice]:
    """The next n documents. For n > 1 by kriging believer: each as if those before it had scored their posterior mean.

    Only the most contested documents are considered, as updating the others would take most of the time. If fewer than
    n of them are unscored, fewer are chosen. view: turns a posterior's belief about these documents into the contest's.
    """
    if n == 1:
        return [contest.choice(rule)]
    few = contest.likeliest(rule, max(n, min(CONTESTED * n, MOST_CONTESTED)))
    documents = np.flatnonzero(few)
    fantasy = posterior.among(documents, n)
    narrowed = contest.among(few)
    chosen: list[Choice] = []
    while True:
        choice = narrowed.choice(rule)
        if choice.value is None:  # no rule applied, and fantasies would not change that
            likely = contest.left[rule.shortlist(*contest.margins, n)]
            return [Choice(document, None, None) for document in likely.tolist()]
        rival = None if choice.rival is None else int(documents[choice.rival])
        chosen.append(Choice(int(documents[choice.document]), rival, choice.value))
        if len(chosen) == n:
            return chosen
        fantasy.fantasise(choice.document)
        narrowed = narrowed.under(view(fantasy, documents))
        if narrowed.margins[0].scored.all():
            return chosen


FIRST = 2  # the documents at ranks 0 and k, which no score decides
HEADS = 3  # rounds, up to which the first one takes the head of the list (docs/evaluation.md)
LISTED = 2 / 3  # of the head, from the list; the others are the best by words


def growing(known: int, left: int, budget: int) -> int:
    """The size of the next round, after `known` scores and with `left` of `budget` calls remaining.

    It is one more than a quarter of the known scores, at most 2 + sqrt(budget / 2). Rounds are small while each score
    changes much. The last two are about equal. 10 calls make five rounds of 2; 50 make rounds of 2, 2, 2, 3, 4, 5, 6,
    7, 7, 6 and 6.
    """
    size = min(max(1 + -(-known // 4), FIRST), 2 + isqrt(budget // 2))
    return size if left >= 2 * size else left if left <= size else -(-left // 2)


def head(pool: Pool, documents: NDArray[np.intp], n: int) -> NDArray[np.intp]:
    """n of these ascending positions: the first ones and, where BM25 is known, the best by it of the others."""
    words = pool.features.get("bm25")
    if words is None or n == 1:
        return documents[:n]
    first, others = np.split(documents, [round(LISTED * n)])
    matching = others[words[others] > 0.0]
    best = matching[top_k(words[matching], n - len(first))]
    best = best[np.argsort(-words[best], kind="stable")]
    rest = others[:n]
    return np.concatenate([first, best, rest[~np.isin(rest, best)]])[:n]


def equal(rounds: int, done: int, left: int, full: int = 1) -> int:
    """The size of the next of so many rounds, `done` of which are over, with `left` calls remaining: a multiple of
    `full`, unless that is more than are left."""
    return min(left, -(-left // (max(1, rounds - done) * full)) * full)
