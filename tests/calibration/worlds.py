"""Made-up queries with a truth: how likely a document is relevant, given its score."""

from collections.abc import Sequence

import numpy as np

from boundarymorph.calibration.calibration import sigmoid
from boundarymorph.calibration.learning import JudgedQuery
from boundarymorph.calibration.trust import CHOICES


class World:
    """The log-odds of relevance are `level` + `slope` * (the log-odds of what people are expected to find), which are
    those of the score plus noise."""

    def __init__(self, slope: float, level: float = -1.0, noise: float = 0.5, seed: int = 0) -> None:
        self.slope, self.level, self.noise = slope, level, noise
        self.random = np.random.default_rng(seed)

    def query(self, size: int = 40) -> JudgedQuery:
        people = 2.0 * self.random.normal(size=size)
        truth = sigmoid(self.level + self.slope * people)
        scores = sigmoid(people + self.noise * self.random.normal(size=size))
        grades = (self.random.random(size) < truth).astype(np.float64)
        return JudgedQuery(scores, dict.fromkeys(CHOICES, sigmoid(people)), grades)

    def judged(self, queries: int = 10) -> Sequence[JudgedQuery]:
        return [self.query() for _ in range(queries)]
