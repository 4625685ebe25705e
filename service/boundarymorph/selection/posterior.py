"""Posteriors: what a session believes of a pool, given the scores so far. Here the protocol and the paper's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.belief import Belief
from boundarymorph.selection.covariance import StationaryCovariance
from boundarymorph.selection.link import NODE_WEIGHTS, NODES, normal_share
from boundarymorph.selection.process import MINIMUM_VARIANCE, QUERY, GaussianProcess, Rehearsal

NOISE = 1e-4
MINIMUM_SCALE = 1e-12
QUERY_RELEVANCE = 1.0


class Believed(Protocol):
    """What is believed of N documents, by which is asked."""

    def belief(self) -> Belief:
        """Of their scores; scored documents, and those of fantasies, are at their value with std 0."""

    def reaching(self, least: float) -> Belief:
        """Of whether each scores at least so much: 1 if it does, else 0."""


class Beliefs(Believed, Protocol):
    """What is believed of the scores of N documents."""

    @property
    def graded(self) -> bool:
        """Whether the scorer may be one that gives a few grades: fewer than half of its scores differ, or none."""

    def reported(self, belief: Belief) -> Belief:
        """What an answer reports: `belief`, corrected for a scorer with a few grades. Asking and choosing take `belief`
        itself, which makes better sets. belief: as it is now."""

    def outcomes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(m, N) shares and scores of m outcomes of each document that stand for all that may come, by what is not
        common to all documents, each on its own."""


class Fantasy(Believed, Protocol):
    """Beliefs about some documents, to play through what may come."""

    def fantasise(self, document: int) -> None:
        """Condition on a document as if it had come out as believed."""


class Posterior(Protocol):
    """Beliefs about the whole pool, conditioned on one round of scores after the other."""

    @property
    def beliefs(self) -> Beliefs:
        """As of the scores so far."""

    def observe(self, documents: Sequence[int], scores: Sequence[float]) -> None:
        """Condition on the scores in [0, 1] of documents; a document is observed once."""

    def ready(self, document: int) -> bool:
        """Whether observing the document takes no pass over the embeddings."""

    def prepare(self, documents: Sequence[int]) -> None:
        """Compute what the observation of these documents will need, in one pass over the embeddings."""

    def among(self, documents: NDArray[np.intp]) -> Fantasy:
        """The same beliefs about some documents: ascending, every scored one among them, and numbered in this order."""


@dataclass(eq=False)
class Residuals:
    """The paper's beliefs about N documents, from the sums of a process on the residuals between score and prior.

    prior, explained, unexplained, variance: (N,) prior mean, V' z, 1 - V' L^-1 1 and posterior variance.
    residuals: (t,) observed ones, the query's first. observed, scores: the scored documents' positions and scores.
    """

    prior: NDArray[np.float64]
    explained: NDArray[np.float64]
    unexplained: NDArray[np.float64]
    variance: NDArray[np.float64]
    residuals: NDArray[np.float64]
    observed: NDArray[np.intp]
    scores: NDArray[np.float64]

    def belief(self) -> Belief:
        """With scored documents at their score and std 0 (paper app. C.3)."""
        centre = self.residuals.mean() if self.residuals.size else 0.0
        spread = self.residuals.std() if self.residuals.size > 1 else 0.0
        mean = centre * self.unexplained
        mean += self.explained
        mean += self.prior
        std = np.sqrt(np.maximum(self.variance, MINIMUM_VARIANCE))
        std *= spread if spread > MINIMUM_SCALE else 1.0
        return Belief.given(mean, std, self.observed, self.scores)

    @property
    def graded(self) -> bool:
        return False

    def reported(self, belief: Belief) -> Belief:
        return belief

    def reaching(self, least: float) -> Belief:
        belief = self.belief()
        shares = normal_share((belief.mean - least) / np.maximum(belief.std, MINIMUM_SCALE))
        return Belief.of_shares(shares, self.observed, self.scores >= least)

    def outcomes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        belief = self.belief()
        scores = np.clip(belief.mean + NODES[:, None] * belief.std, 0.0, 1.0)
        return np.broadcast_to(NODE_WEIGHTS[:, None], scores.shape), scores

    def among(self, documents: NDArray[np.intp]) -> Residuals:
        """About some documents alone, ascending, every scored one among them."""
        return Residuals(
            self.prior[documents],
            self.explained[documents],
            self.unexplained[documents],
            self.variance[documents],
            self.residuals,
            np.searchsorted(documents, self.observed),
            self.scores,
        )


class ResidualFantasy:
    """The paper's beliefs about some documents, conditioned on fantasies."""

    def __init__(self, residuals: Residuals, rehearsal: Rehearsal) -> None:
        """residuals: which are changed."""
        self.residuals = residuals
        self._rehearsal = rehearsal

    def belief(self) -> Belief:
        return self.residuals.belief()

    def reaching(self, least: float) -> Belief:
        return self.residuals.reaching(least)

    def fantasise(self, document: int) -> None:
        of = self.residuals
        mean = float(of.belief().mean[document])
        (row,), ((pivot,),) = self._rehearsal.condition(document)
        residual = mean - of.prior[document]
        of.explained += (residual - of.explained[document]) / pivot * row
        of.unexplained -= of.unexplained[document] / pivot * row
        of.variance -= row * row
        of.residuals = np.append(of.residuals, residual)
        of.observed = np.append(of.observed, document)
        of.scores = np.append(of.scores, mean)


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
        self._covariance = covariance
        self._anchored = query_prior is not None
        query_row = covariance.query_row() if self._anchored else None
        level = np.ones((1, len(prior)))
        self._process = GaussianProcess(covariance, level, size + self._anchored, noise, query_row=query_row)
        self._scores: dict[int, float] = {}
        if query_prior is not None:
            self._process.observe([QUERY], [QUERY_RELEVANCE - query_prior])

    def observe(self, documents: Sequence[int], scores: Sequence[float]) -> None:
        """Condition on the scores of documents; a document is observed once."""
        self._process.observe(documents, np.asarray(scores) - self._prior[list(documents)])
        self._scores.update(zip(documents, scores, strict=True))

    @property
    def beliefs(self) -> Residuals:
        process, scores = self._process, np.array(list(self._scores.values()))
        observed = np.array(list(self._scores), dtype=np.intp)
        return Residuals(
            self._prior, process.explained, process.residuals[0], process.variance, process.targets, observed, scores
        )

    def ready(self, document: int) -> bool:
        return self._process.ready(document)

    def prepare(self, documents: Sequence[int]) -> None:
        self._process.prepare(documents)

    def among(self, documents: NDArray[np.intp]) -> ResidualFantasy:
        covariance = self._covariance.among(documents)
        directions, members = np.empty((1, 0, len(documents))), np.empty((1, 0))  # no trend
        rehearsal = Rehearsal([self._process], [covariance], documents, directions, members, np.ones((1, 1)))
        return ResidualFantasy(self.beliefs.among(documents), rehearsal)
