"""Single-stage reranking: the cross-encoder reads the first B of the retriever (paper app. D.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boundarymorph.evaluation.methods.method import Contestant, Scoring
from boundarymorph.evaluation.problem import Problem, Ranking


@dataclass(frozen=True)
class SingleStage(Scoring):
    def rank(self, problem: Problem) -> Ranking:
        problem.score(np.arange(problem.left))
        return problem.banded()


CONTESTANTS = (Contestant("ss", "SS", (SingleStage(),), "scores the first B of the retriever, then its order"),)
