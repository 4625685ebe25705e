"""Define posteriors over a pool given the scores so far: the protocols, and the paper's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.belief import NODE_WEIGHTS, NODES, Belief, normal_share
from boundarymorph.selection.pool import Pool
from boundarymorph.selection.process import MINIMUM_VARIANCE, QUERY, GaussianProcesses, Rehearsal, StationaryCovariance


@dataclass(frozen=True, slots=True)
class Prior:
    """A prior mean.

    Attributes:
        documents: Returns the (N,) prior means of a pool.
        query: The prior mean of the query, which may be observed at relevance 1.
    """

    documents: Callable[[Pool], NDArray[np.float64]]
    query: float


def percentile_prior(pool: Pool) -> NDArray[np.float64]:
    """Return the MIPS percentile rank `(N - 1 - pos) / (N - 1)` (paper sec. 3.2).

    It is 1 at the head and 0 at the end, and 1 if N = 1.
    """
    last = max(len(pool) - 1, 1)
    return np.arange(last, last - len(pool), -1, dtype=np.float64) / last


def zero_prior(pool: Pool) -> NDArray[np.float64]:
    """Return a prior mean of 0, as in BAGEL and the "without prior" ablation (paper sec. 5.2)."""
    return np.zeros(len(pool))


# Nothing ranks above the query itself, so it has the percentile of the head.
PRIORS = {"percentile": Prior(percentile_prior, query=1.0), "zero": Prior(zero_prior, query=0.0)}


NOISE = 1e-4
MINIMUM_SCALE = 1e-12
QUERY_RELEVANCE = 1.0


class BeliefSource(Protocol):
    """Beliefs about N documents that acquisition rules read."""

    def belief(self) -> Belief:
        """Return the belief about the scores.

        Scored documents, real or fantasised, have their score and std 0.
        """

    def reaching_belief(self, least: float) -> Belief:
        """Return the belief about the event that each document scores at least `least`."""


class Beliefs(BeliefSource, Protocol):
    """Beliefs about the scores of N documents."""

    def scorer_belief(self, least: float) -> Belief:
        """Return `reaching_belief` for the scorer's own scores, where relevance differs from them."""

    def reported_belief(self) -> Belief:
        """Return the belief to report: `belief`, corrected for a scorer with a few grades.

        Asking and choosing use `belief` itself, which makes better sets.
        """

    def deciding_belief(self) -> Belief:
        """Return the belief that chooses the set.

        It is `belief`, unless relevance differs from the score.
        """

    def outcomes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return a discrete approximation of the marginal of each score.

        It leaves out the uncertainty of the trend, which is common to all documents. Callers must not change the
        arrays.

        Returns:
            (m, N) probabilities and (m, N) scores of m outcomes.
        """

    def prospects(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return `outcomes` for the expected loss of a set.

        They have the uncertainty of the trend, and deviations that make expected losses about as large as real ones.
        """


class Fantasy(BeliefSource, Protocol):
    """Beliefs about some documents that can be conditioned on fantasies."""

    def fantasise(self, document: int) -> None:
        """Condition on a document scoring its posterior mean."""


class Posterior(Protocol):
    """A posterior over the whole pool, conditioned round by round."""

    @property
    def beliefs(self) -> Beliefs:
        """The beliefs given the scores so far."""

    def observe(self, documents: Sequence[int], scores: Sequence[float]) -> None:
        """Condition on the scores in [0, 1] of documents; a document is observed once."""

    def is_ready(self, document: int) -> bool:
        """Return whether observing the document takes no pass over the embeddings."""

    def prepare(self, documents: Sequence[int]) -> None:
        """Compute everything that observing these documents takes, in one pass over the embeddings."""

    def subset(self, documents: NDArray[np.intp], size: int) -> Fantasy:
        """Return beliefs about a subset of the documents, numbered in this order.

        Args:
            documents: Ascending positions, with every scored document.
            size: The most fantasies.
        """


