"""The baselines over hybrid candidates: pools in the order of similarity and BM25 together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from boundarymorph.evaluation.methods import gar, mips, quam, single_stage
from boundarymorph.evaluation.methods.method import Contestant, Method, Scoring
from boundarymorph.evaluation.problem import Problem, Ranking


@dataclass(frozen=True)
class Hybrid(Scoring):
    """method: as it is, in place of the retriever's order with that of reciprocal ranks of similarity and BM25."""

    method: Method

    requires = frozenset({"bm25"})

    def rank(self, problem: Problem) -> Ranking:
        question, order = problem.question.fused
        fused = Problem(question, problem.budget, problem.k)
        ranking = self.method.rank(fused)
        problem.score(order[fused.calls])
        return order[ranking]


@dataclass(frozen=True)
class HybridOrder(Hybrid):
    """That order alone."""

    uses_budget = False


def _hybrid(original: Sequence[Contestant]) -> Contestant:
    (one,) = original
    kind = Hybrid if one.settings[0].uses_budget else HybridOrder
    about = f"{one.about}; in the order of similarity and BM25 together"
    return Contestant(f"{one.name}-hybrid", f"{one.title}, hybrid", [kind(method) for method in one.settings], about)


CONTESTANTS = tuple(_hybrid(module.CONTESTANTS) for module in (mips, single_stage, gar, quam))
