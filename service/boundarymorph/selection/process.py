"""Condition Gaussian processes with a trend on observations, exactly, one round at a time.

The trend is a sum of given columns. The kernels (paper sec. 3.2 and app. C.4) are functions of the cosine distances
between unit embeddings.

With the Cholesky factor L of K(A, A) + noise I over the observed documents A, the rows of V = L^-1 K(A, C) never change
once written. A round of new observations X appends

    V_X = L_X^-1 (K(X, C) - V(:, X)' V),    L_X L_X' = K(X, X) + noise I - V(:, X)' V(:, X)

Let z = L^-1 y for the targets y, and G = L^-1 H(A) for the columns H (the level is a column of ones). The running sums
V' z and H(C)' - V' G give the posterior mean under any coefficients b of the columns: V' z + (H - V' G) b. This is
Algorithm 1 of the paper (alg:posterior) in `O(tN + Nd)` per observation instead of `O(t^2 N)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.pool import Pool, terms

DEFAULT_PAIRS = 5_000
BLOCK = 96  # rows of embeddings in one computation, so that they stay in the processor's cache
ROWS = 128  # rows in one multiplication: few enough that OpenBLAS does not copy them first
NUMBERS = BLOCK * 384  # numbers gathered at a time, so that they stay in the processor's cache
Number = TypeVar("Number", bound=np.floating)


class CosineDistances:
    """Exact cosine distances 1 - cos between the points of a pool, for any type of embeddings.

    Float32 inner products of unit vectors have errors of about 1e-7, which change a choice after some hundred
    observations. So products are summed in float64 and divided by the exact lengths. The rows of several documents are
    computed in one pass over the embeddings, because reading them takes most of the time.
    """

    def __init__(self, pool: Pool) -> None:
        self.count = len(pool)
        self._embeddings = pool.embeddings
        self._query = pool.query
        self._lengths = _lengths(pool.embeddings)

    def from_documents(self, documents: Sequence[int]) -> NDArray[np.float64]:
        """Return the (m, N) distances from m documents to all."""
        return self._distances(self._embeddings[documents], self._lengths[documents])

    def from_query(self) -> NDArray[np.float64]:
        """Return the (N,) distances from the query to all documents."""
        distances: NDArray[np.float64] = self._distances(self._query[None], _lengths(self._query[None]))[0]
        return distances

    def subset(self, documents: NDArray[np.intp]) -> CosineDistances:
        """Return the same distances for a subset of the documents."""
        narrowed = copy(self)
        narrowed.count = len(documents)
        narrowed._embeddings, narrowed._lengths = self._embeddings[documents], self._lengths[documents]
        return narrowed

    def _distances(self, points: NDArray[np.floating], lengths: NDArray[np.float64]) -> NDArray[np.float64]:
        products = inner_products(points.astype(np.float64), self._embeddings)
        products /= lengths[:, None]
        products /= self._lengths
        distances: NDArray[np.float64] = np.subtract(1.0, products, out=products)
        return distances


def _lengths(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the (n,) exact lengths of (n, d) rows."""
    squares = np.empty(len(rows))
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK].astype(np.float64, copy=False)
        np.einsum("nd,nd->n", block, block, out=squares[start : start + BLOCK])
    return np.sqrt(squares)


def inner_products(points: NDArray[Number], embeddings: NDArray[np.floating]) -> NDArray[Number]:
    """Return the (m, N) inner products of (m, d) points with (N, d) embeddings.

    They are multiplied and summed in the points' type.
    """
    products = np.empty((len(points), len(embeddings)), dtype=points.dtype)
    columns = np.ascontiguousarray(points.T)  # OpenBLAS takes a third of the time for rows times columns
    for start in range(0, len(embeddings), ROWS):
        rows = embeddings[start : start + ROWS].astype(points.dtype, copy=False)
        products[:, start : start + ROWS] = (rows @ columns).T
    return products


