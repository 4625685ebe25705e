"""TorchIndex, and FaissIndex as far as a CPU can show it, against the contract and brute force."""

from typing import Any

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.retrieval.local import faiss_index
from boundarymorph.retrieval.local.faiss_index import FaissIndex, FaissMirror, FaissShard, limit
from boundarymorph.retrieval.local.flat import FlatIndex
from boundarymorph.retrieval.local.mirror import MirroredIndex
from boundarymorph.retrieval.local.torch_index import TorchIndex
from tests.contract.vector_index import Make, VectorIndexContract, names, unit


@pytest.fixture(autouse=True)
def no_more_threads_than_one() -> Any:
    """The tests have threads of their own, and PyTorch's would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class TestTorchIndex(VectorIndexContract):
    @pytest.fixture
    def make(self) -> Make:
        return TorchIndex


class Limited:
    """FAISS on the CPU, which refuses what its kernels on a GPU refuse."""

    def __init__(self, dimension: int, most: int) -> None:
        self.index, self.most = faiss.IndexFlatIP(dimension), most
        self.asked: list[int] = []

    def add(self, vectors: NDArray[np.float32]) -> None:
        self.index.add(vectors)

    def search(self, query: NDArray[np.float32], reach: int) -> Any:
        assert 0 < reach <= self.most
        self.asked.append(reach)
        return self.index.search(query, reach)


class Simulated(MirroredIndex):
    """What `FaissIndex` is, with FAISS on the CPU in place of the GPU, and a limit of its own."""

    def __init__(self, dimension: int, most: int, shards: int = 4) -> None:
        self.made = [Limited(dimension, most) for _ in range(shards)]
        self._most = most
        super().__init__(dimension)

    def _empty(self) -> FaissMirror:
        self.made = [Limited(self._dimension, self._most) for _ in self.made]
        return FaissMirror([FaissShard(shard) for shard in self.made], self._most)


class TestSimulatedFaissIndex(VectorIndexContract):
    @pytest.fixture(params=[100, 2_048])
    def make(self, request: pytest.FixtureRequest) -> Make:
        return lambda dimension: Simulated(dimension, request.param)


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(1, 400),
    dimension=st.integers(1, 40),
    depth=st.integers(1, 450),
    distinct=st.integers(1, 60),
    removed=st.floats(0, 1),
    kind=st.sampled_from(["torch", "faiss"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_they_equal_the_flat_index(
    count: int, dimension: int, depth: int, distinct: int, removed: float, kind: str, seed: int
) -> None:
    """With many documents of few distinct vectors, so that ties cross every cut, and nearly equal ones beside them."""
    rng = np.random.default_rng(seed)
    vectors = unit(distinct, dimension, seed)[rng.integers(distinct, size=count)]
    vectors += rng.choice([0, 1e-4], (count, 1)) * rng.standard_normal((count, dimension)).astype(np.float32)
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    gone = [f"d{row}" for row in np.flatnonzero(rng.random(count) < removed)]
    index = Simulated(dimension, 40) if kind == "faiss" else TorchIndex(dimension)
    flat = FlatIndex(dimension)
    for each in (index, flat):
        each.upsert(names(count), vectors)
        each.remove(gone)
    query = unit(1, dimension, seed + 1)[0]
    found, expected = index.view().search(query, depth), flat.view().search(query, depth)
    assert found.ids == expected.ids
    np.testing.assert_array_equal(found.scores, expected.scores)
    np.testing.assert_array_equal(found.vectors, expected.vectors)


@pytest.mark.parametrize("device", ["torch", "faiss"])
def test_ten_thousand_of_twenty_thousand(device: str) -> None:
    """The depth of the paper, which is beyond what FAISS returns on a GPU at once."""
    vectors, query = unit(20_000, 32), unit(1, 32, seed=1)[0]
    flat, index = FlatIndex(32), TorchIndex(32) if device == "torch" else Simulated(32, 2_048, shards=16)
    for each in (flat, index):
        each.upsert(names(20_000), vectors)
    found, expected = index.view().search(query, 10_000), flat.view().search(query, 10_000)
    assert (found.ids, found.warnings) == (expected.ids, ())
    np.testing.assert_array_equal(found.scores, expected.scores)


def test_a_shard_that_holds_more_than_its_share_is_asked_again() -> None:
    """All of the nearest are in one shard, and the others are asked once."""
    vectors = unit(4000, 8)
    vectors[:, 0] = -np.abs(vectors[:, 0])
    near = unit(400, 8, seed=7) / 10
    near[:, 0] += 1
    near = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    flat, index = FlatIndex(8), Simulated(8, 2_000)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FaissMirror, "_shards_of", lambda mirror, count: np.zeros(count, np.int64))
        for each in (flat, index):
            each.upsert(names(400), near)
    for each in (flat, index):
        each.upsert(names(4000, 400), vectors)
    query = np.eye(8, dtype=np.float32)[0]
    found, expected = index.view().search(query, 390), flat.view().search(query, 390)
    assert (found.ids, found.warnings) == (expected.ids, ())
    asked = [shard.asked for shard in index.made]
    assert len(asked[0]) > 1 and asked[0] == sorted(asked[0])
    assert [len(each) for each in asked[1:]] == [1, 1, 1]


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(InvalidConfiguration, match="nowhere"):
        TorchIndex(8, device="nowhere")


def test_the_limit_of_a_build_of_faiss() -> None:
    class Library:
        StandardGpuResources = object

        def __init__(self, options: str) -> None:
            self.options = options

        def get_compile_options(self) -> str:
            return self.options

    assert limit(Library("OPTIMIZE AVX2 GPU")) == 2_048
    assert limit(Library("OPTIMIZE GPU CUVS")) == 16_384
    assert limit(object()) == 0


def test_beyond_what_the_shards_return_the_cpu_answers_and_says_so() -> None:
    vectors, index = unit(5000, 8), Simulated(8, 500)
    index.upsert(names(5000), vectors)
    found = index.view().search(vectors[0], 1500)
    assert (len(found.ids), found.warnings) == (1500, ())
    found = index.view().search(vectors[0], 3000)
    assert len(set(found.ids)) == 3000
    (warning,) = found.warnings
    assert "3,000" in warning and "500 results from each of 4 shards" in warning


def test_without_gpu_support_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_index, "_faiss", object())
    with pytest.raises(InvalidConfiguration, match="faiss-gpu-cu12"):
        FaissIndex(8)
