"""Test distances, their median, and kernels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from boundarymorph.selection import Pool
from boundarymorph.selection.process import (
    KERNELS,
    CosineDistances,
    Kernel,
    Matern52,
    SquaredExponential,
    VonMisesFisher,
    inner_products,
    median_distance,
)
from tests.selection.pools import clustered, duplicated_and_tied


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 400), st.integers(0, 100))
def test_exact_median_distance_is_the_median(n: int, seed: int) -> None:
    for family in (clustered, duplicated_and_tied):
        pool, _ = family(n, 5, seed)
        cosines = (pool.embeddings @ pool.embeddings.T)[np.triu_indices(n, 1)]
        assert median_distance(pool.embeddings, None) == pytest.approx(1 - np.median(cosines), abs=1e-12)


def test_sampled_median_distance_is_close_and_seeded() -> None:
    pool, _ = clustered(3000, 16, 1, np.float32)
    exact = median_distance(pool.embeddings, None)
    estimates = [median_distance(pool.embeddings, seed=seed) for seed in range(8)]
    assert np.abs(np.array(estimates) / exact - 1).max() < 0.02
    assert median_distance(pool.embeddings, seed=3) == estimates[3]
    assert median_distance(pool.embeddings[:100]) == median_distance(pool.embeddings[:100], None)


def test_median_distance_of_one_document_is_zero() -> None:
    assert median_distance(np.ones((1, 4))) == 0.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cosine_distances_are_accurate_to_all_digits(dtype: type) -> None:
    rng = np.random.default_rng(0)
    base: NDArray[np.floating] = rng.normal(size=(40, 768)).astype(dtype)
    step: NDArray[np.floating] = rng.normal(size=(40, 768)).astype(dtype)
    given_embeddings = np.vstack([base, base, base + 1e-2 * step, base + 1e-4 * step])
    pool = Pool.from_embeddings([str(i) for i in range(160)], given_embeddings, base[0], scores=-np.arange(160))
    exact = pool.embeddings.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1)[:, None]
    truth = ((exact[:40, None, :] - exact[None, :, :]) ** 2).sum(-1) / 2
    distances = CosineDistances(pool)
    one_by_one = np.vstack([distances.from_documents([i]) for i in range(40)])
    for found in (distances.from_documents(range(40)), one_by_one):
        np.testing.assert_allclose(found, truth, rtol=0, atol=1e-14)
        assert np.abs(found[np.arange(40), np.arange(40, 80)]).max() < 1e-14
    np.testing.assert_allclose(distances.from_query(), truth[0], rtol=0, atol=1e-14)
    few = np.array([3, 50, 90])
    np.testing.assert_allclose(distances.subset(few).from_documents([1]), truth[[10]][:, few], rtol=0, atol=1e-14)


@pytest.mark.parametrize("m", [1, 5])
def test_inner_products_are_summed_in_the_type_of_the_points(m: int) -> None:
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(3000, 96)).astype(np.float32)  # several blocks, and a part of one
    points = rng.normal(size=(m, 96))
    exact = points @ embeddings.astype(float).T
    np.testing.assert_allclose(inner_products(points, embeddings), exact, rtol=0, atol=1e-12)
    rough = inner_products(points.astype(np.float32), embeddings)
    assert rough.dtype == np.float32
    np.testing.assert_allclose(rough, exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "at_the_median"),
    [
        (VonMisesFisher, 0.5),
        (SquaredExponential, np.exp(-1)),
        (Matern52, (1 + np.sqrt(5) + 5 / 3) * np.exp(-np.sqrt(5))),
    ],
)
def test_kernel_decreases_from_1_and_is_positive_definite(kind: type[Kernel], at_the_median: float) -> None:
    kernel = kind.from_median(0.3)
    assert kernel(np.array([0.3]))[0] == pytest.approx(at_the_median)
    values = kernel(np.linspace(0, 2, 101))
    assert values[0] == 1 and (np.diff(values) < 0).all() and (values > 0).all()
    pool, _ = clustered(80, 6, 0)
    assert np.linalg.eigvalsh(kernel(CosineDistances(pool).from_documents(range(80)))).min() > -1e-10
    assert kind.from_median(0.0) == kind(1.0)  # type: ignore[call-arg]
    assert KERNELS[kind.name](0.7) == kind.from_median(0.7)
