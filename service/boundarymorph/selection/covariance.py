"""Prior covariances over a pool, row by row. The whole N x N matrix is never computed."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.features import terms
from boundarymorph.selection.geometry import BLOCK, CosineDistances, inner_products
from boundarymorph.selection.kernels import DEGENERATE, Kernel
from boundarymorph.selection.pool import Pool


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
