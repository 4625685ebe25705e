"""What is contested at one moment of a session, and the choice of the documents of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.acquisition import Acquisition, Choice
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.capacity import Capacity
from boundarymorph.selection.posterior import Believed, Posterior

CONTESTED = 32  # documents for each further one of a round, among which it is chosen


@dataclass(frozen=True, eq=False)
class Contest:
    """A belief, and what competes for the capacity: the documents at the positions `left`, ascending."""

    belief: Belief
    capacity: Capacity
    left: NDArray[np.intp]

    @cached_property
    def margins(self) -> tuple[Belief, NDArray[np.bool_]]:
        """The belief about what is left, with by how much each document is in or out for its mean, and the mask of the
        incumbents."""
        belief = self.belief if len(self.left) == len(self.belief.mean) else self.belief.of(self.left)
        if self.capacity.holds_all(len(self.left)):
            return belief, np.ones_like(belief.scored)
        margin, incumbents = self.capacity.margin(belief.mean)
        scores = belief.mean[belief.scored]
        if scores.size and scores.min() == scores.max():
            return belief, incumbents  # as equal as they are, which bounds of their own would hide
        return Belief(margin, belief.std, belief.scored), incumbents

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

    def among(self, mask: NDArray[np.bool_]) -> Contest:
        """The contest of some documents alone, all else being decided."""
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
    """The next n documents; n > 1 by kriging believer, each as if the ones before it had come out at their mean.

    A round is chosen among the documents most contested at its start. The many others hardly come into question, and
    what the fantasies make of them would take most of the time. view: what the contest's belief is of a posterior's
    about these documents. Fewer than n are chosen where nothing else is left unscored among those.
    """
    if n == 1:
        return [contest.choice(rule)]
    few = contest.likeliest(rule, CONTESTED * n)
    documents = np.flatnonzero(few)
    fantasy = posterior.among(documents)
    narrowed = contest.among(few)
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
        fantasy.fantasise(choice.document)
        narrowed = replace(narrowed, belief=view(fantasy, documents))
        if narrowed.margins[0].scored.all():
            return chosen
