"""A zero-mean Gaussian process over a pool, conditioned one document at a time, exactly.

With the Cholesky factor L of K(A, A) + noise I over the observed documents A, the rows of V = L^-1 K(A, C) never change
once written, so a new observation x appends one row

    v = (k(x, C) - V(:, x)' V) / pivot,    pivot^2 = k(x, x) + noise - V(:, x)' V(:, x)

and the column V(:, x) is the new row of L itself. With alpha = L^-1 e for the targets e and beta = L^-1 1, the running
sums P = V' alpha and Q = V' beta give the posterior mean under any level m of the targets as m + P - m Q. That is
Algorithm 1 of the paper (alg:posterior) in O(tN + Nd) an observation instead of O(t^2 N).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.covariance import Covariance

ESCALATED_NOISE = 1e-2
MINIMUM_VARIANCE = 1e-12
QUERY = -1  # stands for the query among the observed documents


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A moment to which a process can return."""

    observations: int
    noise: float
    weighted_targets: NDArray[np.float64]
    weighted_ones: NDArray[np.float64]
    variance: NDArray[np.float64]


class GaussianProcess:
    """The state after t of at most `size` observations. Memory: 8 size N bytes and a few vectors.

    observed: the documents, in order, QUERY for the query. targets, alpha, beta: (t,) e, L^-1 e and L^-1 1.
    weighted_targets, weighted_ones: (N,) P and Q. log_determinant: log det L.
    noise: variance of an observation. If the factorisation loses definiteness, it goes up to 1e-2 once and all
    observations are conditioned on anew (paper app. C.3).
    """

    observed: list[int]
    weighted_targets: NDArray[np.float64]
    weighted_ones: NDArray[np.float64]
    _written: list[int]  # whose rows of V stand; runs ahead of observed after a restore
    _ahead: dict[int, tuple[int, NDArray[np.float64]]]  # covariances given the first t observations

    def __init__(
        self, covariance: Covariance, size: int, noise: float, query_row: NDArray[np.float64] | None = None
    ) -> None:
        """query_row: (N,) covariances of the query with the pool, its own variance being 1, if it is to be observed."""
        self._covariance = covariance
        self._query_row = query_row
        self._ahead_limit = max(size // 8, 1)
        self._rows = np.empty((size, len(covariance.diagonal)))  # V
        self._pivots = np.empty(size)
        self._targets = np.empty(size)
        self._alpha = np.empty(size)
        self._beta = np.empty(size)
        self.noise = noise
        self._start()

    @property
    def targets(self) -> NDArray[np.float64]:
        return self._targets[: len(self.observed)]

    @property
    def alpha(self) -> NDArray[np.float64]:
        return self._alpha[: len(self.observed)]

    @property
    def beta(self) -> NDArray[np.float64]:
        return self._beta[: len(self.observed)]

    @property
    def log_determinant(self) -> float:
        return float(np.log(self._pivots[: len(self.observed)]).sum())

    @property
    def variance(self) -> NDArray[np.float64]:
        """(N,) posterior variance around a known level, in units of the covariance."""
        return np.maximum(self._variance, MINIMUM_VARIANCE)

    def observe(self, document: int, target: float) -> None:
        """Condition on one document, or on QUERY as the first; each is observed once."""
        t = len(self.observed)
        column = self._rows[:0, 0] if document == QUERY else self._rows[:t, document]  # a row of L, less its pivot
        if self._written[t : t + 1] != [document]:
            prior_variance = 1.0 if document == QUERY else self._covariance.diagonal[document]
            squared_pivot = float(prior_variance + self.noise - column @ column)
            if squared_pivot < self.noise / 2 and self.noise < ESCALATED_NOISE:  # in exact arithmetic >= noise
                self.noise = ESCALATED_NOISE
                self._condition_anew()
                self.observe(document, target)
                return
            self._pivots[t] = max(squared_pivot, self.noise / 2) ** 0.5
            np.divide(self._posterior_row(document), self._pivots[t], out=self._rows[t])
            self._written[t:] = [document]
        row, pivot = self._rows[t], self._pivots[t]
        self._targets[t] = target
        self._alpha[t] = (target - column @ self._alpha[:t]) / pivot
        self._beta[t] = (1.0 - column @ self._beta[:t]) / pivot
        self.weighted_targets += self._alpha[t] * row
        self.weighted_ones += self._beta[t] * row
        self._variance -= row * row
        self.observed.append(document)

    def ready(self, document: int) -> bool:
        """Whether observing the document takes no pass over the embeddings."""
        t = len(self.observed)
        return document in self._ahead or self._written[t : t + 1] == [document]

    def prepare(self, documents: Sequence[int]) -> None:
        """Compute the covariances of several documents in one pass over the embeddings and over V, and keep them.

        They serve the documents' own observations later, when they are only brought up to date with what was observed
        in between. Matrix-matrix products make sixteen rows cost about as much as four.
        """
        t = len(self.observed)
        documents = [document for document in documents if document not in self._ahead][: self._ahead_limit]
        rows = self._covariance.rows(documents)
        rows -= self._rows[:t, documents].T @ self._rows[:t]
        while len(self._ahead) + len(documents) > self._ahead_limit:
            del self._ahead[next(iter(self._ahead))]
        for document, row in zip(documents, rows, strict=True):
            self._ahead[document] = (t, row.copy())

    def retarget(self, targets: NDArray[np.float64]) -> None:
        """Replace all t targets, in order of observation, at O(tN)."""
        self._targets[: len(targets)] = targets
        for t, document in enumerate(self.observed):
            column = self._rows[:0, 0] if document == QUERY else self._rows[:t, document]
            self._alpha[t] = (targets[t] - column @ self._alpha[:t]) / self._pivots[t]
        self.weighted_targets = self.alpha @ self._rows[: len(targets)]

    def checkpoint(self) -> Checkpoint:
        """Remember this moment, to `restore` it after fantasised observations."""
        return Checkpoint(
            len(self.observed),
            self.noise,
            self.weighted_targets.copy(),
            self.weighted_ones.copy(),
            self._variance.copy(),
        )

    def restore(self, moment: Checkpoint) -> None:
        """Forget what was observed since. The rows of V stay: they depend on the documents, not on their targets, so
        observing the same documents again in the same order costs O(N) each."""
        del self.observed[moment.observations :]
        if moment.noise != self.noise:
            self._condition_anew()
            return
        self.weighted_targets = moment.weighted_targets.copy()
        self.weighted_ones = moment.weighted_ones.copy()
        self._variance = moment.variance.copy()
        self._ahead = {d: (t, row) for d, (t, row) in self._ahead.items() if t <= moment.observations}

    def _start(self) -> None:
        count = self._rows.shape[1]
        self.observed, self._written, self._ahead = [], [], {}
        self.weighted_targets = np.zeros(count)
        self.weighted_ones = np.zeros(count)
        self._variance = self._covariance.diagonal.copy()

    def _condition_anew(self) -> None:
        observed = self.observed
        self._start()
        for t, document in enumerate(observed):
            self.observe(document, float(self._targets[t]))

    def _posterior_row(self, document: int) -> NDArray[np.float64]:
        """Covariance (N,) of a document with all others, given everything observed so far."""
        t = len(self.observed)
        if document == QUERY:
            assert self._query_row is not None
            return self._query_row
        if document in self._ahead:
            since, row = self._ahead.pop(document)
        else:
            since, row = 0, np.asarray(self._covariance.rows([document])[0])
        row -= self._rows[since:t, document] @ self._rows[since:t]
        return row
