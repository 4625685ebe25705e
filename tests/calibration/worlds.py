"""Made-up queries with a truth: how likely a document is relevant, given a scorer, a retriever and words."""

from collections.abc import Sequence

import numpy as np

from boundarymorph.calibration.calibration import sigmoid
from boundarymorph.calibration.judgments import JudgedQuery, worth_judging
from boundarymorph.selection import Pool


class World:
    """Log-odds of relevance are `level` + scorer * (log-odds of the score) + similarity * (standardised similarity)."""

    def __init__(self, scorer: float, similarity: float, level: float = -2.0, seed: int = 0) -> None:
        self.scorer, self.similarity, self.level = scorer, similarity, level
        self.random = np.random.default_rng(seed)

    def query(self, size: int = 300) -> tuple[Pool, np.ndarray, np.ndarray]:
        """A pool, the scores of its documents, and their grades."""
        similarity = np.sort(self.random.normal(size=size))[::-1]
        evidence = 3.0 * self.random.normal(size=size)
        ids = [f"d{number}" for number in range(size)]
        bm25 = np.maximum(self.random.normal(size=size), 0.0)
        pool = Pool.of(ids, self.random.normal(size=(size, 4)), np.ones(4), similarity, {"bm25": bm25})
        truth = sigmoid(self.level + self.scorer * evidence + self.similarity * similarity)
        return pool, sigmoid(evidence), (self.random.random(size) < truth).astype(np.float64)

    def judged(self, queries: int = 10) -> Sequence[JudgedQuery]:
        found = []
        for number in range(queries):
            pool, scores, grades = self.query()
            documents = worth_judging(np.argsort(-scores), len(pool), number)
            found.append(JudgedQuery.of(pool, documents, scores[documents], grades[documents]))
        return found