@dataclass(eq=False)
class Residuals:
    """The paper's beliefs about N documents, from running sums of a process on the residuals.

    Attributes:
        prior: (N,) prior mean.
        explained: (N,) V' z.
        unexplained: (N,) 1 - V' L^-1 1.
        variance: (N,) posterior variance.
        residuals: (t,) observed residuals, the query's first.
        observed: Positions of scored documents.
        scores: Their scores.
    """

    prior: NDArray[np.float64]
    explained: NDArray[np.float64]
    unexplained: NDArray[np.float64]
    variance: NDArray[np.float64]
    residuals: NDArray[np.float64]
    observed: NDArray[np.intp]
    scores: NDArray[np.float64]

    def belief(self) -> Belief:
        """Return the belief, with scored documents at their score and std 0 (paper app. C.3)."""
        centre = self.residuals.mean() if self.residuals.size else 0.0
        spread = self.residuals.std() if self.residuals.size > 1 else 0.0
        mean = centre * self.unexplained
        mean += self.explained
        mean += self.prior
        std = np.sqrt(np.maximum(self.variance, MINIMUM_VARIANCE))
        std *= spread if spread > MINIMUM_SCALE else 1.0
        return Belief.from_observations(mean, std, self.observed, self.scores)

    def reported_belief(self) -> Belief:
        return self.belief()

    def deciding_belief(self) -> Belief:
        return self.belief()

    def reaching_belief(self, least: float) -> Belief:
        belief = self.belief()
        shares = normal_share((belief.mean - least) / np.maximum(belief.std, MINIMUM_SCALE))
        return Belief.from_probabilities(shares, self.observed, self.scores >= least)

    def scorer_belief(self, least: float) -> Belief:
        return self.reaching_belief(least)

    def outcomes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        belief = self.belief()
        scores = np.clip(belief.mean + NODES[:, None] * belief.std, 0.0, 1.0)
        return np.broadcast_to(NODE_WEIGHTS[:, None], scores.shape), scores

    def prospects(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.outcomes()

    def subset(self, documents: NDArray[np.intp]) -> Residuals:
        """Return the beliefs about a subset: ascending positions, with every scored document."""
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
        """Start from residuals, which are changed in place."""
        self.residuals = residuals
        self._rehearsal = rehearsal

    def belief(self) -> Belief:
        return self.residuals.belief()

    def reaching_belief(self, least: float) -> Belief:
        return self.residuals.reaching_belief(least)

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
    """The paper's posterior: a Gaussian process on the residual between score and prior.

    It is Algorithm 1 (alg:posterior). The residual of the query, 0 under the percentile prior and 1 under a zero prior,
    takes part in the centring. The standard deviation that divides the residuals cancels in the mean and only scales
    the standard deviations.
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
        """Start without scores.

        Args:
            prior: (N,) prior mean.
            covariance: The covariance of the documents and the query.
            size: The most scores.
            query_prior: The prior mean of the query, which is then observed at relevance 1 (paper sec. 3.2); None
                leaves the query out.
            noise: The variance of an observation.
        """
        self._prior = prior
        self._covariance = covariance
        self._anchored = query_prior is not None
        query_row = covariance.query_row() if self._anchored else None
        level = np.ones((1, len(prior)))
        self._process = GaussianProcesses(covariance, level, size + self._anchored, noise, query_row=query_row)
        self._scores: dict[int, float] = {}
        if query_prior is not None:
            self._process.observe([QUERY], [QUERY_RELEVANCE - query_prior])

    def observe(self, documents: Sequence[int], scores: Sequence[float]) -> None:
        self._process.observe(documents, np.asarray(scores) - self._prior[list(documents)])
        self._scores.update(zip(documents, scores, strict=True))

    @property
    def beliefs(self) -> Residuals:
        process, scores = self._process, np.array(list(self._scores.values()))
        observed = np.array(list(self._scores), dtype=np.intp)
        (explained,), ((unexplained,),), (variance,) = process.explained, process.residuals, process.variance
        return Residuals(self._prior, explained, unexplained, variance, process.targets, observed, scores)

    def is_ready(self, document: int) -> bool:
        return self._process.is_ready(document)

    def prepare(self, documents: Sequence[int]) -> None:
        self._process.prepare(documents)

    def subset(self, documents: NDArray[np.intp], size: int) -> ResidualFantasy:
        covariance = self._covariance.subset(documents)
        directions, members = np.empty((1, 0, len(documents))), np.empty((1, 0))  # no trend
        rehearsal = Rehearsal(self._process, covariance, documents, size, directions, members, np.ones((1, 1)))
        return ResidualFantasy(self.beliefs.subset(documents), rehearsal)
