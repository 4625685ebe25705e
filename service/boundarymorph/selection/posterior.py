"""The Gaussian process on the residual between score and prior, conditioned one document at a time.

Algorithm 1 of the paper (alg:posterior), exactly, in O(tN + Nd) an observation instead of O(t^2 N): with the Cholesky
factor L of K(A, A) + noise I, the rows of V = L^-1 K(A, C) never change once written, so a new observation x appends
one row

    v = (k(x, C) - V(:, x)' V) / pivot,    pivot^2 = 1 + noise - V(:, x)' V(:, x)

and the column V(:, x) is the new row of L itself. With alpha = L^-1 e and beta = L^-1 1, the running sums
P = V' alpha and Q = V' beta give the mean for any centring m of the residuals e: mu = mu0 + m + P - m Q. The standard
deviation that Z-standardises the residuals cancels from the mean; it scales sigma alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.belief import Belief
from boundarymorph.selection.geometry import CosineDistances
from boundarymorph.selection.kernels import Kernel
from boundarymorph.selection.pool import Pool

NOISE = 1e-4
ESCALATED_NOISE = 1e-2
MINIMUM_VARIANCE = 1e-12
MINIMUM_SCALE = 1e-12
ANCHOR = -1  # stands for the query among the observed documents


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A moment to which a posterior can return."""

    observations: int
    noise: float
    weighted_residuals: NDArray[np.float64]
    weighted_ones: NDArray[np.float64]
    variance: NDArray[np.float64]


