"""GAR: graph-based adaptive re-ranking (MacAvaney, Tonellotto and Macdonald 2022, algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from boundarymorph.evaluation.methods.method import Contestant, Scoring
from boundarymorph.evaluation.problem import Problem, Ranking


@dataclass(frozen=True)
class Gar(Scoring):
    """neighbours: of a document in the corpus graph (exact cosine, within the pool); batch: documents scored in turn.

    Batches come alternately from the retrieval order and from the frontier, the unscored neighbours of what was
    scored; a document of the frontier is worth the best score among those whose neighbour it is.
    """

    neighbours: int = 16
    batch: int = 16

    def rank(self, problem: Problem) -> Ranking:
        near, _ = problem.neighbourhood.nearest(self.neighbours)
        worth = np.full(len(problem.pool), -np.inf)
        from_frontier = False
        while problem.left:
            size = min(self.batch, problem.left)
            if from_frontier:
                waiting = np.flatnonzero((worth > -np.inf) & ~problem.scored)
                batch = waiting[np.argsort(-worth[waiting], kind="stable")][:size]
            else:
                batch = np.flatnonzero(~problem.scored)[:size]
            from_frontier = not from_frontier
            if batch.size:
                for document, score in zip(batch, problem.score(batch), strict=True):
                    worth[near[document]] = np.maximum(worth[near[document]], score)
        return problem.banded()


GRID = tuple(Gar(*values) for values in product((16, 8), (16, 5, 1)))
CONTESTANTS = (
    Contestant("gar", "GAR", GRID, "alternates between the retriever's order and neighbours of high scores"),
)
