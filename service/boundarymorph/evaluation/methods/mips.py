"""The retriever's own order: what one gets without a cross-encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from boundarymorph.evaluation.methods.method import Contestant
from boundarymorph.evaluation.problem import Problem, Ranking


@dataclass(frozen=True)
class Mips:
    uses_budget: ClassVar[bool] = False
    uses_k: ClassVar[bool] = False
    requires: ClassVar[frozenset[str]] = frozenset()

    def rank(self, problem: Problem) -> Ranking:
        return np.arange(len(problem.pool))


CONTESTANTS = (Contestant("mips", "MIPS", (Mips(),), "the retriever's order; no calls"),)