class ResidualPosterior:
    """Belief over a pool of N documents, after at most `size` observations. Memory: 8 size N bytes and a few vectors.

    prior: (N,) prior mean. anchored: enter the query as an observation at relevance 1, where its prior is 1 too: it
    draws in the variance near q and counts as one residual of 0 in the centring (paper sec. 3.2).
    """

    def __init__(
        self,
        pool: Pool,
        prior: NDArray[np.float64],
        kernel: Kernel,
        size: int,
        *,
        anchored: bool = True,
        noise: float = NOISE,
    ) -> None:
        rows = size + anchored
        self._count = len(pool)
        self._distances = CosineDistances(pool)
        self._prior = prior
        self._kernel = kernel
        self.noise = noise
        self._ahead_limit = max(size // 8, 1)
        self._rows = np.empty((rows, len(pool)))  # V
        self._pivots = np.empty(rows)
        self._residuals = np.empty(rows)  # e
        self._scores = np.empty(len(pool))  # of the observed documents; the others' entries mean nothing
        self._alpha = np.empty(rows)
        self._beta = np.empty(rows)
        self._observed: list[int] = []
        self._written: list[int] = []  # whose rows of V stand; runs ahead of _observed after a restore
        self._ahead: dict[int, tuple[int, NDArray[np.float64]]] = {}  # covariance given the first t observations
        self._start()
        if anchored:
            self._append(ANCHOR, 0.0)

    @property
    def variance(self) -> NDArray[np.float64]:
        """(N,) variance in units of the kernel, before it is scaled by the spread of the residuals."""
        return np.maximum(self._variance, MINIMUM_VARIANCE)

    def observe(self, document: int, score: float) -> None:
        """Condition on one document's score; a document is observed once."""
        self._append(document, score - self._prior[document])
        self._scores[document] = score

    def belief(self) -> Belief:
        """The posterior of the whole pool, with scored documents at their score and std 0 (paper app. C.3)."""
        residuals = self._residuals[: len(self._observed)]
        centre = residuals.mean() if residuals.size else 0.0
        spread = residuals.std() if residuals.size > 1 else 0.0
        scale = spread if spread > MINIMUM_SCALE else 1.0

        mean = self._weighted_residuals - centre * self._weighted_ones
        mean += centre
        mean += self._prior
        std = np.sqrt(self.variance)
        std *= scale
        scored = np.zeros(self._count, dtype=np.bool_)
        documents = [document for document in self._observed if document != ANCHOR]
        mean[documents] = self._scores[documents]
        std[documents] = 0.0
        scored[documents] = True
        return Belief(mean, std, scored)

    def ready(self, document: int) -> bool:
        """Whether observing the document takes no pass over the embeddings."""
        t = len(self._observed)
        return document in self._ahead or self._written[t : t + 1] == [document]

    def prepare(self, documents: Sequence[int]) -> None:
        """Compute the covariances of several documents in one pass over the embeddings and over V, and keep them.

        They serve the documents' own observations later, when they are only brought up to date with what was observed
        in between. Matrix-matrix products make eight rows cost about as much as three.
        """
        t = len(self._observed)
        documents = [document for document in documents if document not in self._ahead]
        covariance = self._kernel(self._distances.from_documents(documents))
        covariance -= self._rows[:t, documents].T @ self._rows[:t]
        for document, row in zip(documents, covariance, strict=True):
            self._ahead[document] = (t, row.copy())
        while len(self._ahead) > self._ahead_limit:
            del self._ahead[next(iter(self._ahead))]

    def checkpoint(self) -> Checkpoint:
        """Remember this moment, to `restore` it after fantasised observations."""
        return Checkpoint(
            len(self._observed),
            self.noise,
            self._weighted_residuals.copy(),
            self._weighted_ones.copy(),
            self._variance.copy(),
        )

    def restore(self, moment: Checkpoint) -> None:
        """Forget what was observed since. The rows of V stay: they depend on the documents, not on their scores, so
        observing the same documents again in the same order costs O(N) each."""
        del self._observed[moment.observations :]
        if moment.noise != self.noise:
            self._condition_anew()
            return
        self._weighted_residuals = moment.weighted_residuals.copy()
        self._weighted_ones = moment.weighted_ones.copy()
        self._variance = moment.variance.copy()
        self._ahead = {d: (t, row) for d, (t, row) in self._ahead.items() if t <= moment.observations}

    def _start(self) -> None:
        self._observed, self._written, self._ahead = [], [], {}
        self._weighted_residuals = np.zeros(self._count)  # P
        self._weighted_ones = np.zeros(self._count)  # Q
        self._variance = np.ones(self._count)

    def _condition_anew(self) -> None:
        observed = self._observed
        self._start()
        for t, document in enumerate(observed):
            self._append(document, float(self._residuals[t]))

    def _append(self, document: int, residual: float) -> None:
        t = len(self._observed)
        column = self._rows[:0, 0] if document == ANCHOR else self._rows[:t, document]  # a row of L, less its pivot
        if self._written[t : t + 1] != [document]:
            squared_pivot = 1.0 + self.noise - column @ column
            if squared_pivot < self.noise / 2 and self.noise < ESCALATED_NOISE:  # in exact arithmetic >= noise
                self.noise = ESCALATED_NOISE
                self._condition_anew()
                self._append(document, residual)
                return
            self._pivots[t] = max(float(squared_pivot), self.noise / 2) ** 0.5
            np.divide(self._covariance(document), self._pivots[t], out=self._rows[t])
            self._written[t:] = [document]
        row, pivot = self._rows[t], self._pivots[t]
        self._residuals[t] = residual
        self._alpha[t] = (residual - column @ self._alpha[:t]) / pivot
        self._beta[t] = (1.0 - column @ self._beta[:t]) / pivot
        self._weighted_residuals += self._alpha[t] * row
        self._weighted_ones += self._beta[t] * row
        self._variance -= row * row
        self._observed.append(document)

    def _covariance(self, document: int) -> NDArray[np.float64]:
        """Covariance (N,) of a document with all others, given everything observed so far."""
        t = len(self._observed)
        if document == ANCHOR:
            return self._kernel(self._distances.from_query())
        if document in self._ahead:
            since, row = self._ahead.pop(document)
        else:
            since, row = 0, self._kernel(self._distances.from_documents([document])[0])
        row -= self._rows[since:t, document] @ self._rows[since:t]
        return row
