"""Covariance functions of the cosine distance between unit embeddings (paper sec. 3.2 and app. C.4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.floating)
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
