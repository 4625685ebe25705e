"""The map of a pool."""

import numpy as np

from boundarymorph.selection import Pool
from boundarymorph.selection.pool import plane


def test_components_of_greatest_variance() -> None:
    """Beside a singular value decomposition; the query is on the positive side."""
    random = np.random.default_rng(0)
    embeddings = random.normal(size=(60, 8)) * np.array([1, 5, 1, 1, 3, 1, 1, 1])
    pool = Pool.of([str(number) for number in range(60)], embeddings, random.normal(size=8))
    places = plane(pool)
    assert places is not None
    assert (places.query >= 0).all()
    centred = pool.embeddings - pool.embeddings.mean(axis=0)
    left, lengths, _ = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(places.documents), np.abs(left[:, :2] * lengths[:2]), atol=1e-9)


def test_places_are_where_vectors_are() -> None:
    """What is in the plane already keeps its distances, the query's too."""
    angles = np.linspace(0, 3, 12)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    pool = Pool.of([str(number) for number in range(12)], circle, circle[3])
    places = plane(pool)
    assert places is not None
    np.testing.assert_allclose(
        np.linalg.norm(places.documents - places.query, axis=1),
        np.linalg.norm(pool.embeddings - pool.query, axis=1),
        atol=1e-9,
    )


def test_no_plane() -> None:
    assert plane(Pool.listed(["a", "b", "c"])) is None
    assert plane(Pool.of(["a"], [[1.0, 0.0]], [1.0, 0.0])) is None
