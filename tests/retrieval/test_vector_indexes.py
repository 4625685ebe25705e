"""FlatIndex against the contract, and it and the inverted file that reads all clusters against brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from boundarymorph.retrieval.local.flat import FlatIndex
from boundarymorph.retrieval.local.vector_index import VectorIndex
from tests.contract.vector_index import Make, VectorIndexContract, names, unit
from tests.retrieval.test_ivf import untrained


class TestFlatIndex(VectorIndexContract):
    @pytest.fixture
    def make(self) -> Make:
        return FlatIndex


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(["flat", "ivf"]),
    count=st.integers(1, 300),
    later=st.integers(0, 100),
    dimension=st.integers(1, 24),
    depth=st.integers(1, 400),
    distinct=st.integers(1, 40),
    removed=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_after_changes_it_equals_brute_force(
    kind: str, count: int, later: int, dimension: int, depth: int, distinct: int, removed: float, seed: int
) -> None:
    """With ties across every cut, with any share removed and some written anew, among all and among some."""
    rng = np.random.default_rng(seed)
    index: VectorIndex = FlatIndex(dimension) if kind == "flat" else untrained(dimension)
    expected: dict[str, NDArray[np.float32]] = {}
    bases = unit(distinct, dimension, seed)
    numbers: dict[str, int] = {}

    def write(ids: list[str]) -> None:
        vectors = bases[rng.integers(distinct, size=len(ids))]
        first = max(numbers.values(), default=0) + 1
        index.upsert(ids, vectors, np.arange(first, first + len(ids)))
        for number, (id, vector) in enumerate(zip(ids, vectors, strict=True), start=first):
            expected.pop(id, None)
            expected[id] = vector
            numbers[id] = number

    write(names(count))
    gone = [id for id in names(count) if rng.random() < removed]
    index.remove(gone)
    for id in gone:
        del expected[id]
    write([f"d{number}" for number in rng.permutation(count + later)[:later]])

    query = unit(1, dimension, seed + 1)[0]
    some = [id for id in names(count + later) if rng.random() < 0.5]
    for allowed in (None, some):
        within = None if allowed is None else np.array(sorted(numbers[id] for id in allowed if id in numbers), np.int64)
        ids = [id for id in expected if allowed is None or id in allowed]
        vectors = np.array([expected[id] for id in ids], np.float32).reshape(-1, dimension)
        scores = np.einsum("nd,d->n", vectors, query, dtype=np.float64)
        best = np.argsort(-scores, kind="stable")[:depth]
        found = index.view().search(query, depth, within=within)
        assert found.ids == [ids[row] for row in best]
        np.testing.assert_array_equal(found.scores, scores[best])
        np.testing.assert_array_equal(found.vectors, vectors[best])


def test_memory_of_replaced_rows_is_given_back() -> None:
    index = FlatIndex(8)
    for step in range(200):
        index.upsert(names(100), unit(100, 8, seed=step))
    assert len(index) == 100
    assert len(index.view().matrix) < 5000


def test_room_that_was_reserved_is_used() -> None:
    index = FlatIndex(8, capacity=3000)
    matrix = index.view().matrix
    for start in range(0, 3000, 1000):
        index.upsert(names(1000, start), unit(1000, 8, seed=start))
    assert index.view().matrix is matrix
    index.upsert(names(1, 3000), unit(1, 8))
    assert len(index) == 3001
