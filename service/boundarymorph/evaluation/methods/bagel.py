"""BAGEL: a zero-mean Gaussian process and UCB over the whole pool (Kim et al. 2026; paper sec. 5, app. D.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundarymorph.evaluation.methods.method import Contestant, ScoringMethod
from boundarymorph.evaluation.methods.morph import drive
from boundarymorph.evaluation.problem import Ranking, SelectionProblem
from boundarymorph.selection import Belief, SelectionConfig, SelectionSession, UpperConfidenceBound
from boundarymorph.selection.acquisition import Choice

BETAS = (0.0, 0.5, 1.0, 2.0)
ABOUT = "Gaussian process without a prior, searching for the highest scores"
ANY_K = 1  # maximum seeking does not read k


@dataclass(frozen=True, slots=True)
class WarmStarted:
    """An acquisition: the first `warm` documents of the retrieval, then UCB, whose annealing starts there."""

    warm: int
    then: UpperConfidenceBound

    def choose(self, belief: Belief, incumbents: NDArray[np.bool_], step: int) -> Choice:
        if step < self.warm:
            return Choice(int(np.argmin(belief.scored)), None, 0.0)
        return self.then.choose(belief, incumbents, step - self.warm)

    def shortlist(self, belief: Belief, incumbents: NDArray[np.bool_], n: int) -> list[int]:
        return self.then.shortlist(belief, incumbents, n)


@dataclass(frozen=True)
class Bagel(ScoringMethod):
    """beta0: weight of the uncertainty, annealed as beta0 / sqrt(t + 1), t counting the acquisition steps from 0.

    The first B/2 calls, rounded down, go to the head of the retrieval. Pool, kernel, bandwidth, query anchor,
    standardisation and conventions are BoundaryMORPH's; prior, acquisition and warm start are what differs.
    """

    beta0: float = 1.0
    kernel: str = "vmf"

    def rank(self, problem: SelectionProblem) -> Ranking:
        acquisition = WarmStarted(problem.budget // 2, UpperConfidenceBound(self.beta0))
        config = SelectionConfig(prior="zero", kernel=self.kernel, acquisition=acquisition)
        session = SelectionSession(problem.pool, budget=problem.budget, k=ANY_K, config=config)
        drive(session, problem)
        return np.argsort(-session.belief.mean, kind="stable")


CONTESTANTS = (
    Contestant("bagel", "BAGEL", tuple(Bagel(beta0) for beta0 in BETAS), ABOUT),
    Contestant("bagel-rbf", "BAGEL, RBF", tuple(Bagel(beta0, "rbf") for beta0 in BETAS), ABOUT),
    Contestant("bagel-matern52", "BAGEL, Matern-5/2", tuple(Bagel(beta0, "matern52") for beta0 in BETAS), ABOUT),
)
