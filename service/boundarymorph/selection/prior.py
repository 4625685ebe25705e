"""What is expected of a scorer before its first score in a pool: the numbers of the trend, and what a request tells of
them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TrendPrior:
    """The prior of `TrendPosterior`: normal for the level and the slopes, inverse gamma for the squared amplitude.

    level: of the log-odds. All others are in units of the amplitude: level_deviation; rank and similarity, the slopes
    along the ranking and in the similarity, and their slope_deviation; words, the slope in BM25, and words_deviation.
    scale: the squared amplitude; scores: as how many scores it counts. averaged: whether models without BM25, and
    without a weight for each word of the query, are averaged with the one that has both. The defaults say that most
    cross-encoders accept few documents, and prefer those that the retriever prefers.
    """

    level: float = -3.0
    level_deviation: float = 4.0
    rank: float = 0.5
    similarity: float = 0.5
    slope_deviation: float = 0.3
    words: float = 0.3
    words_deviation: float = 0.5
    scale: float = 1.0
    scores: float = 1.0
    averaged: bool = True

    @property
    def slopes(self) -> NDArray[np.float64]:
        """(3,) expected along the ranking, in the similarity and in BM25."""
        return np.array([self.rank, self.similarity, self.words])

    @property
    def deviations(self) -> NDArray[np.float64]:
        """(4,) of the level and of the three slopes."""
        return np.array([self.level_deviation, self.slope_deviation, self.slope_deviation, self.words_deviation])


DEFAULT_PRIOR = TrendPrior()


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What n scored documents of a request say of the prior, whatever it is: a few sums, no document.

    With L the Cholesky factor of their covariance and noise, H their (n, 4) level and features and y their log-odds,
    G = L^-1 H and z = L^-1 y: products: (4, 4) G'G; loads: (4,) G'z; square: z'z; count: n. graded: whether the scorer
    has so few grades that they say nothing of level and amplitude.
    """

    products: NDArray[np.float64]
    loads: NDArray[np.float64]
    square: float
    count: int
    graded: bool = False
