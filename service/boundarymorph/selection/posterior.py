"""Posteriors: what a session believes of a pool, given the scores so far. Here the protocol and the paper's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.belief import Belief
from boundarymorph.selection.covariance import StationaryCovariance
from boundarymorph.selection.process import QUERY, Checkpoint, GaussianProcess

NOISE = 1e-4
MINIMUM_SCALE = 1e-12
QUERY_RELEVANCE = 1.0


class Posterior(Protocol):
    """Conditioned on one document at a time. `belief` is on a working scale of its own; the rest speaks of scores."""

    def observe(self, document: int, score: float) -> None:
        """Condition on one document's score in [0, 1]; a document is observed once."""

    def fantasise(self, document: int, mean: float) -> None:
        """Condition on a document as if it had come out at this `Belief.mean`, between `checkpoint` and `restore`."""

    def belief(self) -> Belief:
        """The whole pool, scored documents at their value with std 0."""

    def relevance(self) -> NDArray[np.float64]:
        """(N,) expected score; a scored document's own."""

    def gain(self) -> NDArray[np.float64]:
        """(N,) `relevance` on a scale that adds up: what is believed worthless counts nothing."""

    def deviation(self, documents: NDArray[np.intp]) -> NDArray[np.float64]:
        """(n,) standard deviation of the scores of n documents; 0 where scored."""

    def ready(self, document: int) -> bool:
        """Whether observing the document takes no pass over the embeddings."""

    def prepare(self, documents: Sequence[int]) -> None:
        """Compute what the observation of these documents will need, in one pass over the embeddings."""

    def checkpoint(self) -> None:
        """Remember this moment; fantasies may follow."""

    def restore(self) -> None:
        """Return to the moment remembered, forgetting what was fantasised since."""


class ResidualPosterior:
    """The paper's: a Gaussian process on the residual between score and prior (alg:posterior). Its working scale is
    the score's own.

    prior: (N,) prior mean. size: scores at most. query_prior: prior mean of the query, which is then observed at
    relevance 1 (paper sec. 3.2); None leaves it out. Its residual, 0 under the percentile prior and 1 under a zero one,
    counts in the centring like any other.
    The deviation that Z-standardises the residuals cancels from the mean; it scales the standard deviations alone.
    """

    def __init__(
        self,
        prior: NDArray[np.float64],
        covariance: StationaryCovariance,
        size: int,
        *,
        query_prior: float | None,
        noise: float = NOISE,
    ) -> None:
        self._prior = prior
        self._anchored = query_prior is not None
        query_row = covariance.query_row() if self._anchored else None
        self._process = GaussianProcess(covariance, size + self._anchored, noise, query_row)
        self._moment: Checkpoint | None = None
        self._scores: list[float] = []
        if query_prior is not None:
            self._process.observe(QUERY, QUERY_RELEVANCE - query_prior)

    def observe(self, document: int, score: float) -> None:
        """Condition on one document's score; a document is observed once."""
        self._process.observe(document, score - self._prior[document])
        self._scores.append(score)

    def fantasise(self, document: int, mean: float) -> None:
        self.observe(document, mean)

    def belief(self) -> Belief:
        """With scored documents at their score and std 0 (paper app. C.3)."""
        process = self._process
        residuals = process.targets
        centre = residuals.mean() if residuals.size else 0.0
        spread = residuals.std() if residuals.size > 1 else 0.0

        mean = process.weighted_targets - centre * process.weighted_ones
        mean += centre
        mean += self._prior
        std = process.variance
        np.sqrt(std, out=std)
        std *= spread if spread > MINIMUM_SCALE else 1.0
        scored = np.zeros(len(mean), dtype=np.bool_)
        documents = process.observed[self._anchored :]
        mean[documents] = self._scores
        std[documents] = 0.0
        scored[documents] = True
        return Belief(mean, std, scored)

    def relevance(self) -> NDArray[np.float64]:
        return self.belief().mean

    def gain(self) -> NDArray[np.float64]:
        return self.relevance()

    def deviation(self, documents: NDArray[np.intp]) -> NDArray[np.float64]:
        return self.belief().std[documents]

    def ready(self, document: int) -> bool:
        return self._process.ready(document)

    def prepare(self, documents: Sequence[int]) -> None:
        self._process.prepare(documents)

    def checkpoint(self) -> None:
        self._moment = self._process.checkpoint()

    def restore(self) -> None:
        assert self._moment is not None
        self._process.restore(self._moment)
        del self._scores[self._moment.observations - self._anchored :]
