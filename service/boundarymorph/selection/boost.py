"""Multiply the relevance of each document by a positive number, its boost."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.belief import Belief
from boundarymorph.selection.boundary import Boundary, Division
from boundarymorph.selection.methods import Config
from boundarymorph.selection.pool import ranks
from boundarymorph.selection.state import Reading, State


@dataclass(frozen=True, slots=True, eq=False)
class BoostedBoundary:
    """A boundary at which documents compete by their values.

    A threshold still applies to relevance.

    Attributes:
        within: The boundary for relevance.
        boosts: (N,) positive numbers; None if all are 1, and documents compete by the answer's relevance.
        shown: Maps the session's relevance to the answer's, which is boosted; None if they are equal.
    """

    within: Boundary
    boosts: NDArray[np.float64] | None
    shown: Reading | None = None

    def division(self, state: State) -> Division:
        known = {field.name: getattr(state, field.name) for field in fields(State)}
        return self.within.division(BoostedState(**known, boosts=self.boosts, shown=self.shown))


@dataclass(frozen=True, eq=False)
class BoostedState(State):
    """A state whose documents compete by values instead of scores.

    A boost scales a belief: mean, standard deviation and outcomes of b x are b times the ones of x. If relevance is an
    increasing function of the score, the belief is moved to its scale first: the mean becomes the function of the mean,
    and the standard deviation half of the function's rise from one deviation below the mean to one above. Values
    compete as shares of the largest boost, so that they lie between 0 and 1, as scores do.
    """

    boosts: NDArray[np.float64] | None
    shown: Reading | None

    def competing_belief(self, belief: Belief, documents: NDArray[np.intp] | slice = slice(None)) -> Belief:
        belief, shares = self.share_scores(belief, documents), self._shares[documents]
        mean, std = belief.mean, belief.std
        for reading in filter(None, (self.reading, self.shown)):
            low, mean, high = reading(mean - std), reading(mean), reading(mean + std)
            std = (high - low) / 2.0
        return Belief(shares * mean, shares * std, belief.scored)

    def worth(self, method: Config, documents: NDArray[np.intp], inside: NDArray[np.bool_]) -> NDArray[np.float64]:
        shares, belief = self._shares[documents], self.deciding_belief.subset(documents)
        places = ranks(-self.pool.scores[documents]) - 1.0
        worth: NDArray[np.float64] = shares * method.worth(belief.mean / shares, places, inside, belief.scored)
        return worth

    def values(self, relevance: NDArray[np.float64]) -> NDArray[np.float64] | None:
        if self.boosts is None:
            return None
        held = np.clip(relevance, 0.0, 1.0)
        return self.boosts * (held if self.shown is None else self.shown(held))

    def outcomes(self, *, lost: bool = False) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        shares, scores = super().outcomes(lost=lost)
        return shares, self._shares * (scores if self.shown is None else self.shown(scores))

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        boosts = np.ones(len(self.pool)) if self.boosts is None else self.boosts
        shares: NDArray[np.float64] = boosts / boosts.max()
        return shares
