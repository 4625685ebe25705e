"""RGS: greedy search of the pool's graph, led by the cross-encoder (Xu et al. 2025; paper app. D.2)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from boundarymorph.evaluation.methods.method import Contestant, Scoring
from boundarymorph.evaluation.problem import Problem, Ranking


@dataclass(frozen=True)
class Rgs(Scoring):
    """degree: R, of the graph and so of every expansion; seed_div: B / seed_div calls go to the head of the retrieval;
    frac: the queue holds at most max(seeds, frac B) documents.

    The best document of the queue is expanded: its unscored neighbours are scored, nearest first, and queued. Where
    the queue runs dry before the budget, the retrieval order takes what is left; the paper does not say.
    """

    degree: int = 10
    seed_div: float = 2.0
    frac: float = 1.0

    def rank(self, problem: Problem) -> Ranking:
        graph = problem.neighbourhood.graph(self.degree)
        seeds = min(max(round(problem.budget / self.seed_div), 1), problem.left)
        room = max(seeds, round(self.frac * problem.budget))
        queue = self._queued(problem, list(range(seeds)))
        while problem.left and queue:
            _, expanded = queue.pop(0)
            neighbours = graph[expanded]
            fresh = [int(other) for other in neighbours if other >= 0 and not problem.scored[other]][: problem.left]
            queue = sorted(queue + self._queued(problem, fresh))[:room]
        problem.score(np.flatnonzero(~problem.scored)[: problem.left])
        return problem.banded()

    @staticmethod
    def _queued(problem: Problem, documents: list[int]) -> list[tuple[float, int]]:
        scores = problem.score(documents).tolist()
        return sorted((-score, document) for score, document in zip(scores, documents, strict=True))


GRID = tuple(Rgs(*values) for values in product((10, 32, 64), (2.0, 3.0, 4.0, 5.0), (1.0, 0.5, 0.2)))
CONTESTANTS = (Contestant("rgs", "RGS", GRID, "searches the graph of near documents, following high scores"),)
