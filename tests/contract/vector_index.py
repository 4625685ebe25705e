"""The tests that every VectorIndex passes.

A test class inherits them, and provides the fixture `make`, which builds an empty index.
"""

import threading
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.errors import InvalidEmbeddings, InvalidInput
from boundarymorph.retrieval.local.vectors import VectorIndex

Make = Callable[[int], VectorIndex]


def unit(count: int, dimension: int, seed: int = 0) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).standard_normal((count, dimension), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def names(count: int, start: int = 0) -> list[str]:
    return [f"d{i}" for i in range(start, start + count)]


class VectorIndexContract:
    def test_view_of_an_index_never_changes(self, make: Make) -> None:
        vectors, index = unit(2000, 16), make(16)
        index.upsert(names(1500), vectors[:1500], np.arange(1, 1501))
        view, query = index.view(), vectors[3]
        views = view, view.subset(np.arange(1, 2001, 3))
        before = [some.search(query, depth) for depth in (5, 5000) for some in views]
        index.remove(names(10))
        index.upsert(names(1000, 700), unit(1000, 16, seed=7), np.arange(1501, 2501))
        index.upsert(names(300, 1700), vectors[1700:], np.arange(2501, 2801))
        after = [some.search(query, depth) for depth in (5, 5000) for some in views]
        assert [found.ids for found in before] == [found.ids for found in after]
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one.vectors, other.vectors)
        assert (len(view), len(index)) == (1500, 1990)

    def test_index_refuses_wrong_dimensions_and_depths(self, make: Make) -> None:
        index = make(8)
        with pytest.raises(InvalidEmbeddings):
            index.upsert(["a"], unit(1, 9))
        with pytest.raises(InvalidEmbeddings):
            index.view().search(unit(1, 9)[0], 1)
        with pytest.raises(InvalidInput):
            index.view().search(unit(1, 8)[0], 0)

    def test_searches_see_concurrent_changes_whole_or_not_at_all(self, make: Make) -> None:
        """Every document is always in one of two states, and a batch changes its state at once."""
        index, states = make(16), (unit(200, 16, seed=1), unit(200, 16, seed=2))
        index.upsert(names(200), states[0])
        query, done, failures = unit(1, 16, seed=3)[0], threading.Event(), []

        def search() -> None:
            while not done.is_set():
                found = index.view().search(query, 500)
                rows = [int(id[1:]) for id in found.ids]
                whole = any(np.array_equal(found.vectors, state[rows]) for state in states)
                if sorted(rows) != list(range(200)) or not whole:
                    failures.append(found.ids)

        searchers = [threading.Thread(target=search) for _ in range(3)]
        for searcher in searchers:
            searcher.start()
        for step in range(40):
            index.upsert(names(200), states[(step + 1) % 2])
        done.set()
        for searcher in searchers:
            searcher.join()
        assert not failures
