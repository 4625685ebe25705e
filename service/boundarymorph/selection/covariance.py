"""Prior covariances over a pool: of single documents with all others, never the whole N x N matrix."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.geometry import CosineDistances
from boundarymorph.selection.kernels import Kernel


class Covariance(Protocol):
    """A positive definite function on N documents. What is returned belongs to the caller."""

    @property
    def diagonal(self) -> NDArray[np.float64]:
        """(N,) prior variances."""

    def rows(self, documents: Sequence[int]) -> NDArray[np.float64]:
        """(m, N) covariances of m documents with all."""

    def query_row(self) -> NDArray[np.float64]:
        """(N,) covariances of the query with all documents; its own variance is 1."""


class StationaryCovariance:
    """k(1 - cos) of one kernel: variance 1 everywhere."""

    def __init__(self, distances: CosineDistances, kernel: Kernel) -> None:
        self._distances = distances
        self._kernel = kernel
        self.diagonal = np.ones(distances.count)

    def rows(self, documents: Sequence[int]) -> NDArray[np.float64]:
        return self._kernel(self._distances.from_documents(documents))

    def query_row(self) -> NDArray[np.float64]:
        return self._kernel(self._distances.from_query())
