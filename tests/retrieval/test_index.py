"""FlatIndex against the contract and against brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boundarymorph.retrieval.local.vectors import FlatIndex
from tests.contract.vector_index import Make, VectorIndexContract, names, unit


class TestFlatIndex(VectorIndexContract):
    @pytest.fixture
    def make(self) -> Make:
        return FlatIndex


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(1, 400),
    dimension=st.integers(1, 40),
    depth=st.integers(1, 450),
    distinct=st.integers(1, 60),
    removed=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_it_equals_brute_force(
    count: int, dimension: int, depth: int, distinct: int, removed: float, seed: int
) -> None:
    """With many documents of few distinct vectors, so that ties cross every cut, and with any share removed."""
    rng = np.random.default_rng(seed)
    vectors = unit(distinct, dimension, seed)[rng.integers(distinct, size=count)]
    dead = rng.random(count) < removed
    index = FlatIndex(dimension)
    index.upsert(names(count), vectors)
    index.remove([f"d{row}" for row in np.flatnonzero(dead)])
    query = unit(1, dimension, seed + 1)[0]

    found = index.search(query, depth)
    scores = np.einsum("nd,d->n", vectors, query, dtype=np.float64)
    scores[dead] = -np.inf
    best = np.argsort(-scores, kind="stable")[: min(depth, count - int(dead.sum()))]
    assert found.ids == [f"d{row}" for row in best]
    np.testing.assert_array_equal(found.scores, scores[best])
    np.testing.assert_array_equal(found.vectors, vectors[best])


def test_memory_of_replaced_rows_is_given_back() -> None:
    index = FlatIndex(8)
    for step in range(200):
        index.upsert(names(100), unit(100, 8, seed=step))
    assert len(index) == 100
    assert len(index._snapshot.matrix) < 5000
