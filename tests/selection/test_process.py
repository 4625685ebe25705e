from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.selection import Pool
from boundarymorph.selection.posterior import ResidualPosterior
from boundarymorph.selection.process import (
    CosineDistances,
    GaussianProcesses,
    Number,
    StationaryCovariance,
    VonMisesFisher,
)
from tests.selection.pools import FAMILIES, clustered


def covariance(pool: Pool, kappa: float) -> StationaryCovariance:
    return StationaryCovariance(CosineDistances(pool), VonMisesFisher(kappa))


def process(pool: Pool, kappa: float, size: int, noise: float, dtype: type = np.float64) -> GaussianProcesses:
    level = np.ones((1, len(pool)))
    return GaussianProcesses(covariance(pool, kappa), level, size, noise, dtype=dtype)


def posterior(n: int = 60, size: int = 40) -> tuple[ResidualPosterior, NDArray[np.float64]]:
    pool, scores = clustered(n, 8, 0)
    return ResidualPosterior(np.zeros(n), covariance(pool, 2.0), size, query_prior=0.0), scores


def observe(gp: ResidualPosterior, scores: NDArray[np.float64], documents: Sequence[int]) -> None:
    gp.observe(documents, scores[list(documents)].tolist())


def test_observing_a_round_equals_observing_one_by_one() -> None:
    together, scores = posterior()
    one_by_one, _ = posterior()
    observe(together, scores, range(40))
    for document in range(40):
        observe(one_by_one, scores, [document])
    np.testing.assert_allclose(together.beliefs.belief().mean, one_by_one.beliefs.belief().mean, rtol=0, atol=1e-9)
    np.testing.assert_allclose(together.beliefs.belief().std, one_by_one.beliefs.belief().std, rtol=0, atol=1e-7)


def test_fantasies_act_as_observations_without_side_effects() -> None:
    gp, scores = posterior()
    observe(gp, scores, (3, 8, 1))
    before = gp.beliefs.belief()
    few = np.array([1, 3, 5, 8, 10, 11, 12, 40])
    fantasy = gp.subset(few, 2)
    np.testing.assert_allclose(fantasy.belief().mean, before.mean[few], rtol=0, atol=1e-15)
    for place, document in ((4, 10), (6, 12)):
        scores[document] = fantasy.belief().mean[place]
        fantasy.fantasise(place)
    after = gp.beliefs.belief()
    np.testing.assert_array_equal(before.mean, after.mean)
    np.testing.assert_array_equal(before.std, after.std)
    observe(gp, scores, (10, 12))
    np.testing.assert_allclose(fantasy.belief().mean, gp.beliefs.belief().mean[few], rtol=0, atol=1e-10)
    np.testing.assert_allclose(fantasy.belief().std, gp.beliefs.belief().std[few], rtol=0, atol=1e-8)
    np.testing.assert_array_equal(fantasy.belief().scored, gp.beliefs.belief().scored[few])


@pytest.mark.parametrize("size", [8, 20, 100, 135, 200])
def test_prepare_always_keeps_the_first_row(size: int) -> None:
    """The first row is the next observation."""
    gp, _ = posterior(size=size)
    for first in (0, 20, 40):
        gp.prepare(range(first, first + 16))
        assert gp.is_ready(first)


def test_indefinite_kernel_increases_the_noise() -> None:
    class Indefinite(VonMisesFisher):
        def __call__(self, distance: NDArray[Number]) -> NDArray[Number]:
            values = VonMisesFisher.__call__(self, distance)
            values += 3e-3 * np.sin(1e4 * distance)
            return values

    pool, scores = clustered(60, 4, 3)
    prior = StationaryCovariance(CosineDistances(pool), Indefinite(1.0))
    gp = GaussianProcesses(prior, np.ones((1, 60)), 60, noise=1e-4)
    for start in range(0, 30, 3):
        gp.observe(range(start, start + 3), scores[start : start + 3])
    assert gp.noise >= 1e-2
    assert gp.observed == list(range(30))
    np.testing.assert_array_equal(gp.targets, scores[:30])
    assert np.isfinite(gp.explained).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_posterior_variance_never_grows_and_stays_in_bounds(family: str) -> None:
    for seed in range(5):
        pool, scores = FAMILIES[family](80, 8, seed)
        gp = process(pool, 3.0, 40, 1e-4)
        before = gp.variance[0].copy()
        np.testing.assert_array_equal(before, 1)
        for document in np.random.default_rng(seed).permutation(80)[:40].tolist():
            gp.observe([document], [scores[document]])
            after = gp.variance[0].copy()
            assert (after <= before).all() and (after > 0).all()
            assert after[document] <= 1e-4
            before = after


def test_retarget_equals_observing_the_new_targets() -> None:
    pool, scores = clustered(60, 8, 1)
    changed, fresh = (process(pool, 3.0, 20, 1e-2) for _ in range(2))
    changed.observe(range(20), scores[:20])
    fresh.observe(range(20), 1 - scores[:20] ** 2)
    changed.retarget(1 - scores[:20] ** 2)
    np.testing.assert_allclose(changed.explained, fresh.explained, rtol=0, atol=1e-12)
    np.testing.assert_allclose(changed.whitened_targets, fresh.whitened_targets, rtol=0, atol=1e-12)


def test_gaussian_processes_match_the_textbook_formulas() -> None:
    """Two processes run side by side. With V in float32 the sums keep its precision."""
    pool, scores = clustered(40, 8, 1)
    columns = np.stack([np.ones(40), np.random.default_rng(0).normal(size=40)])
    for dtype, tolerance in ((np.float64, 1e-11), (np.float32, 1e-5)):
        priors = [covariance(pool, kappa) for kappa in (3.0, 0.5)]
        gp = GaussianProcesses(_SideBySide(priors, dtype), columns, 15, 0.05, dtype=dtype)
        for start in range(0, 15, 5):
            gp.observe(range(start, start + 5), scores[start : start + 5])
        for place, prior in enumerate(priors):
            (whole,) = prior.rows(range(40))
            inverse = np.linalg.inv(whole[:15, :15] + 0.05 * np.eye(15))
            np.testing.assert_allclose(gp.explained[place], whole[:, :15] @ inverse @ scores[:15], atol=tolerance)
            left = columns - columns[:, :15] @ inverse @ whole[:15]
            np.testing.assert_allclose(gp.residuals[place], left, atol=tolerance)
            left_over = np.diag(whole) - np.einsum("nt,ts,ns->n", whole[:, :15], inverse, whole[:, :15])
            np.testing.assert_allclose(gp.variance[place], left_over, atol=tolerance)
            determinant = 2 * gp.log_determinants[place]
            assert determinant == pytest.approx(-np.linalg.slogdet(inverse)[1], abs=tolerance)


class _SideBySide:
    def __init__(self, covariances: Sequence[StationaryCovariance], dtype: type) -> None:
        self._covariances = covariances
        self._dtype = dtype
        self.diagonal = np.concatenate([covariance.diagonal for covariance in covariances])

    def rows(self, documents: Sequence[int]) -> Any:
        return np.concatenate([covariance.rows(documents) for covariance in self._covariances]).astype(self._dtype)
