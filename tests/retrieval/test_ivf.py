"""The inverted file: against the contract, its recall, and how it is trained."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.errors import CorruptIndex
from boundarymorph.retrieval.halves import unit_from_halves
from boundarymorph.retrieval.local.ivf import DEPTHS, TARGET, Effort, InvertedFile, IvfIndex
from boundarymorph.retrieval.local.ivf_structure import clusters_of, trained
from tests.contract.vector_index import ApproximateVectorIndexContract, Make, VectorIndexContract, names, unit


def untrained(dimension: int, effort: Effort | None = None, clusters: int = 12) -> IvfIndex:
    """An index whose clusters have nothing to do with what comes into it."""
    return IvfIndex(InvertedFile(trained(unit(clusters, dimension, seed=5), clusters, 0, lambda: None), effort))


class TestAllClusters(VectorIndexContract):
    @pytest.fixture
    def make(self) -> Make:
        return untrained


class TestMostClusters(ApproximateVectorIndexContract):
    @pytest.fixture
    def make(self) -> Make:
        return lambda dimension: untrained(dimension, Effort((10, 100, 1000), (9, 10, 11), (1, 1, 1)))


def clustered(count: int, dimension: int, seed: int = 0) -> NDArray[np.float32]:
    """Unit rows as a store gives them."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, count // 100), dimension))
    vectors = centres[rng.integers(len(centres), size=count)] + 0.8 * rng.standard_normal((count, dimension))
    return unit_from_halves((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16))


def test_the_recall_that_is_measured_is_what_other_queries_see() -> None:
    vectors = clustered(12_000, 32)
    index = IvfIndex(InvertedFile(trained(vectors[::3], clusters_of(len(vectors)), 0, lambda: None)))
    index.upsert(names(len(vectors)), vectors)
    index.file.measure(vectors[:3000:60])
    effort = index.file.effort
    assert effort is not None
    assert effort.depths == DEPTHS
    assert min(effort.recalls) >= TARGET
    assert effort.probes[0] < index.file.clusters / 4
    for depth, recall in zip(effort.depths, effort.recalls, strict=True):
        found = 0
        for query in vectors[5:3000:60]:
            best = np.argsort(-(vectors @ query))[:depth]
            found += len(set(index.view().search(query, depth).ids) & {f"d{row}" for row in best})
        assert found / (depth * 50) > recall - 0.03


def test_the_recall_holds_after_half_of_the_documents_were_removed() -> None:
    vectors = clustered(8_000, 16)
    index = IvfIndex(InvertedFile(trained(vectors[::3], clusters_of(len(vectors)), 0, lambda: None)))
    index.upsert(names(len(vectors)), vectors)
    index.file.measure(vectors[::160])
    index.remove([f"d{row}" for row in range(0, len(vectors), 2)])
    living, found, depth = vectors[1::2], 0, 2_000
    for query in vectors[5::160]:
        best = 2 * np.argsort(-(living @ query))[:depth] + 1
        found += len(set(index.view().search(query, depth).ids) & {f"d{row}" for row in best})
    assert found / (depth * 50) > TARGET - 0.01


@pytest.mark.parametrize("count", [1, 2, 9])
def test_very_few_vectors(count: int) -> None:
    vectors = unit(count, 4)
    index = IvfIndex(InvertedFile(trained(vectors, clusters_of(count), 0, lambda: None)))
    index.upsert(names(count), vectors)
    index.file.measure(vectors)
    assert index.view().search(vectors[0], 1).ids == ["d0"]


class Recorded:
    """FAISS's index, which keeps how many results it was asked for, and of how many clusters."""

    def __init__(self, index: Any) -> None:
        self.index, self.asked = index, list[tuple[int, int]]()

    def search(self, query: NDArray[np.float32], count: int, *, params: Any) -> Any:
        self.asked.append((count, params.nprobe))
        return self.index.search(query, count, params=params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.index, name)


@pytest.mark.parametrize(
    ("probes", "depth", "asked"), [(3, 10, (74, 3)), (30, 10, (74, 12)), (3, 640, (714, 12)), (3, 999, (1000, 12))]
)
def test_no_more_is_searched_than_the_effort_says(probes: int, depth: int, asked: tuple[int, int]) -> None:
    index = untrained(8, Effort((10,), (probes,), (1.0,)), clusters=12)
    index.upsert(names(1000), unit(1000, 8))
    index.file.index = Recorded(index.file.index)
    index.view().search(unit(1, 8, seed=1)[0], depth)
    assert index.file.index.asked[0] == asked
    assert 0 < index.file.loss < 1e-3


def test_more_clusters_are_searched_step_by_step_until_there_are_enough() -> None:
    index = untrained(8, Effort((10, 1000), (1, 1), (1.0, 1.0)))
    index.upsert(names(1000), unit(1000, 8))
    index.file.index = Recorded(index.file.index)
    assert len(index.view().search(unit(1, 8, seed=1)[0], 250).ids) == 250
    probes = [clusters for _, clusters in index.file.index.asked]
    assert len(probes) > 1 and probes == [2**step for step in range(len(probes))]


def test_training_can_be_ended() -> None:
    calls = 0

    def checkpoint() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        trained(unit(20_000, 8), 50, 0, checkpoint)


def test_effort_by_depth() -> None:
    effort = Effort((10, 100, 1000), (4, 16, 64), (1.0, 1.0, 1.0))
    assert [effort.at(depth) for depth in (1, 10, 100, 1000, 2000, 10_000)] == [4, 4, 16, 64, 128, 640]
    between = [effort.at(depth) for depth in range(10, 1001, 10)]
    assert between == sorted(between)
    assert effort.at(32) == 9  # half way in logarithms, rounded up


@pytest.mark.parametrize(
    ("depths", "probes", "recalls"),
    [((), (), ()), ((10, 10), (1, 1), (1, 1)), ((10, 100), (1,), (1, 1)), ((10,), (0,), (1,))],
)
def test_efforts_that_cannot_be(depths: tuple[int, ...], probes: tuple[int, ...], recalls: tuple[int, ...]) -> None:
    with pytest.raises(CorruptIndex):
        Effort(depths, probes, recalls)
