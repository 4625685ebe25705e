"""Define the configurations of a session, and the methods that a request can name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.acquisition import Acquisition, BoundaryGap, Exploration
from boundarymorph.selection.pool import DEFAULT_PRIOR, SIGNAL_WEIGHT, Pool, TrendPrior
from boundarymorph.selection.posterior import PRIORS, Posterior, ResidualPosterior
from boundarymorph.selection.process import (
    DEFAULT_PAIRS,
    KERNELS,
    CosineDistances,
    StationaryCovariance,
    median_distance,
)
from boundarymorph.selection.trend import LINEAR_WEIGHT, NOISE, TrendPosterior

BANDWIDTH_MULTIPLIER = 2.0
RETRIEVAL_BONUS = 0.2


class Config(Protocol):
    """A method of selecting documents."""

    @property
    def acquisition(self) -> Acquisition:
        """The rule for the next document to ask."""

    def posterior(self, pool: Pool, size: int) -> Posterior:
        """Return the posterior over a pool before the first of at most `size` scores."""

    def worth(
        self,
        relevance: NDArray[np.float64],
        ranks: NDArray[np.float64],
        inside: NDArray[np.bool_],
        scored: NDArray[np.bool_],
    ) -> NDArray[np.float64]:
        """Return the (N,) values whose sum the returned set maximises.

        Args:
            relevance: (N,) expected scores.
            ranks: (N,) ranks in retrieval, from 0, shared by documents of one retrieval score.
            inside: (N,) mask of the best that fit, by relevance alone.
            scored: (N,) mask of documents with a score.
        """


@dataclass(frozen=True, slots=True)
class SelectionConfig:
    """The paper's BoundaryMORPH and its relatives.

    Attributes:
        prior: A name in `posterior.PRIORS`.
        kernel: A name in `process.KERNELS`.
        bandwidth_pairs: The number of sampled pairs for the median heuristic; None for all pairs.
        anchored: Whether the query is an observation at relevance 1.
        acquisition: The rule for the next document.
    """

    prior: str = "percentile"
    kernel: str = "vmf"
    bandwidth_pairs: int | None = DEFAULT_PAIRS
    anchored: bool = True
    acquisition: Acquisition = field(default_factory=BoundaryGap)

    def posterior(self, pool: Pool, size: int) -> Posterior:
        kernel = KERNELS[self.kernel](median_distance(pool.embeddings, self.bandwidth_pairs))
        covariance = StationaryCovariance(CosineDistances(pool), kernel)
        prior = PRIORS[self.prior]
        query_prior = prior.query if self.anchored else None
        return ResidualPosterior(prior.documents(pool), covariance, size, query_prior=query_prior)

    def worth(
        self,
        relevance: NDArray[np.float64],
        ranks: NDArray[np.float64],
        inside: NDArray[np.bool_],
        scored: NDArray[np.bool_],
    ) -> NDArray[np.float64]:
        return relevance


@dataclass(frozen=True, slots=True)
class TrendConfig:
    """The default method: learn the trend of the score along the ranking with the field.

    The model works on the log-odds scale (`trend.py`). The returned set has the largest expected scores. A bonus breaks
    near ties among unscored documents in favour of the retriever: it adds up to half of `bonus` times the set's mean
    expected score above rank k, and subtracts as much below. Scored documents get no bonus.

    Attributes:
        kernel: A name in `process.KERNELS`.
        weight: The prior variance of the trend, relative to the field's variance of 1; 0 for no trend.
        bonus: The size of the bonus.
        acquisition: The rule for the next document.
        human: As in `TrendPosterior`.
        signal_weight: As in `TrendPosterior`.
        noise: As in `TrendPosterior`.
        prior: As in `TrendPosterior`.
    """

    kernel: str = "vmf"
    weight: float = LINEAR_WEIGHT
    bonus: float = RETRIEVAL_BONUS
    acquisition: Acquisition = field(default_factory=Exploration)
    human: bool = False
    signal_weight: float = SIGNAL_WEIGHT
    noise: float = NOISE
    prior: TrendPrior = DEFAULT_PRIOR

    def posterior(self, pool: Pool, size: int) -> Posterior:
        kernel = KERNELS[self.kernel](median_distance(pool.embeddings) / BANDWIDTH_MULTIPLIER)
        return TrendPosterior(
            pool,
            kernel,
            size,
            weight=self.weight,
            noise=self.noise,
            human=self.human,
            signal_weight=self.signal_weight,
            prior=self.prior,
        )

    def worth(
        self,
        relevance: NDArray[np.float64],
        ranks: NDArray[np.float64],
        inside: NDArray[np.bool_],
        scored: NDArray[np.bool_],
    ) -> NDArray[np.float64]:
        fractions = ranks / np.count_nonzero(inside)
        bonus = self.bonus * relevance[inside].mean() * (1.0 / (1.0 + fractions) - 0.5)
        worth: NDArray[np.float64] = np.where(scored, relevance, relevance + bonus)
        return worth


PAPER = "boundarymorph"
HUMAN = "human"  # the name, in evaluations, of the default method for human relevance
DEFAULT = "trend"
Method = Literal["trend", "boundarymorph"]
METHODS: dict[str, Config] = {DEFAULT: TrendConfig(), PAPER: SelectionConfig()}
HUMAN_CONFIG = TrendConfig(human=True)  # the default method for human relevance
TO_FIND = TrendConfig(noise=0.4)  # the default method for a search with a target (docs/results.md)
BY_WORDS = {DEFAULT}  # the methods that learn from BM25, if the pool has it
