"""Test VectorIndex with and without blocks, clusters, and a mirror.

The references are the contract and a search by brute force.
"""

from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.retrieval.local import blocks, gpu
from boundarymorph.retrieval.local.blocks import train_clusters
from boundarymorph.retrieval.local.gpu import FaissMirror, FaissShard, limit, mirrors
from boundarymorph.retrieval.local.vectors import Block, Clusters, Rows, VectorIndex
from boundarymorph.retrieval.ranking import unit_from_halves, unit_rows_of
from tests.contract.vector_index import Make, VectorIndexContract, names, unit
from tests.stateful.profile import times

NEVER = type("NEVER", (), {"__call__": lambda self: None})()
Effort = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]


class Recorded:
    """A FAISS index that records the numbers of results and clusters of each search."""

    def __init__(self, index: Any) -> None:
        self.index, self.asked = index, list[tuple[int, int]]()

    def search(self, query: NDArray[np.float32], count: int, *, params: Any) -> Any:
        self.asked.append((count, getattr(params, "nprobe", 0)))
        return self.index.search(query, count, params=params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.index, name)


def blocked(vectors: NDArray[np.float32], *, effort: Effort | None = None, clusters: int = 12) -> VectorIndex:
    """Return an index over a block of vectors.

    With an effort, the clusters are unrelated to the vectors.
    """
    count, dimension = vectors.shape
    halves = vectors.astype(np.float16)
    index, inverted = Recorded(blocks._vectors_of(dimension)), None
    index.add(halves.astype(np.float32))
    if effort is not None:
        inverted = Recorded(train_clusters(unit(clusters, dimension, seed=5), clusters, 0, NEVER))
        inverted.add(halves.astype(np.float32))
    numbers = np.arange(1, count + 1)
    loss = float(np.abs(unit_rows_of(halves).lengths - 1).max())
    block = Block(count, numbers, halves, index, loss, None if effort is None else Clusters(inverted, *effort))
    return VectorIndex(dimension, block=block, rows=Rows(names(count), numbers, np.ones(count, np.bool_), count))


class TestVectorIndex(VectorIndexContract):
    @pytest.fixture(params=[0, 100, 2_048], ids=["plain", "mirror of 100", "mirror of 2,048"])
    def make(self, request: pytest.FixtureRequest) -> Make:
        return (lambda dimension: simulated(dimension, request.param)) if request.param else VectorIndex


def brute_force(
    vectors: dict[str, NDArray[np.float32]], query: NDArray[np.float32], depth: int
) -> tuple[list[str], NDArray[np.float64], NDArray[np.float32]]:
    matrix = np.array(list(vectors.values()), np.float32).reshape(-1, query.size)
    scores = np.einsum("nd,d->n", matrix, query, dtype=np.float64)
    best = np.argsort(-scores, kind="stable")[:depth]
    return [list(vectors)[row] for row in best], scores[best], matrix[best]


