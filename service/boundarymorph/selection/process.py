"""Gaussian processes over a pool with a trend in given columns, conditioned one round at a time, exactly.

With the Cholesky factor L of K(A, A) + noise I over the observed documents A, the rows of V = L^-1 K(A, C) never change
once written. A round of new observations X appends

    V_X = L_X^-1 (K(X, C) - V(:, X)' V),    L_X L_X' = K(X, X) + noise I - V(:, X)' V(:, X)

With z = L^-1 y for the targets y, and G = L^-1 H(A) for the columns H (the level is one of ones), the running sums V' z
and H(C)' - V' G give the posterior mean under any coefficients b of the columns as V' z + (H - V' G) b. That is
Algorithm 1 of the paper (alg:posterior) in O(tN + Nd) an observation instead of O(t^2 N).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.geometry import Covariance

ESCALATED_NOISE = 1e-2
MINIMUM_VARIANCE = 1e-12
QUERY = -1  # stands for the query among the observed documents
LARGEST_ROUND = 32  # observations entered at once


class GaussianProcesses:
    """g processes of different covariances after the same t of at most `size` observations. Memory: g x size x N
    numbers of `dtype` and a few vectors.

    observed: the documents, in order, QUERY for the query. explained: (g, N) V' z. residuals: (g, p, N) H - V' G.
    variance: (g, N) posterior variances for known coefficients, positive up to rounding.
    noise: variance of an observation. If a factorisation is not positive definite, the noise is raised, first to
    1e-2, and all observations are entered again (paper app. C.3).
    """

    observed: list[int]
    explained: NDArray[np.float64]
    residuals: NDArray[np.float64]
    variance: NDArray[np.float64]
    _ahead: dict[int, tuple[int, NDArray[np.floating]]]  # covariances given the first t observations

    def __init__(
        self,
        covariance: Covariance,
        columns: NDArray[np.float64],
        size: int,
        noise: float,
        *,
        query_row: NDArray[np.float64] | None = None,
        dtype: type[np.floating] | np.dtype[np.floating] = np.float64,
    ) -> None:
        """columns: (p, N) H. query_row: (N,) covariances of the query with the pool, if it is to be observed; its own
        variance and columns are 1. dtype: of V; sums are float64."""
        self._covariance = covariance
        self._columns = columns
        self._query_row = query_row
        self._ahead_limit = max(size // 8, 1)
        count = len(covariance.diagonal)
        self._rows = np.empty((count, size, columns.shape[1]), dtype)  # V
        self._factors = np.zeros((count, size, size))  # L
        self._known = np.empty((size, 1 + len(columns)))  # y and H(A)
        self._whitened = np.empty((count, *self._known.shape))  # z and G
        self.noise = noise
        self._start()

    @property
    def targets(self) -> NDArray[np.float64]:
        """(t,) y"""
        return self._known[: len(self.observed), 0]

    @property
    def whitened_targets(self) -> NDArray[np.float64]:
        """(g, t) z"""
        return self._whitened[:, : len(self.observed), 0]

    @property
    def whitened_columns(self) -> NDArray[np.float64]:
        """(g, t, p) G"""
        return self._whitened[:, : len(self.observed), 1:]

    @property
    def log_determinants(self) -> NDArray[np.float64]:
        """(g,) log det L"""
        determinants: NDArray[np.float64] = np.log(self.pivots).sum(axis=1)
        return determinants

    @property
    def pivots(self) -> NDArray[np.float64]:
        """(g, t) the diagonals of L: the standard deviation of each observation conditional on those before it."""
        return self._factors.diagonal(axis1=1, axis2=2)[:, : len(self.observed)]

    def rows(self, documents: NDArray[np.intp]) -> NDArray[np.floating]:
        """(g, t, n) V of these documents."""
        return self._rows[:, : len(self.observed), documents]

    def observe(self, documents: Sequence[int], targets: Sequence[float] | NDArray[np.float64]) -> None:
        """Condition on documents, each observed once. QUERY may only be the first, and alone."""
        for start in range(0, len(documents), LARGEST_ROUND):
            end = start + LARGEST_ROUND
            self._observe(list(documents[start:end]), np.asarray(targets[start:end]))

    def ready(self, document: int) -> bool:
        """Whether observing the document takes no pass over the embeddings."""
        return document in self._ahead

    def prepare(self, documents: Sequence[int]) -> None:
        """Compute the covariances of several documents in one pass over the embeddings and over V, and keep them.

        When these documents are observed, their rows only need an update for what was observed in between. By
        matrix-matrix products, sixteen rows cost about as much as four.
        """
        documents = [document for document in documents if document not in self._ahead][: self._ahead_limit]
        rows = self._given(documents, 0, self._covariance.rows(documents))
        while len(self._ahead) + len(documents) > self._ahead_limit:
            del self._ahead[next(iter(self._ahead))]
        for place, document in enumerate(documents):
            self._ahead[document] = (len(self.observed), rows[:, place, None].copy())

    def retarget(self, targets: NDArray[np.float64]) -> None:
        """Replace all t targets, in order of observation, in O(tN)."""
        t = len(self.observed)
        self._known[:t, 0] = targets
        self._whitened[:, :t, 0] = np.linalg.solve(self._factors[:, :t, :t], targets[:, None])[..., 0]
        self.explained = np.matmul(self._whitened[:, None, :t, 0].astype(self._rows.dtype), self._rows[:, :t])[:, 0]

    def _start(self) -> None:
        self.observed, self._ahead = [], {}
        self.variance = self._covariance.diagonal.copy()
        self.explained = np.zeros_like(self.variance)
        self.residuals = np.tile(self._columns, (len(self.variance), 1, 1))

    def _observe(self, documents: list[int], targets: NDArray[np.float64]) -> None:
        t, end = len(self.observed), len(self.observed) + len(documents)
        rows = self._rows_of(documents)
        shared, own, columns = np.empty((1, 1, 0)), np.ones((1, 1, 1)), np.ones((1, len(self._columns)))
        if documents != [QUERY]:
            shared = self._rows[:, :t, documents].swapaxes(1, 2).astype(np.float64)
            own, columns = rows[:, :, documents].astype(np.float64), self._columns[:, documents].T
        factors = _cholesky(own + self.noise * np.eye(len(documents)))
        if (
            factors.diagonal(axis1=1, axis2=2).min() ** 2 < self.noise / 2
        ):  # never less than the noise in exact arithmetic
            self._escalate()
            self._observe(documents, targets)
            return
        inverses = np.linalg.inv(factors)
        new = np.matmul(inverses.astype(rows.dtype), rows, out=self._rows[:, t:end])
        self._factors[:, t:end, :t], self._factors[:, t:end, t:end] = shared, factors
        self._known[t:end, 0], self._known[t:end, 1:] = targets, columns
        whitened = inverses @ (self._known[t:end] - shared @ self._whitened[:, :t])
        self._whitened[:, t:end] = whitened
        sums = whitened.swapaxes(1, 2).astype(rows.dtype) @ new
        self.explained += sums[:, 0]
        self.residuals -= sums[:, 1:]
        self.variance -= np.einsum("gmn,gmn->gn", new, new)
        self.observed += documents

    def _rows_of(self, documents: list[int]) -> NDArray[np.floating]:
        """(g, m, N) covariances of documents with all, conditional on all observations."""
        if documents == [QUERY]:
            assert self._query_row is not None
            return self._query_row[None, None]
        if len(documents) == 1 and documents[0] in self._ahead:
            since, row = self._ahead.pop(documents[0])
            return self._given(documents, since, row)
        return self._given(documents, 0, self._covariance.rows(documents))

    def _given(self, documents: list[int], since: int, rows: NDArray[np.floating]) -> NDArray[np.floating]:
        """Update covariances, which are conditional on the first `since` observations, in place."""
        if since == len(self.observed):
            return rows
        earlier = self._rows[:, since : len(self.observed)]
        rows -= earlier[:, :, documents].swapaxes(1, 2) @ earlier
        return rows

    def _escalate(self) -> None:
        observed, targets = self.observed, self.targets.copy()
        self.noise = max(ESCALATED_NOISE, 10 * self.noise)
        self._start()
        anchors = int(observed[:1] == [QUERY])
        self.observe(observed[:anchors], targets[:anchors])
        self.observe(observed[anchors:], targets[anchors:])


class Rehearsal:
    """Members of g processes on n documents, conditioned on one document after another, for fantasies.

    Each process has q members, whose trends use some of its columns.
    """

    def __init__(
        self,
        processes: GaussianProcesses,
        covariance: Covariance,
        documents: NDArray[np.intp],
        size: int,
        directions: NDArray[np.float64],
        members: NDArray[np.float64],
        scales: NDArray[np.float64],
    ) -> None:
        """covariance: of the n documents; size: the most of them to condition on; directions: (g, p, n), whose inner
        products are the covariances of the trends; members: (q, p), 1 for the columns of each member; scales: (g, q)
        squared amplitudes."""
        self._covariance = covariance
        self._given = processes.rows(documents)
        self._directions = directions
        self._members = members
        self._scales = scales[:, :, None]
        self._noise = processes.noise * scales.ravel()
        self._rows = np.empty((scales.size, size, len(documents)))
        self._count = 0

    def condition(self, document: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Condition on a document. Returns the (g q, n) new row of each member's V and its (g q, 1) pivot. A target
        that differs from its mean by r adds rows * r / pivots to the means; the variances fall by the squares of the
        rows."""
        field = self._covariance.rows([document])
        field -= self._given[:, None, :, document] @ self._given
        members = (self._members * self._directions[:, None, :, document]) @ self._directions
        members += field
        members *= self._scales
        rows: NDArray[np.float64] = members.reshape(-1, members.shape[-1])
        earlier = self._rows[:, : self._count]
        rows -= (earlier[:, None, :, document] @ earlier)[:, 0]
        pivots = np.sqrt(rows[:, document] + self._noise)[:, None]
        rows /= pivots
        self._rows[:, self._count] = rows
        self._count += 1
        return rows, pivots


def _cholesky(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Lower factors (g, m, m); zeros if one of them does not exist."""
    try:
        return np.asarray(np.linalg.cholesky(matrices), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.zeros_like(matrices)
