"""The paper's posterior: a Gaussian process on the residual between score and prior (alg:posterior)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.belief import Belief
from boundarymorph.selection.covariance import Covariance
from boundarymorph.selection.process import QUERY, Checkpoint, GaussianProcess

NOISE = 1e-4
MINIMUM_SCALE = 1e-12


class ResidualPosterior:
    """Belief over a pool of N documents after at most `size` scores.

    prior: (N,) prior mean. anchored: enter the query as an observation at relevance 1, where its prior is 1 too: it
    draws in the variance near q and counts as one residual of 0 in the centring (paper sec. 3.2). The deviation that
    Z-standardises the residuals cancels from the mean; it scales the standard deviations alone.
    """

    def __init__(
        self,
        prior: NDArray[np.float64],
        covariance: Covariance,
        size: int,
        *,
        anchored: bool = True,
        noise: float = NOISE,
    ) -> None:
        self._prior = prior
        self._process = GaussianProcess(covariance, size + anchored, noise)
        self._anchored = anchored
        self._scores = np.empty(len(prior))  # of the observed documents; the other entries mean nothing
        if anchored:
            self._process.observe(QUERY, 0.0)

    def observe(self, document: int, score: float) -> None:
        """Condition on one document's score; a document is observed once."""
        self._process.observe(document, score - self._prior[document])
        self._scores[document] = score

    def belief(self) -> Belief:
        """The posterior of the whole pool, with scored documents at their score and std 0 (paper app. C.3)."""
        process = self._process
        residuals = process.targets
        centre = residuals.mean() if residuals.size else 0.0
        spread = residuals.std() if residuals.size > 1 else 0.0

        mean = process.weighted_targets - centre * process.weighted_ones
        mean += centre
        mean += self._prior
        std = np.sqrt(process.variance)
        std *= spread if spread > MINIMUM_SCALE else 1.0
        scored = np.zeros(len(mean), dtype=np.bool_)
        documents = process.observed[self._anchored :]
        mean[documents] = self._scores[documents]
        std[documents] = 0.0
        scored[documents] = True
        return Belief(mean, std, scored)

    def ready(self, document: int) -> bool:
        """Whether observing the document takes no pass over the embeddings."""
        return self._process.ready(document)

    def prepare(self, documents: Sequence[int]) -> None:
        """Compute what the observation of these documents will need, in one pass over the embeddings."""
        self._process.prepare(documents)

    def checkpoint(self) -> Checkpoint:
        """Remember this moment."""
        return self._process.checkpoint()

    def restore(self, moment: Checkpoint) -> None:
        """Return to a moment, forgetting what was observed since."""
        self._process.restore(moment)
