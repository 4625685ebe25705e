"""Vectors that are kept on this machine."""

import threading
from pathlib import Path

import numpy as np
import pytest

from boundarymorph.errors import StorageUnavailable
from boundarymorph.retrieval.milvus.vectors import VectorCache
from tests.contract.vector_index import names, unit

HALVES = unit(200, 8).astype(np.float16)


def versions(count: int, start: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(start, start + count, dtype=np.int64)


def test_what_was_kept_is_found_in_its_version_only(tmp_path: Path) -> None:
    cache = VectorCache(tmp_path, 8, 2**16)
    cache.keep(names(50), versions(50), HALVES[:50])
    found, halves = cache.find(["d3", "unknown", "d49", "d4", "d3"], np.array([3, 0, 49, 5, 3]))
    assert found.tolist() == [True, False, True, False, True]
    np.testing.assert_array_equal(halves, HALVES[[3, 49, 3]])
    cache.keep(["d3"], np.array([7]), HALVES[100:101])
    assert cache.find(["d3"], np.array([3]))[0].tolist() == [False]
    np.testing.assert_array_equal(cache.find(["d3"], np.array([7]))[1], HALVES[[100]])
    assert len(cache) == 50


def test_nothing_is_found_in_an_empty_one(tmp_path: Path) -> None:
    cache = VectorCache(tmp_path / "not" / "there", 8, 2**16)
    found, halves = cache.find(["a"], np.zeros(1, np.int64))
    assert (found.tolist(), halves.shape) == ([False], (0, 8))
    assert cache.find([], versions(0))[1].shape == (0, 8)


def test_it_takes_no_more_than_its_size(tmp_path: Path) -> None:
    cache = VectorCache(tmp_path, 8, 16 * 30 + 15)
    assert cache.capacity == 30
    for start in range(0, 100, 10):
        cache.keep(names(10, start), versions(10, start), HALVES[start : start + 10])
    assert len(cache) == 30
    found, halves = cache.find(names(100), versions(100))
    assert np.flatnonzero(found).tolist() == list(range(70, 100))
    np.testing.assert_array_equal(halves, HALVES[70:100])
    cache.keep(names(100), versions(100), HALVES[:100])
    assert np.flatnonzero(cache.find(names(100), versions(100))[0]).tolist() == list(range(70, 100))
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_smaller_than_a_vector_holds_one(tmp_path: Path) -> None:
    cache = VectorCache(tmp_path, 8, 1)
    cache.keep(["a", "b"], versions(2), HALVES[:2])
    assert cache.find(["a", "b"], versions(2))[0].tolist() == [False, True]


def test_many_threads(tmp_path: Path) -> None:
    cache, wrong = VectorCache(tmp_path, 8, 16 * 50), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            rows = rng.choice(200, 20, replace=False)
            ids = [f"d{row}" for row in rows]
            cache.keep(ids, rows, HALVES[rows])
            asked = rng.choice(200, 20, replace=False)
            found, halves = cache.find([f"d{row}" for row in asked], asked)
            if not np.array_equal(halves, HALVES[asked[found]]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(cache) == 50


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageUnavailable):
        VectorCache(tmp_path / "file" / "vectors", 8, 2**16)