def median_distance(embeddings: NDArray[np.floating], pairs: int | None = DEFAULT_PAIRS, seed: int = 0) -> float:
    """Return the median of 1 - cos(d_i, d_j) over i < j; 0 for a single document.

    With 5,000 pairs the error is 0.2 to 0.6 %.

    Args:
        embeddings: (N, d) unit rows.
        pairs: The least number of random pairs, in which documents are about equally frequent. None, or more than there
            are, takes all pairs.
        seed: The seed of the random pairs.
    """
    count = len(embeddings)
    if count < 2:
        return 0.0
    if pairs is None or pairs >= count * (count - 1) // 2:
        return 1.0 - float(np.median(np.concatenate(list(_upper_cosines(embeddings))).astype(np.float64)))
    rng = np.random.default_rng(seed)
    block = max(NUMBERS // max(embeddings.shape[1], 1), 1)
    cosines: list[NDArray[np.floating]] = []
    while pairs > 0:
        shuffled = rng.permutation(count)
        first, second = shuffled[: count // 2][:pairs], shuffled[count // 2 :]
        for start in range(0, len(first), block):
            one, other = (embeddings.take(side[start : min(start + block, len(first))], 0) for side in (first, second))
            cosines.append(np.einsum("nd,nd->n", one, other))
        pairs -= count // 2
    return 1.0 - float(np.median(np.concatenate(cosines)))


def _upper_cosines(embeddings: NDArray[np.floating], block: int = 256) -> Iterator[NDArray[np.floating]]:
    for start in range(0, len(embeddings) - 1, block):
        rows = embeddings[start : start + block]
        cosines = rows @ embeddings[start:].T
        yield cosines[np.arange(len(rows))[:, None] < np.arange(cosines.shape[1])[None, :]]


DEGENERATE = 1e-6  # a median distance below this is rounding noise of float32 unit vectors


class Kernel(Protocol):
    """A positive definite function of the cosine distance u = 1 - cos, with k(0) = 1."""

    name: ClassVar[str]

    @classmethod
    def from_median(cls, distance: float) -> Self:
        """Derive the bandwidth from the pool's median u; take 1 if the median is about 0."""

    def __call__(self, distance: NDArray[Number]) -> NDArray[Number]:
        """Return covariance, of the same shape as the distances."""


@dataclass(frozen=True, slots=True)
class VonMisesFisher:
    """exp(-kappa u); kappa = log 2 / median distance halves the covariance at that distance."""

    kappa: float
    name: ClassVar[str] = "vmf"

    @classmethod
    def from_median(cls, distance: float) -> Self:
        return cls(math.log(2) / distance if distance > DEGENERATE else 1.0)

    def __call__(self, distance: NDArray[Number]) -> NDArray[Number]:
        values: NDArray[Number] = np.multiply(distance, -self.kappa, dtype=distance.dtype)
        np.exp(values, out=values)
        return values


@dataclass(frozen=True, slots=True)
class SquaredExponential:
    """exp(-u / l^2), where l^2 is the median distance (RBF; paper eq. alt-kernels)."""

    squared_length: float
    name: ClassVar[str] = "rbf"

    @classmethod
    def from_median(cls, distance: float) -> Self:
        return cls(distance if distance > DEGENERATE else 1.0)

    def __call__(self, distance: NDArray[Number]) -> NDArray[Number]:
        values: NDArray[Number] = np.divide(distance, -self.squared_length, dtype=distance.dtype)
        np.exp(values, out=values)
        return values


@dataclass(frozen=True, slots=True)
class Matern52:
    """(1 + rho + rho^2 / 3) exp(-rho), rho = sqrt(5 u / l^2) (Matern-5/2).

    The source is paper eq. alt-kernels.
    """

    squared_length: float
    name: ClassVar[str] = "matern52"

    @classmethod
    def from_median(cls, distance: float) -> Self:
        return cls(distance if distance > DEGENERATE else 1.0)

    def __call__(self, distance: NDArray[Number]) -> NDArray[Number]:
        rho = np.sqrt(np.maximum(distance, 0.0) * (5.0 / self.squared_length))
        values: NDArray[Number] = (1.0 + rho + rho * rho / 3.0) * np.exp(-rho)
        return values


KERNELS: dict[str, Callable[[float], Kernel]] = {
    kernel.name: kernel.from_median for kernel in (VonMisesFisher, SquaredExponential, Matern52)
}


class Covariance(Protocol):
    """A stack of g positive definite functions on N documents.

    Callers may change the rows that they get.
    """

    @property
    def diagonal(self) -> NDArray[np.float64]:
        """(g, N) prior variances."""

    def rows(self, documents: Sequence[int]) -> NDArray[np.floating]:
        """Return the (g, m, N) covariance of m documents with all."""


class StationaryCovariance:
    """The covariance k(1 - cos) of one kernel, with variance 1 everywhere."""

    def __init__(self, distances: CosineDistances, kernel: Kernel) -> None:
        self._distances = distances
        self._kernel = kernel
        self.diagonal = np.broadcast_to(np.float64(1.0), (1, distances.count))

    def rows(self, documents: Sequence[int]) -> NDArray[np.float64]:
        return self._kernel(self._distances.from_documents(documents))[None]

    def query_row(self) -> NDArray[np.float64]:
        """Return the (N,) covariance of the query with all documents."""
        return self._kernel(self._distances.from_query())

    def subset(self, documents: NDArray[np.intp]) -> StationaryCovariance:
        """Return the same function on a subset of the documents."""
        return StationaryCovariance(self._distances.subset(documents), self._kernel)


class SharedRows:
    """Rows of the stationary and of the reweighted covariance, computed once for all members.

    The reweighted covariance lets the scorer weigh the words of the query differently from BM25: it is a linear kernel
    on the query's words that a document has. If a pool does not know its words, it lets the scorer weigh the dimensions
    of the query differently from the inner product: it is a linear kernel on h_i = x_i * q (elementwise). Both features
    are centred over the pool and scaled to a mean squared length of 1. Arrays have the type of the embeddings.
    """

    def __init__(self, pool: Pool, kernel: Kernel) -> None:
        self._embeddings = pool.embeddings
        self._kernel = kernel
        self._terms = terms(pool)
        if self._terms.any():
            self._weights: NDArray[np.floating] | None = None
            self.reweighted_diagonal = np.square(self._terms).sum(axis=0, dtype=np.float64)
        else:
            self._weigh(pool)

    def _weigh(self, pool: Pool) -> None:
        """Prepare the kernel on the dimensions of the query."""
        self._centre = np.full(len(pool), 1 / len(pool), pool.embeddings.dtype) @ pool.embeddings
        weights = pool.query**2
        squares = np.empty(len(pool))
        for start in range(0, len(pool), BLOCK):
            centred = pool.embeddings[start : start + BLOCK] - self._centre
            with np.errstate(invalid="ignore"):  # OpenBLAS may set this flag in a small product of finite numbers
                squares[start : start + BLOCK] = np.square(centred, out=centred) @ weights
        scale = float(squares.mean())
        if scale <= DEGENERATE**2 * float(np.square(self._centre) @ weights):  # rounding noise of equal embeddings
            scale, squares = 0.0, np.zeros(len(pool))
        self._weights = weights / pool.embeddings.dtype.type(scale) if scale > 0 else np.zeros_like(weights)
        self.reweighted_diagonal = squares / scale if scale > 0 else squares

    def rows(self, documents: Sequence[int]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Return the (m, N) stationary and reweighted covariance of m documents with all."""
        asked = list(documents)
        points = self._embeddings[asked]
        if self._weights is None:
            cosines = inner_products(points, self._embeddings)
            with np.errstate(invalid="ignore"):  # as in `_weigh`
                linear = self._terms[:, asked].T @ self._terms
        else:
            reweighted = (points - self._centre) * self._weights
            products = inner_products(np.concatenate([points, reweighted]), self._embeddings)
            cosines, linear = products[: len(points)], products[len(points) :]
            linear -= (reweighted @ self._centre)[:, None]
        return self._kernel(np.subtract(1.0, cosines, out=cosines)), linear

    def subset(self, documents: NDArray[np.intp]) -> SharedRows:
        """Return the same rows for a subset of the documents."""
        narrowed = copy(self)
        narrowed._embeddings, narrowed._terms = self._embeddings[documents], self._terms[:, documents]
        narrowed.reweighted_diagonal = self.reweighted_diagonal[documents]
        return narrowed


class WeightedCovariances:
    """Stationary fields of variance 1, plus reweighted queries of g prior variances."""

    def __init__(self, share_scores: SharedRows, weights: NDArray[np.float64]) -> None:
        self._shared = share_scores
        self._weights = weights
        self.diagonal = 1.0 + np.multiply.outer(weights, share_scores.reweighted_diagonal)

    def rows(self, documents: Sequence[int]) -> NDArray[np.floating]:
        stationary, reweighted = self._shared.rows(documents)
        covariances: NDArray[np.floating] = np.multiply.outer(self._weights.astype(reweighted.dtype), reweighted)
        covariances += stationary
        return covariances

    def subset(self, documents: NDArray[np.intp]) -> WeightedCovariances:
        """Return the same functions on a subset of the documents."""
        return WeightedCovariances(self._shared.subset(documents), self._weights)


PROJECTIONS = 4
CLOSE = 1e-3  # a distance between unit vectors; rounding to float16 moves one by 3e-4
NEXT = 8  # neighbours in a projection that each vector is compared with


def group_alike(vectors: NDArray[np.floating], seed: int = 0) -> NDArray[np.intp]:
    """Return (N,) numbers, equal for documents whose texts may be the same.

    Their (N, d) unit vectors are close to each other. Vectors are compared with their neighbours in random projections,
    so a pair may be missed.
    """
    count, dimension = vectors.shape
    groups = np.arange(count)
    if not dimension:
        return groups
    directions = np.random.default_rng(seed).normal(size=(dimension, PROJECTIONS)).astype(vectors.dtype)
    # The places of two vectors differ by the vectors' distance times a standard normal number.
    places = inner_products(directions.T, vectors)
    order = np.argsort(places[0])
    first, *others = places[::-1, order]
    pairs = []
    for step in range(1, min(NEXT, count - 1) + 1):
        near = np.flatnonzero(np.abs(first[step:] - first[:-step]) < 4 * CLOSE)
        for place in others:
            near = near[np.abs(place[near + step] - place[near]) < 4 * CLOSE]
        pairs.append(np.stack([order[near], order[near + step]]))
    left, right = np.concatenate(pairs, axis=1) if pairs else np.empty((2, 0), dtype=np.intp)
    while (groups[left] != groups[right]).any():
        lowest = np.minimum(groups[left], groups[right])
        np.minimum.at(groups, left, lowest)
        np.minimum.at(groups, right, lowest)
        groups = groups[groups]
    return groups


ESCALATED_NOISE = 1e-2
MINIMUM_VARIANCE = 1e-12
QUERY = -1  # stands for the query among the observed documents
LARGEST_ROUND = 32  # observations entered at once


class GaussianProcesses:
    """A stack of g processes of different covariance after the same t observations.

    Their number is at most `size`. They take g x size x N numbers of `dtype` and a few vectors. If a factorisation is
    not positive definite, the noise is raised, first to 1e-2, and all observations are entered again (paper app. C.3).

    Attributes:
        observed: The documents, in order; QUERY for the query.
        explained: (g, N) V' z.
        residuals: (g, p, N) H - V' G.
        variance: (g, N) posterior variances for known coefficients, positive up to rounding.
        noise: The variance of an observation.
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
        """Start without observations.

        Args:
            covariance: The covariance of the documents.
            columns: (p, N) H.
            size: The most observations.
            noise: The variance of an observation.
            query_row: (N,) covariance of the query with the pool, if the query will be observed; its own variance and
                columns are 1.
            dtype: The type of V; sums are float64.
        """
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
        """(t,) y."""
        return self._known[: len(self.observed), 0]

    @property
    def whitened_targets(self) -> NDArray[np.float64]:
        """(g, t) z."""
        return self._whitened[:, : len(self.observed), 0]

    @property
    def whitened_columns(self) -> NDArray[np.float64]:
        """(g, t, p) G."""
        return self._whitened[:, : len(self.observed), 1:]

    @property
    def log_determinants(self) -> NDArray[np.float64]:
        """(g,) `log det L`."""
        determinants: NDArray[np.float64] = np.log(self.pivots).sum(axis=1)
        return determinants

    @property
    def pivots(self) -> NDArray[np.float64]:
        """(g, t) the diagonals of L.

        Each is the standard deviation of an observation conditional on those before it.
        """
        return self._factors.diagonal(axis1=1, axis2=2)[:, : len(self.observed)]

    def rows(self, documents: NDArray[np.intp]) -> NDArray[np.floating]:
        """Return the (g, t, n) columns of V at these documents."""
        return self._rows[:, : len(self.observed), documents]

    def observe(self, documents: Sequence[int], targets: Sequence[float] | NDArray[np.float64]) -> None:
        """Condition on documents, each observed once.

        QUERY may only be the first observation, and alone.
        """
        for start in range(0, len(documents), LARGEST_ROUND):
            end = start + LARGEST_ROUND
            self._observe(list(documents[start:end]), np.asarray(targets[start:end]))

    def is_ready(self, document: int) -> bool:
        """Return whether observing the document takes no pass over the embeddings."""
        return document in self._ahead

    def prepare(self, documents: Sequence[int]) -> None:
        """Compute the covariance of documents in one pass over the embeddings and V, and keep them.

        When these documents are observed, their rows only need an update for the observations in between. With
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
        share_scores, own, columns = np.empty((1, 1, 0)), np.ones((1, 1, 1)), np.ones((1, len(self._columns)))
        if documents != [QUERY]:
            share_scores = self._rows[:, :t, documents].swapaxes(1, 2).astype(np.float64)
            own, columns = rows[:, :, documents].astype(np.float64), self._columns[:, documents].T
        factors = _cholesky(own + self.noise * np.eye(len(documents)))
        smallest = factors.diagonal(axis1=1, axis2=2).min() ** 2
        if smallest < self.noise / 2:  # in exact arithmetic it is never less than the noise
            self._escalate()
            self._observe(documents, targets)
            return
        inverses = np.linalg.inv(factors)
        new = np.matmul(inverses.astype(rows.dtype), rows, out=self._rows[:, t:end])
        self._factors[:, t:end, :t], self._factors[:, t:end, t:end] = share_scores, factors
        self._known[t:end, 0], self._known[t:end, 1:] = targets, columns
        whitened = inverses @ (self._known[t:end] - share_scores @ self._whitened[:, :t])
        self._whitened[:, t:end] = whitened
        sums = whitened.swapaxes(1, 2).astype(rows.dtype) @ new
        self.explained += sums[:, 0]
        self.residuals -= sums[:, 1:]
        self.variance -= np.einsum("gmn,gmn->gn", new, new)
        self.observed += documents

    def _rows_of(self, documents: list[int]) -> NDArray[np.floating]:
        """Return the (g, m, N) covariance of documents with all, conditional on all observations."""
        if documents == [QUERY]:
            assert self._query_row is not None
            return self._query_row[None, None]
        if len(documents) == 1 and documents[0] in self._ahead:
            since, row = self._ahead.pop(documents[0])
            return self._given(documents, since, row)
        return self._given(documents, 0, self._covariance.rows(documents))

    def _given(self, documents: list[int], since: int, rows: NDArray[np.floating]) -> NDArray[np.floating]:
        """Update covariance conditional on the first `since` observations, in place."""
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
    """Members of g processes on n documents, conditioned on one document after another.

    The observations are fantasies. Each process has q members, whose trends use some of its columns.
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
        """Start from the observations of the processes.

        Args:
            processes: The g processes.
            covariance: The covariance of the n documents.
            documents: The positions of the n documents.
            size: The most documents to condition on.
            directions: (g, p, n), whose inner products are the covariance of the trends.
            members: (q, p), 1 for the columns of each member.
            scales: (g, q) squared amplitudes.
        """
        self._covariance = covariance
        self._given = processes.rows(documents)
        self._directions = directions
        self._members = members
        self._scales = scales[:, :, None]
        self._noise = processes.noise * scales.ravel()
        self._rows = np.empty((scales.size, size, len(documents)))
        self._count = 0

    def condition(self, document: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Condition on a document.

        A target that differs from its mean by r adds rows * r / pivots to the means. The variances fall by the squares
        of the rows.

        Returns:
            The (g q, n) new row of each member's V, and its (g q, 1) pivot.
        """
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
    """Return the (g, m, m) lower factors; zeros if one of them does not exist."""
    try:
        return np.asarray(np.linalg.cholesky(matrices), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.zeros_like(matrices)
