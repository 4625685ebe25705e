"""What is contested at one moment of a session, and the choice of the documents of a round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.acquisition import Acquisition, Choice
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.capacity import Capacity, DocumentCapacity
from boundarymorph.selection.posterior import Beliefs, Posterior

Value = TypeVar("Value", bound=np.generic)
CONTESTED = 32  # documents for each further one of a round, among which it is chosen


@dataclass(frozen=True, eq=False)
class Contest:
    """A belief, and what competes for the capacity: the documents at the positions `left`, ascending."""

    beliefs: Beliefs
    belief: Belief
    capacity: Capacity
    left: NDArray[np.intp]

    def gain(self) -> NDArray[np.float64]:
        """What the capacity weighs of what is left: a count compares documents, anything else adds them up against
        their cost."""
        by_count = isinstance(self.capacity, DocumentCapacity)
        return self.of_left(self.beliefs.relevance() if by_count else self.beliefs.gain())

    def of_left(self, values: NDArray[Value]) -> NDArray[Value]:
        """Of N values, those of what is left."""
        return values if len(self.left) == len(values) else values[self.left]

    @cached_property
    def margins(self) -> tuple[Belief, NDArray[np.bool_]]:
        """The belief on the scale on which the capacity decides, and the mask of the incumbents, of what is left."""
        scored = self.of_left(self.belief.scored)
        everything = self.capacity.holds_all(len(self.left))
        if everything or isinstance(self.capacity, DocumentCapacity):
            mean = self.of_left(self.belief.mean)
            inside = np.ones_like(scored) if everything else self.capacity.margin(mean)[1]
            return Belief(mean, self.of_left(self.belief.std), scored), inside
        margin, incumbents = self.capacity.margin(self.gain())
        return Belief(margin, self.beliefs.deviation(self.left), scored), incumbents

    def choice(self, rule: Acquisition) -> Choice:
        """The next document by a rule, at its position in the contest's beliefs."""
        contested, incumbents = self.margins
        choice = rule.choose(contested, incumbents, int(np.count_nonzero(contested.scored)))
        rival = None if choice.rival is None else int(self.left[choice.rival])
        return Choice(int(self.left[choice.document]), rival, choice.value)

    def likeliest(self, rule: Acquisition, n: int) -> NDArray[np.bool_]:
        """Mask of N: n documents that the rule is likely to choose soon, the two next to the cut, all scored ones."""
        contested, incumbents = self.margins
        likely = self.belief.scored.copy()
        likely[self.left[rule.shortlist(contested, incumbents, n)]] = True
        likely[self.left[np.where(incumbents, contested.mean, np.inf).argmin()]] = True
        likely[self.left[np.where(incumbents, -np.inf, contested.mean).argmax()]] = True
        return likely

    def among(self, mask: NDArray[np.bool_], beliefs: Beliefs) -> Contest:
        """The contest of some documents alone, all else being decided. beliefs: about these."""
        incumbents = self.margins[1]
        belief = Belief(self.belief.mean[mask], self.belief.std[mask], self.belief.scored[mask])
        left = np.searchsorted(np.flatnonzero(mask), self.left[self.of_left(mask)])
        return Contest(beliefs, belief, self.capacity.among(self.of_left(mask), incumbents), left)


def choose_round(contest: Contest, posterior: Posterior, rule: Acquisition, n: int) -> list[Choice]:
    """The next n documents; n > 1 by kriging believer, each as if the ones before it had come out at their mean.

    A round is chosen among the documents most contested at its start. The many others hardly come into question, and
    what the fantasies make of them would take most of the time.
    """
    if n == 1:
        return [contest.choice(rule)]
    few = contest.likeliest(rule, CONTESTED * n)
    documents = np.flatnonzero(few)
    fantasy = posterior.among(documents)
    narrowed = contest.among(few, fantasy)
    chosen: list[Choice] = []
    while True:
        choice = narrowed.choice(rule)
        if choice.value is None:  # nothing to weigh, which fantasies do not change
            likely = contest.left[rule.shortlist(*contest.margins, n)]
            return [Choice(document, None, None) for document in likely.tolist()]
        rival = None if choice.rival is None else int(documents[choice.rival])
        chosen.append(Choice(int(documents[choice.document]), rival, choice.value))
        if len(chosen) == n:
            return chosen
        fantasy.fantasise(choice.document, float(narrowed.belief.mean[choice.document]))
        narrowed = replace(narrowed, belief=fantasy.belief())
