"""Quam: adaptive retrieval by set affinity (Rathee, MacAvaney and Anand 2025, algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from boundarymorph.evaluation.methods.method import Contestant, Scoring
from boundarymorph.evaluation.problem import Problem, Ranking


@dataclass(frozen=True)
class Quam(Scoring):
    """neighbours, batch: as for GAR; leaders: s, how many of the best scored documents form the set S.

    As GAR, but a document d of the frontier is worth its affinity to the whole of S: the sum over those d' in S whose
    neighbour d is of f(d, d') R(d'). The affinity f is the cosine, and R, the relevance of d' within S, is its share
    of the scores of S: the softmax of log-probabilities, which is what the method's own rerankers answer.
    """

    neighbours: int = 16
    batch: int = 16
    leaders: int = 30

    def rank(self, problem: Problem) -> Ranking:
        near, affinity = problem.neighbourhood.nearest(self.neighbours)
        scores = np.zeros(len(problem.pool))
        from_frontier = False
        while problem.left:
            size = min(self.batch, problem.left)
            if from_frontier:
                worth = np.zeros(len(problem.pool))
                reached = np.zeros(len(problem.pool), dtype=np.bool_)
                leaders = problem.banded()[: min(self.leaders, len(problem.calls))]
                total = scores[leaders].sum()
                share = scores[leaders] / total if total > 0 else np.full(len(leaders), 1 / len(leaders))
                for leader, weight in zip(leaders, share, strict=True):
                    worth[near[leader]] += weight * affinity[leader]
                    reached[near[leader]] = True
                waiting = np.flatnonzero(reached & ~problem.scored)
                batch = waiting[np.argsort(-worth[waiting], kind="stable")][:size]
            else:
                batch = np.flatnonzero(~problem.scored)[:size]
            from_frontier = not from_frontier
            scores[batch] = problem.score(batch)
        return problem.banded()


GRID = tuple(Quam(*values) for values in product((16, 8), (16, 5, 1), (30, 10)))
CONTESTANTS = (Contestant("quam", "Quam", GRID, "as GAR, with neighbours of many high scores first"),)
