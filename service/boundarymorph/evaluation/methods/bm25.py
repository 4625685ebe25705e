"""BM25 as a re-ranking of the pool: a lexical floor (paper app. D.2). Equal scores go by retrieval rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from boundarymorph.evaluation.methods.method import Contestant
from boundarymorph.evaluation.problem import Problem, Ranking


@dataclass(frozen=True)
class Bm25:
    uses_budget: ClassVar[bool] = False
    uses_k: ClassVar[bool] = False
    requires: ClassVar[frozenset[str]] = frozenset({"bm25"})

    def rank(self, problem: Problem) -> Ranking:
        return np.argsort(-problem.pool.features["bm25"], kind="stable")


CONTESTANTS = (Contestant("bm25", "BM25", (Bm25(),), "the pool by word overlap; no calls"),)
