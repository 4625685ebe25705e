"""Prior covariances over a pool: of single documents with all others, never the whole N x N matrix."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.geometry import BLOCK, CosineDistances, inner_products
from boundarymorph.selection.kernels import Kernel
from boundarymorph.selection.pool import Pool


class Covariance(Protocol):
    """A positive definite function on N documents. What is returned belongs to the caller."""

    @property
    def diagonal(self) -> NDArray[np.float64]:
        """(N,) prior variances."""

    def rows(self, documents: Sequence[int]) -> NDArray[np.float64]:
        """(m, N) covariances of m documents with all."""


class StationaryCovariance:
    """k(1 - cos) of one kernel: variance 1 everywhere."""

    def __init__(self, distances: CosineDistances, kernel: Kernel) -> None:
        self._distances = distances
        self._kernel = kernel
        self.diagonal = np.broadcast_to(np.float64(1.0), distances.count)

    def rows(self, documents: Sequence[int]) -> NDArray[np.float64]:
        return self._kernel(self._distances.from_documents(documents))

    def query_row(self) -> NDArray[np.float64]:
        """(N,) covariances of the query with all documents."""
        return self._kernel(self._distances.from_query())


class QueryReweighting:
    """Inner products of h_i = e_i * q (component by component), centred over the pool, with mean squared length 1.

    A linear kernel on h is the belief that the cross-encoder weighs the dimensions of the query's embedding
    differently than the inner product does.
    """

    def __init__(self, pool: Pool) -> None:
        self._embeddings = pool.embeddings
        self._centre = pool.embeddings.mean(axis=0)
        self._weights = pool.query**2
        squares = np.empty(len(pool))
        for start in range(0, len(pool), BLOCK):
            centred = pool.embeddings[start : start + BLOCK] - self._centre
            squares[start : start + BLOCK] = np.square(centred, out=centred) @ self._weights
        self._scale = float(squares.mean())
        self.diagonal = squares / self._scale if self._scale > 0 else squares

    def points(self, documents: Sequence[int]) -> NDArray[np.floating]:
        """(m, d) vectors whose inner products with all embeddings `products` makes those of the h_i."""
        points: NDArray[np.floating] = (self._embeddings[documents] - self._centre) * self._weights
        return points

    def products(self, points: NDArray[np.floating], with_embeddings: NDArray[np.floating]) -> NDArray[np.float64]:
        """(m, N) products of the h_i of m documents with all; zeros where the pool does not vary."""
        if self._scale == 0:
            return np.zeros(with_embeddings.shape)
        centred = with_embeddings - (points @ self._centre)[:, None]
        scaled: NDArray[np.float64] = np.divide(centred, self._scale, dtype=np.float64)
        return scaled


class SharedRows:
    """The rows that several covariances are made of, computed once for all of them."""

    def __init__(self, pool: Pool, kernel: Kernel) -> None:
        self._embeddings = pool.embeddings
        self._kernel = kernel
        self._reweighting = QueryReweighting(pool)
        self._last: tuple[list[int], NDArray[np.float64], NDArray[np.float64]] | None = None

    @property
    def reweighted_diagonal(self) -> NDArray[np.float64]:
        """(N,)"""
        return self._reweighting.diagonal

    def rows(self, documents: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(m, N) stationary and reweighted; not to be changed."""
        asked = list(documents)
        if self._last is None or self._last[0] != asked:
            points = self._reweighting.points(asked)
            cosines, products = inner_products(self._embeddings, self._embeddings[asked], points)
            stationary = self._kernel(np.subtract(1.0, cosines, dtype=np.float64))
            self._last = asked, stationary, self._reweighting.products(points, products)
        return self._last[1], self._last[2]


class TrendCovariance:
    """A stationary field, plus a linear trend in F features, plus (if wanted) a reweighted query.

    features: (F, N), standardised. Both linear parts have the prior variance `weight`; the field has 1.
    """

    def __init__(self, shared: SharedRows, features: NDArray[np.float64], *, reweighted: bool, weight: float) -> None:
        self._shared = shared
        self._features = features
        self._reweighted = reweighted
        self._weight = weight
        self.diagonal = 1.0 + weight * np.square(features).sum(axis=0)
        if reweighted:
            self.diagonal += weight * shared.reweighted_diagonal

    def rows(self, documents: Sequence[int]) -> NDArray[np.float64]:
        stationary, reweighted = self._shared.rows(documents)
        linear = self._features[:, list(documents)].T @ self._features
        if self._reweighted:
            linear += reweighted
        linear *= self._weight
        linear += stationary
        covariances: NDArray[np.float64] = linear
        return covariances
