"""TorchIndex, and the GPU index of FAISS as far as a CPU can show it, against the contract and brute force."""

import logging
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.retrieval.local.gpu_index import CUVS_LIMIT, NATIVE_LIMIT, GpuFlatIndex, GpuMirror, limit, reaches
from boundarymorph.retrieval.local.mirror import MirroredIndex
from boundarymorph.retrieval.local.torch_index import TorchIndex
from boundarymorph.retrieval.local.vectors import FlatIndex, FlatView
from tests.contract.vector_index import Make, VectorIndexContract, names, unit


@pytest.fixture(autouse=True)
def no_more_threads_than_one() -> Any:
    """The tests have threads of their own, and PyTorch's would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class TestTorchIndex(VectorIndexContract):
    @pytest.fixture(params=["float16", "bfloat16", "float32"])
    def make(self, request: pytest.FixtureRequest) -> Make:
        return lambda dimension: TorchIndex(dimension, storage=request.param)


class Simulated(MirroredIndex[GpuMirror]):
    """What `GpuFlatIndex` is, with FAISS on the CPU in place of the GPU, and a limit of its own."""

    def __init__(self, dimension: int, most: int = NATIVE_LIMIT) -> None:
        self._most = most
        super().__init__(dimension)

    def _mirrored(self, view: FlatView, before: tuple[FlatView, GpuMirror] | None) -> GpuMirror:
        return GpuMirror.following(view, before, lambda: GpuMirror(faiss.IndexFlatIP(self._dimension), self._most))


class TestSimulatedGpuIndex(VectorIndexContract):
    @pytest.fixture(params=[100, NATIVE_LIMIT, CUVS_LIMIT])
    def make(self, request: pytest.FixtureRequest) -> Make:
        return lambda dimension: Simulated(dimension, request.param)


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(1, 400),
    dimension=st.integers(1, 40),
    depth=st.integers(1, 450),
    distinct=st.integers(1, 60),
    removed=st.floats(0, 1),
    kind=st.sampled_from(["float16", "bfloat16", "float32", "gpu"]),
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
    index = Simulated(dimension, 150) if kind == "gpu" else TorchIndex(dimension, storage=kind)
    flat = FlatIndex(dimension)
    for each in (index, flat):
        each.upsert(names(count), vectors)
        each.remove(gone)
    query = unit(1, dimension, seed + 1)[0]
    found, expected = index.search(query, depth), flat.search(query, depth)
    assert found.ids == expected.ids
    np.testing.assert_array_equal(found.scores, expected.scores)
    np.testing.assert_array_equal(found.vectors, expected.vectors)


def test_ten_thousand_of_twenty_thousand() -> None:
    """The depth of the paper, which is beyond what FAISS returns on a GPU."""
    vectors, query = unit(20_000, 32), unit(1, 32, seed=1)[0]
    flat, index = FlatIndex(32), TorchIndex(32)
    for each in (flat, index):
        each.upsert(names(20_000), vectors)
    found, expected = index.search(query, 10_000), flat.search(query, 10_000)
    assert (found.ids, found.warnings) == (expected.ids, ())
    np.testing.assert_array_equal(found.scores, expected.scores)


def test_storage_and_devices_that_are_not_there() -> None:
    with pytest.raises(InvalidConfiguration, match="float16"):
        TorchIndex(8, storage="int8")
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


@given(depth=st.integers(1, 20_000), dead=st.integers(0, 5_000), count=st.integers(1, 50_000))
def test_a_gpu_is_asked_for_enough_and_never_beyond_its_limit(depth: int, dead: int, count: int) -> None:
    for most in (NATIVE_LIMIT, CUVS_LIMIT):
        asked = reaches(depth, dead, count, most)
        assert asked == sorted(set(asked))
        assert all(min(depth + dead, count) <= reach <= min(most, count) for reach in asked)
        assert bool(asked) is (depth + dead + 64 <= most)


def test_beyond_the_limit_the_cpu_answers_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    vectors, index = unit(5000, 8), Simulated(8)
    index.upsert(names(5000), vectors)
    found = index.search(vectors[0], 1900)
    assert (len(found.ids), found.warnings) == (1900, ())
    assert not caplog.records
    for _ in range(3):
        found = index.search(vectors[0], 3000)
        assert len(set(found.ids)) == 3000
        assert ["2,048" in warning and "3,000" in warning for warning in found.warnings] == [True]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "2048" in caplog.text


def test_without_gpu_support_it_says_what_to_do() -> None:
    if limit(faiss) == 0:
        with pytest.raises(InvalidConfiguration, match="TorchIndex"):
            GpuFlatIndex(8)
    else:
        index = GpuFlatIndex(8)
        index.upsert(names(3000), unit(3000, 8))
        assert len(index.search(unit(1, 8)[0], 2900).ids) == 2900
