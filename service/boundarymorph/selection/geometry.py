"""Cosine distances between unit embeddings, kernels of them (paper sec. 3.2 and app. C.4), and prior covariances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.features import terms
from boundarymorph.selection.pool import Pool

DEFAULT_PAIRS = 5_000
BLOCK = 96  # rows of embeddings of which something is computed at a time, so that they stay in the cache
ROWS = 128  # that are multiplied at a time, likewise: so few that OpenBLAS does not copy them first
NUMBERS = BLOCK * 384  # numbers of rows that are gathered at a time, likewise
Number = TypeVar("Number", bound=np.floating)


class CosineDistances:
    """Exact cosine distances 1 - cos between the points of a pool, whatever the type of its embeddings.

    Float32 inner products of unit vectors have errors of about 1e-7, which change a choice after some hundred
    observations. So products are summed in float64 and divided by the exact lengths. The rows of several documents are
    computed in one pass over the embeddings, as reading these takes most of the time.
    """

    def __init__(self, pool: Pool) -> None:
        self.count = len(pool)
        self._embeddings = pool.embeddings
        self._query = pool.query
        self._lengths = _lengths(pool.embeddings)

    def from_documents(self, documents: Sequence[int]) -> NDArray[np.float64]:
        """(m, N) distances from m documents to all."""
        return self._distances(self._embeddings[documents], self._lengths[documents])

    def from_query(self) -> NDArray[np.float64]:
        """(N,) distances from the query to all documents."""
        distances: NDArray[np.float64] = self._distances(self._query[None], _lengths(self._query[None]))[0]
        return distances

    def among(self, documents: NDArray[np.intp]) -> CosineDistances:
        """The same distances for a subset of the documents."""
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
    """(n,) exact lengths of (n, d) rows."""
    squares = np.empty(len(rows))
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK].astype(np.float64, copy=False)
        np.einsum("nd,nd->n", block, block, out=squares[start : start + BLOCK])
    return np.sqrt(squares)


def inner_products(points: NDArray[Number], embeddings: NDArray[np.floating]) -> NDArray[Number]:
    """(m, N) inner products of (m, d) points with (N, d) embeddings, multiplied and summed in the points' type."""
    products = np.empty((len(points), len(embeddings)), dtype=points.dtype)
    columns = np.ascontiguousarray(points.T)  # rows times columns: OpenBLAS takes three times as long the other way
    for start in range(0, len(embeddings), ROWS):
        rows = embeddings[start : start + ROWS].astype(points.dtype, copy=False)
        products[:, start : start + ROWS] = (rows @ columns).T
    return products


def median_distance(embeddings: NDArray[np.floating], pairs: int | None = DEFAULT_PAIRS, seed: int = 0) -> float:
    """Median of 1 - cos(d_i, d_j) over i < j of unit rows (N, d); 0 for a single document.

    pairs: the median is taken over at least this many random pairs, in which documents are about equally frequent;
    None, or more than there are, takes all pairs. With 5,000 pairs the error is 0.2 to 0.6 %.
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
        """Take the bandwidth from the median of u over the pool's pairs, or 1 if that degenerates."""

    def __call__(self, distance: NDArray[Number]) -> NDArray[Number]:
        """Covariances, of the same shape as the distances."""


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
    """exp(-u / l^2), l^2 the median distance (RBF; paper eq. alt-kernels)."""

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
    """(1 + rho + rho^2 / 3) exp(-rho) with rho = sqrt(5 u / l^2) (Matern-5/2; paper eq. alt-kernels)."""

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
    """g positive definite functions on N documents. Callers may change the rows that they get."""

    @property
    def diagonal(self) -> NDArray[np.float64]:
        """(g, N) prior variances."""

    def rows(self, documents: Sequence[int]) -> NDArray[np.floating]:
        """(g, m, N) covariances of m documents with all."""


