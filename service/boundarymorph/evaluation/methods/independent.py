"""Boundary calls without a field: every document is believed in on its own.

AcuRank spends calls where membership in the top k is uncertain and keeps a separate belief of each document; its
beliefs come from listwise calls of a language model, which a table of pointwise scores cannot replay. This is the idea
that is left, LUCB on independent arms (Kalyanakrishnan et al. 2012; paper sec. 3.3): the percentile prior, one common
uncertainty, and the paper's boundary rule. Read it as "the paper's method without a kernel", not as AcuRank's result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from boundarymorph.evaluation.methods.method import Contestant, Scoring
from boundarymorph.evaluation.problem import Problem, Ranking
from boundarymorph.selection import Belief, BoundaryGap
from boundarymorph.selection.capacity import top_k
from boundarymorph.selection.prior import percentile


@dataclass(frozen=True)
class Independent(Scoring):
    """The common level of the residuals is learnt, as in the paper's centring; documents share nothing else."""

    uses_k: ClassVar[bool] = True

    def rank(self, problem: Problem) -> Ranking:
        prior = percentile(problem.pool)
        mean, acquisition = prior.copy(), BoundaryGap()
        seen: list[int] = []
        scores: list[float] = []
        while problem.left and problem.k < len(prior):
            belief = Belief(mean, np.where(problem.scored, 0.0, 1.0), problem.scored.copy())
            document = acquisition.choose(belief, top_k(mean, problem.k), len(seen)).document
            seen.append(document)
            scores.append(float(problem.score([document])[0]))
            # The query, observed at 1 where its percentile is 1, counts as one residual of 0.
            mean = prior + (np.array(scores) - prior[seen]).sum() / (len(seen) + 1)
            mean[seen] = scores
        return np.argsort(-mean, kind="stable")


CONTESTANTS = (
    Contestant("independent", "Independent", (Independent(),), "the paper's boundary rule, each document on its own"),
)
