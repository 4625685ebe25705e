import numpy as np
import pytest

from boundarymorph.selection.geometry import (
    KERNELS,
    CosineDistances,
    Kernel,
    Matern52,
    SquaredExponential,
    VonMisesFisher,
)
from tests.selection.pools import clustered


class KernelContract:
    """What every kernel owes the posterior."""

    kind: type[Kernel]

    def test_one_at_cosine_one_and_falling(self) -> None:
        kernel = self.kind.from_median(0.4)
        values = kernel(np.linspace(0, 2, 101))
        assert values[0] == 1
        assert (np.diff(values) < 0).all() and (values > 0).all()

    def test_positive_definite_on_unit_vectors(self) -> None:
        pool, _ = clustered(80, 6, 0)
        matrix = self.kind.from_median(0.3)(CosineDistances(pool).from_documents(range(80)))
        assert np.linalg.eigvalsh(matrix).min() > -1e-10

    def test_degenerate_median_falls_back_to_one(self) -> None:
        assert self.kind.from_median(0.0) == self.kind(1.0)  # type: ignore[call-arg]

    def test_registered(self) -> None:
        assert KERNELS[self.kind.name](0.7) == self.kind.from_median(0.7)


class TestVonMisesFisher(KernelContract):
    kind = VonMisesFisher

    def test_half_at_the_median(self) -> None:
        assert VonMisesFisher.from_median(0.3)(np.array([0.3]))[0] == pytest.approx(0.5)


class TestSquaredExponential(KernelContract):
    kind = SquaredExponential

    def test_value(self) -> None:
        assert SquaredExponential.from_median(0.3)(np.array([0.3]))[0] == pytest.approx(np.exp(-1))


class TestMatern52(KernelContract):
    kind = Matern52

    def test_value(self) -> None:
        rho = np.sqrt(5)
        assert Matern52.from_median(0.3)(np.array([0.3]))[0] == pytest.approx((1 + rho + rho**2 / 3) * np.exp(-rho))
