import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.selection import ResidualPosterior
from boundarymorph.selection.kernels import VonMisesFisher
from tests.selection.pools import clustered, duplicated_and_tied


def posterior(n: int = 60, size: int = 40) -> tuple[ResidualPosterior, NDArray[np.float64]]:
    pool, scores = clustered(n, 8, 0)
    return ResidualPosterior(pool, np.zeros(n), VonMisesFisher(2.0), size), scores


def test_restoring_a_checkpoint_is_exact() -> None:
    gp, scores = posterior()
    for document in (3, 8, 1):
        gp.observe(document, scores[document])
    before, moment = gp.belief(), gp.checkpoint()
    for document in (10, 11, 12):
        gp.observe(document, 0.9)
    gp.restore(moment)
    after = gp.belief()
    np.testing.assert_array_equal(before.mean, after.mean)
    np.testing.assert_array_equal(before.std, after.std)


@pytest.mark.parametrize("then", [(10, 11, 12), (10, 30, 12), (12, 11, 10)])
def test_rows_left_by_fantasies_serve_only_the_same_documents_in_the_same_order(then: tuple[int, ...]) -> None:
    gp, scores = posterior()
    fresh, _ = posterior()
    moment = gp.checkpoint()
    for document in (10, 11, 12):
        gp.observe(document, 0.9)
    gp.restore(moment)
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
    moment = gp.checkpoint()
    gp.observe(40, 0.3)
    gp.prepare([23])  # given a fantasy: must not outlive it
    gp.restore(moment)
    assert gp.ready(22) and not gp.ready(23)
    plain.observe(5, scores[5])
    for document in (22, 7, 21, 23, 20):
        gp.observe(document, scores[document])
        plain.observe(document, scores[document])
    np.testing.assert_allclose(gp.belief().mean, plain.belief().mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(gp.belief().std, plain.belief().std, rtol=0, atol=1e-9)


def test_a_kernel_that_is_not_positive_definite_escalates_the_noise() -> None:
    class Indefinite(VonMisesFisher):
        def __call__(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
            return VonMisesFisher.__call__(self, distance) + 3e-3 * np.sin(1e4 * distance)

    pool, scores = clustered(60, 4, 3)
    gp = ResidualPosterior(pool, np.zeros(60), Indefinite(1.0), 60)
    moment = gp.checkpoint()
    for document in range(30):
        gp.observe(document, scores[document])
    assert gp.noise == 1e-2
    belief = gp.belief()
    assert np.isfinite(belief.mean).all() and np.isfinite(belief.std).all()
    np.testing.assert_array_equal(belief.mean[:30], scores[:30])
    gp.restore(moment)
    assert np.isfinite(gp.belief().mean).all() and not gp.belief().scored.any()


def test_duplicates_of_a_scored_document_take_its_score() -> None:
    pool, _ = duplicated_and_tied(50, 8, 0)
    gp = ResidualPosterior(pool, np.zeros(50), VonMisesFisher(8.0), 10)
    gp.observe(0, 0.8)
    gp.observe(10, 0.1)
    twins = np.flatnonzero(pool.embeddings @ pool.embeddings[0] > 1 - 1e-9)
    belief = gp.belief()
    assert twins.size == 5
    np.testing.assert_allclose(belief.mean[twins], 0.8, atol=0.01)
    assert belief.std[twins].max() < 0.02 * belief.std.max() + 0.02