class StationaryCovariance:
    """k(1 - cos) of one kernel: variance 1 everywhere."""

    def __init__(self, distances: CosineDistances, kernel: Kernel) -> None:
        self._distances = distances
        self._kernel = kernel
        self.diagonal = np.broadcast_to(np.float64(1.0), (1, distances.count))

    def rows(self, documents: Sequence[int]) -> NDArray[np.float64]:
        return self._kernel(self._distances.from_documents(documents))[None]

    def query_row(self) -> NDArray[np.float64]:
        """(N,) covariances of the query with all documents."""
        return self._kernel(self._distances.from_query())

    def among(self, documents: NDArray[np.intp]) -> StationaryCovariance:
        """The same function on a subset of the documents."""
        return StationaryCovariance(self._distances.among(documents), self._kernel)


class SharedRows:
    """Rows of the stationary and of the reweighted covariance, computed once for all members.

    The reweighted covariance lets the scorer weigh the words of the query differently from BM25: it is a linear kernel
    on the query's words that a document has. If a pool does not know its words, it lets the scorer weigh the dimensions
    of the query differently from the inner product: it is a linear kernel on h_i = x_i * q (elementwise). Both features
    are centred over the pool and scaled to a mean squared length of 1. Arrays have the type of the embeddings.
    """

    def __init__(self, pool: Pool, kernel: Kernel) -> None:
        self.count = len(pool)
        self._embeddings = pool.embeddings
        self._kernel = kernel
        self._terms = terms(pool)
        self._last: tuple[list[int], NDArray[np.floating], NDArray[np.floating]] | None = None
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
            squares[start : start + BLOCK] = np.square(centred, out=centred) @ weights
        scale = float(squares.mean())
        if scale <= DEGENERATE**2 * float(np.square(self._centre) @ weights):  # rounding noise of equal embeddings
            scale, squares = 0.0, np.zeros(len(pool))
        self._weights = weights / pool.embeddings.dtype.type(scale) if scale > 0 else np.zeros_like(weights)
        self.reweighted_diagonal = squares / scale if scale > 0 else squares

    def rows(self, documents: Sequence[int]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """(m, N) stationary and reweighted covariances of m documents with all. Callers must not change them."""
        asked = list(documents)
        if self._last is None or self._last[0] != asked:
            points = self._embeddings[asked]
            if self._weights is None:
                cosines, linear = inner_products(points, self._embeddings), self._terms[:, asked].T @ self._terms
            else:
                reweighted = (points - self._centre) * self._weights
                products = inner_products(np.concatenate([points, reweighted]), self._embeddings)
                cosines, linear = products[: len(points)], products[len(points) :]
                linear -= (reweighted @ self._centre)[:, None]
            self._last = asked, self._kernel(np.subtract(1.0, cosines, out=cosines)), linear
        return self._last[1], self._last[2]

    def among(self, documents: NDArray[np.intp]) -> SharedRows:
        """The same rows for a subset of the documents."""
        narrowed = copy(self)
        narrowed.count, narrowed._last = len(documents), None
        narrowed._embeddings, narrowed._terms = self._embeddings[documents], self._terms[:, documents]
        narrowed.reweighted_diagonal = self.reweighted_diagonal[documents]
        return narrowed


class WeightedCovariances:
    """Stationary fields of variance 1, plus a reweighted query of g prior variances, the `weights`."""

    def __init__(self, shared: SharedRows, weights: NDArray[np.float64]) -> None:
        self._shared = shared
        self._weights = weights
        self.diagonal = 1.0 + np.multiply.outer(weights, shared.reweighted_diagonal)

    def rows(self, documents: Sequence[int]) -> NDArray[np.floating]:
        stationary, reweighted = self._shared.rows(documents)
        covariances: NDArray[np.floating] = np.multiply.outer(self._weights.astype(reweighted.dtype), reweighted)
        covariances += stationary
        return covariances

    def among(self, documents: NDArray[np.intp]) -> WeightedCovariances:
        """The same functions on a subset of the documents."""
        return WeightedCovariances(self._shared.among(documents), self._weights)