@settings(max_examples=times(80, 4_000), deadline=None)
@given(
    kind=st.sampled_from(["memory", "block", "clusters", "gpu"]),
    count=st.integers(1, 300),
    later=st.integers(0, 100),
    dimension=st.integers(1, 24),
    depth=st.integers(1, 400),
    distinct=st.integers(1, 40),
    removed=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_vector_index_equals_brute_force_after_changes(
    kind: str, count: int, later: int, dimension: int, depth: int, distinct: int, removed: float, seed: int
) -> None:
    """The vectors have ties and near ties, and some are removed or replaced.

    Searches cover all documents or some.
    """
    rng = np.random.default_rng(seed)
    bases, numbers = unit(distinct, dimension, seed), dict[str, int]()
    expected: dict[str, NDArray[np.float32]] = {}

    def drawn(size: int) -> NDArray[np.float16]:
        noise = rng.choice([0, 1e-3], (size, 1)) * rng.standard_normal((size, dimension))
        rows: NDArray[np.float64] = bases[rng.integers(distinct, size=size)] + noise
        halves: NDArray[np.float16] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
        return halves

    halves = drawn(count)
    first = unit_from_halves(halves)
    if kind in ("memory", "gpu"):
        index = VectorIndex(dimension) if kind == "memory" else simulated(dimension, 40)
        index.upsert(names(count), first, np.arange(1, count + 1))
    else:
        index = blocked(halves.astype(np.float32), effort=((10,), (12,), (1.0,)) if kind == "clusters" else None)
    expected |= zip(names(count), first, strict=True)
    numbers |= zip(names(count), range(1, count + 1), strict=True)
    gone = [id for id in names(count) if rng.random() < removed]
    index.remove([*gone, "unknown"])
    for id in gone:
        del expected[id]
    again = [f"d{number}" for number in rng.permutation(count + later)[:later]]
    for number, (id, vector) in enumerate(
        zip(again, changed := unit_from_halves(drawn(later)), strict=True), start=count + 1
    ):
        expected.pop(id, None)
        expected[id], numbers[id] = vector, number
    index.upsert(again, changed, np.arange(count + 1, count + later + 1))
    assert len(index) == len(expected)

    query = unit(1, dimension, seed + 1)[0]
    some = {id for id in expected if rng.random() < 0.5}
    for allowed in (None, some):
        view = index.view()
        if allowed is not None:
            view = view.subset(np.array(sorted(numbers[id] for id in allowed), np.int64))
        found = view.search(query, depth)
        among = {id: vector for id, vector in expected.items() if allowed is None or id in allowed}
        ids, scores, vectors = brute_force(among, query, depth)
        assert found.ids == ids
        np.testing.assert_array_equal(found.scores, scores)
        np.testing.assert_array_equal(found.vectors, vectors)
        assert found.sequences.tolist() == [numbers[id] for id in ids]


@pytest.mark.parametrize(
    ("probes", "depth", "of_clusters", "of_all"),
    [(3, 10, [(74, 3)], []), (30, 10, [], [(74, 0)]), (3, 640, [], [(714, 0)])],
)
def test_search_probes_as_many_clusters_as_the_effort_says(
    probes: int, depth: int, of_clusters: list[tuple[int, int]], of_all: list[tuple[int, int]]
) -> None:
    index = blocked(unit(1000, 8), effort=((10,), (probes,), (1.0,)))
    block = index.view().block
    assert block is not None and block.clusters is not None
    assert len(index.view().search(unit(1, 8, seed=1)[0], depth).ids) == depth
    assert block.clusters.index.asked == of_clusters
    assert block.vectors.asked == of_all


def test_search_doubles_its_clusters_until_it_finds_enough() -> None:
    index = blocked(unit(1000, 8), effort=((10, 1_000), (1, 1), (1.0,)))
    block = index.view().block
    assert block is not None and block.clusters is not None
    assert len(index.view().search(unit(1, 8, seed=1)[0], 250).ids) == 250
    steps = [clusters for _, clusters in block.clusters.index.asked]
    assert len(steps) > 1 and steps == [2**step for step in range(len(steps))]


def test_probes_grow_with_depth() -> None:
    clusters = Clusters(None, (10, 100, 1000), (4, 16, 64), (1.0, 1.0, 1.0))
    assert [clusters.probes(depth) for depth in (1, 10, 100, 1000, 2000, 10_000)] == [4, 4, 16, 64, 128, 640]
    between = [clusters.probes(depth) for depth in range(10, 1001, 10)]
    assert between == sorted(between)
    assert clusters.probes(32) == 9  # half way in logarithms, rounded up


class Limited:
    """FAISS on the CPU with the limits of GPU kernels."""

    def __init__(self, dimension: int, most: int) -> None:
        self.index, self.most = faiss.IndexFlatIP(dimension), most
        self.asked: list[int] = []

    def add(self, vectors: NDArray[np.float32]) -> None:
        self.index.add(vectors)

    def search(self, query: NDArray[np.float32], reach: int) -> Any:
        assert 0 < reach <= self.most
        self.asked.append(reach)
        return self.index.search(query, reach)


def mirror(dimension: int, most: int, shards: int = 4) -> FaissMirror:
    """Return a mirror in FAISS on the CPU, with a limit on results, in place of a GPU."""
    return FaissMirror([FaissShard(Limited(dimension, most)) for _ in range(shards)], most)


def simulated(dimension: int, most: int, shards: int = 4) -> VectorIndex:
    return VectorIndex(dimension, make_mirror=lambda dimension: mirror(dimension, most, shards))


def test_cpu_answers_depths_over_the_limit_of_gpu_shards() -> None:
    vectors, index = unit(5000, 8), simulated(8, 500)
    index.upsert(names(5000), vectors)
    found = index.view().search(vectors[0], 1500)
    assert (len(found.ids), found.warnings) == (1500, ())
    found = index.view().search(vectors[0], 3000)
    assert len(set(found.ids)) == 3000
    (warning,) = found.warnings
    assert "3,000" in warning.message and "500 results from each of 4 shards" in warning.message


def test_gpu_result_limit_depends_on_the_faiss_build(monkeypatch: pytest.MonkeyPatch) -> None:
    for options, most in (("OPTIMIZE AVX2 GPU", 2_048), ("OPTIMIZE GPU CUVS", 16_384)):
        assert limit(SimpleNamespace(StandardGpuResources=object, get_compile_options=lambda o=options: o)) == most
    assert limit(object()) == 0
    monkeypatch.setattr(gpu, "_faiss", object())
    with pytest.raises(InvalidConfiguration, match="faiss-gpu-cu12"):
        mirrors(0)
