import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.selection import Belief, Pool
from boundarymorph.selection.covariance import StationaryCovariance
from boundarymorph.selection.geometry import CosineDistances
from boundarymorph.selection.kernels import VonMisesFisher
from boundarymorph.selection.posterior import ResidualPosterior
from boundarymorph.selection.process import GaussianProcess
from tests.selection.pools import FAMILIES, clustered, duplicated_and_tied


def covariance(pool: Pool, kappa: float) -> StationaryCovariance:
    return StationaryCovariance(CosineDistances(pool), VonMisesFisher(kappa))


def posterior(n: int = 60, size: int = 40) -> tuple[ResidualPosterior, NDArray[np.float64]]:
    pool, scores = clustered(n, 8, 0)
    return ResidualPosterior(np.zeros(n), covariance(pool, 2.0), size, query_prior=0.0), scores


def test_restoring_a_checkpoint_is_exact() -> None:
    gp, scores = posterior()
    for document in (3, 8, 1):
        gp.observe(document, scores[document])
    before = gp.belief()
    gp.checkpoint()
    for document in (10, 11, 12):
        gp.observe(document, 0.9)
    gp.restore()
    after = gp.belief()
    np.testing.assert_array_equal(before.mean, after.mean)
    np.testing.assert_array_equal(before.std, after.std)


@pytest.mark.parametrize("then", [(10, 11, 12), (10, 30, 12), (12, 11, 10)])
def test_rows_left_by_fantasies_serve_only_the_same_documents_in_the_same_order(then: tuple[int, ...]) -> None:
    gp, scores = posterior()
    fresh, _ = posterior()
    gp.checkpoint()
    for document in (10, 11, 12):
        gp.observe(document, 0.9)
    gp.restore()
    for document in then:
        gp.observe(document, scores[document])
        fresh.observe(document, scores[document])
    np.testing.assert_array_equal(gp.belief().mean, fresh.belief().mean)
    np.testing.assert_array_equal(gp.belief().std, fresh.belief().std)


def test_prepared_rows_are_brought_up_to_date() -> None:
    gp, scores = posterior()
    plain, _ = posterior()
    gp.observe(5, scores[5])
    gp.prepare([20, 21, 22])
    assert gp.ready(21) and not gp.ready(40)
    gp.checkpoint()
    gp.observe(40, 0.3)
    gp.prepare([23])  # given a fantasy: must not outlive it
    gp.restore()
    assert gp.ready(22) and not gp.ready(23)
    plain.observe(5, scores[5])
    for document in (22, 7, 21, 23, 20):
        gp.observe(document, scores[document])
        plain.observe(document, scores[document])
    np.testing.assert_allclose(gp.belief().mean, plain.belief().mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(gp.belief().std, plain.belief().std, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [8, 20, 100, 135, 200])
def test_the_first_of_the_prepared_rows_is_always_kept(size: int) -> None:
    """It is the one that is about to be observed."""
    gp, _ = posterior(size=size)
    for first in (0, 20, 40):
        gp.prepare(range(first, first + 16))
        assert gp.ready(first)


def test_a_kernel_that_is_not_positive_definite_escalates_the_noise() -> None:
    class Indefinite(VonMisesFisher):
        def __call__(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
            return VonMisesFisher.__call__(self, distance) + 3e-3 * np.sin(1e4 * distance)

    pool, scores = clustered(60, 4, 3)
    process = GaussianProcess(StationaryCovariance(CosineDistances(pool), Indefinite(1.0)), 60, noise=1e-4)
    moment = process.checkpoint()
    for document in range(30):
        process.observe(document, scores[document])
    assert process.noise == 1e-2
    assert process.observed == list(range(30))
    np.testing.assert_array_equal(process.targets, scores[:30])
    assert np.isfinite(process.weighted_targets).all()
    process.restore(moment)
    assert process.observed == []
    np.testing.assert_array_equal(process.weighted_targets, 0)
    np.testing.assert_array_equal(process.variance, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_variance_never_grows_and_stays_in_bounds(family: str) -> None:
    for seed in range(5):
        pool, scores = FAMILIES[family](80, 8, seed)
        process = GaussianProcess(covariance(pool, 3.0), 40, noise=1e-4)
        before = process.variance
        np.testing.assert_array_equal(before, 1)
        for document in np.random.default_rng(seed).permutation(80)[:40].tolist():
            process.observe(document, scores[document])
            after = process.variance
            assert (after <= before).all() and (after > 0).all()
            assert after[document] <= 1e-4
            before = after


def test_new_targets_are_as_if_observed_from_the_start() -> None:
    pool, scores = clustered(60, 8, 1)
    changed, fresh = (GaussianProcess(covariance(pool, 3.0), 20, noise=1e-2) for _ in range(2))
    for document in range(20):
        changed.observe(document, scores[document])
        fresh.observe(document, 1 - scores[document] ** 2)
    changed.retarget(1 - scores[:20] ** 2)
    np.testing.assert_allclose(changed.weighted_targets, fresh.weighted_targets, rtol=0, atol=1e-12)
    np.testing.assert_allclose(changed.alpha, fresh.alpha, rtol=0, atol=1e-12)


def test_log_determinant() -> None:
    pool, scores = clustered(40, 8, 1)
    prior = covariance(pool, 3.0)
    process = GaussianProcess(prior, 15, noise=0.05)
    for document in range(15):
        process.observe(document, scores[document])
    matrix = prior.rows(range(15))[:, :15] + 0.05 * np.eye(15)
    assert 2 * process.log_determinant == pytest.approx(np.linalg.slogdet(matrix)[1])


def test_duplicates_of_a_scored_document_take_its_score() -> None:
    pool, _ = duplicated_and_tied(50, 8, 0)
    gp = ResidualPosterior(np.zeros(50), covariance(pool, 8.0), 10, query_prior=0.0)
    gp.observe(0, 0.8)
    gp.observe(10, 0.1)
    twins = np.flatnonzero(pool.embeddings @ pool.embeddings[0] > 1 - 1e-9)
    belief: Belief = gp.belief()
    assert twins.size == 5
    np.testing.assert_allclose(belief.mean[twins], 0.8, atol=0.01)
    assert belief.std[twins].max() < 0.02 * belief.std.max() + 0.02
