"""Kinds of search structures: built, measured, saved, mapped; and segments over them against the contract."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from boundarymorph.errors import CorruptIndex, InvalidInput
from boundarymorph.retrieval.local.identifiers import Identifiers
from boundarymorph.retrieval.local.segmented import SegmentedIndex
from boundarymorph.retrieval.local.snapshots import Content, Snapshots
from boundarymorph.retrieval.local.structures import (
    KINDS,
    Effort,
    FaissStructure,
    build,
    check_kind,
    effort_of,
    load,
    save,
)
from boundarymorph.retrieval.local.vectors import Neighbours, VectorView
from tests.contract.vector_index import ApproximateVectorIndexContract, Make, VectorIndexContract, names, unit

PERIOD = 61
APPROXIMATE = [kind for kind in KINDS if kind != "flat"]


class Compacting:
    """A `VectorIndex` that goes through a snapshot after each write number `first`, `first` + PERIOD, and so on."""

    def __init__(self, dimension: int, folder: Path, kind: str, first: int) -> None:
        self._dimension, self._kind, self._first = dimension, kind, first
        self._snapshots = Snapshots(folder / "index.sqlite3")
        self._index = SegmentedIndex(dimension)
        self._writes = 0

    def __len__(self) -> int:
        return len(self._index)

    def upsert(
        self, ids: Sequence[str], vectors: NDArray[np.float32], sequences: NDArray[np.int64] | None = None
    ) -> None:
        self._index.upsert(ids, vectors, sequences)
        self._compact()

    def remove(self, ids: Sequence[str]) -> None:
        self._index.remove(ids)
        self._compact()

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        return self._index.search(query, depth, within=within)

    def view(self) -> VectorView:
        return self._index.view()

    def _compact(self) -> None:
        self._writes += 1
        if (self._writes - self._first) % PERIOD:
            return
        view = self._index.view()
        with self._snapshots.lock() as ours:
            assert ours
            self._snapshots.write(Content(self._kind, self._dimension, len(view), self._writes, view.blocks()))
        segment = self._snapshots.newest(self._writes - 1)
        assert segment is not None
        self._index = SegmentedIndex(self._dimension, segment)


@pytest.fixture(params=[1, 2], ids=["first", "second"])
def first(request: pytest.FixtureRequest) -> int:
    """The first write goes to the segment at once, or stays beside it for long."""
    number: int = request.param
    return number


class TestSegmentedIndexInMemory(VectorIndexContract):
    @pytest.fixture
    def make(self) -> Make:
        return SegmentedIndex


class TestFlatSegments(VectorIndexContract):
    @pytest.fixture
    def make(self, tmp_path: Path, first: int) -> Make:
        return lambda dimension: Compacting(dimension, tmp_path, "flat", first)


class TestApproximateSegments(ApproximateVectorIndexContract):
    @pytest.fixture(params=APPROXIMATE)
    def make(self, tmp_path: Path, first: int, request: pytest.FixtureRequest) -> Make:
        return lambda dimension: Compacting(dimension, tmp_path, request.param, first)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 300),
    later=st.integers(0, 100),
    dimension=st.integers(1, 24),
    depth=st.integers(1, 400),
    distinct=st.integers(1, 40),
    removed=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_flat_segment_with_changes_equals_brute_force(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    later: int,
    dimension: int,
    depth: int,
    distinct: int,
    removed: float,
    seed: int,
) -> None:
    """With ties across every cut and across segment and changes, with any share removed and some written anew."""
    rng = np.random.default_rng(seed)
    index = Compacting(dimension, tmp_path_factory.mktemp("segment"), "flat", 1)
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
        found = index.search(query, depth, within=within)
        assert found.ids == [ids[row] for row in best]
        np.testing.assert_array_equal(found.scores, scores[best])
        np.testing.assert_array_equal(found.vectors, vectors[best])


def clustered(count: int, dimension: int, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, count // 100), dimension))
    vectors = centres[rng.integers(len(centres), size=count)] + 0.8 * rng.standard_normal((count, dimension))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def built(kind: str, vectors: NDArray[np.float32]) -> FaissStructure:
    structure = build(kind, vectors)
    assert structure is not None
    return structure


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_the_recall_that_is_told_is_what_other_queries_see(kind: str) -> None:
    vectors, queries = clustered(12_000, 32), clustered(12_000, 32)[5:3000:60]
    structure = built(kind, vectors)
    assert structure.effort is not None
    assert structure.effort.depths == (10, 30, 100, 300, 1_000, 3_000, 10_000)
    assert min(structure.effort.recalls) >= structure.target
    alive = np.ones(len(vectors), np.bool_)
    for depth, recall in zip(structure.effort.depths, structure.effort.recalls, strict=True):
        found = 0
        for query in queries:
            rows = structure.nominate(query, depth, alive, len(alive))
            best = np.argsort(-(vectors @ query))[:depth]
            found += depth if rows is None else len(np.intersect1d(rows, best))
        assert found / (depth * len(queries)) > recall - 0.03


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_a_structure_is_the_same_once_saved(kind: str, tmp_path: Path) -> None:
    vectors = clustered(3000, 16)
    structure = built(kind, vectors)
    assert structure.effort is not None
    save(structure, tmp_path / "file")
    mapped = load(kind, tmp_path / "file", structure.effort, 3000, 16)
    assert mapped.parameters() == structure.parameters()
    alive = np.random.default_rng(0).random(3000) < 0.7
    for query in vectors[:20]:
        for depth in (1, 10, 200):
            before, after = (s.nominate(query, depth, alive, int(alive.sum())) for s in (structure, mapped))
            if before is None or after is None:
                assert before is after
            else:
                np.testing.assert_array_equal(before, after)
                assert alive[before].all()
                assert len(before) >= depth
                assert (np.diff(before) > 0).all()
    with pytest.raises(CorruptIndex, match="3000"):
        load(kind, tmp_path / "file", structure.effort, 2999, 16)
    (tmp_path / "file").write_bytes(b"no index of FAISS" * 100)
    with pytest.raises(CorruptIndex, match="file"):
        load(kind, tmp_path / "file", structure.effort, 3000, 16)


@pytest.mark.parametrize("kind", APPROXIMATE)
@pytest.mark.parametrize("count", [1, 2, 9])
def test_very_few_vectors(kind: str, count: int) -> None:
    vectors = unit(count, 4)
    structure, alive = built(kind, vectors), np.ones(count, np.bool_)
    rows = structure.nominate(vectors[0], 1, alive, count)
    assert rows is None or 0 in rows


def test_flat_and_nothing_need_no_structure() -> None:
    assert build("flat", unit(10, 4)) is None
    assert build("ivf", unit(0, 4)) is None
    with pytest.raises(InvalidInput, match="flat, ivf, hnsw, sq8"):
        check_kind("pq")


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_building_can_be_ended(kind: str) -> None:
    calls = 0

    def checkpoint() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        build(kind, unit(20_000, 8), checkpoint=checkpoint)


def test_effort_by_depth() -> None:
    effort = Effort((10, 100, 1000), (4, 16, 64), (1.0, 1.0, 1.0))
    assert [effort.at(depth) for depth in (1, 10, 100, 1000, 2000, 10_000)] == [4, 4, 16, 64, 128, 640]
    between = [effort.at(depth) for depth in range(10, 1001, 10)]
    assert between == sorted(between)
    assert effort.at(32) == 9  # half way in logarithms, rounded up


@pytest.mark.parametrize(
    ("depths", "efforts", "recalls"),
    [((), (), ()), ((10, 10), (1, 1), (1, 1)), ((10, 100), (1,), (1, 1)), ((10,), (0,), (1,))],
)
def test_efforts_that_cannot_be(depths: tuple[int, ...], efforts: tuple[int, ...], recalls: tuple[int, ...]) -> None:
    with pytest.raises(CorruptIndex):
        effort_of(depths, efforts, recalls)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), unique=True), st.data())
def test_identifiers_are_found_again(ids: list[str], data: st.DataObject) -> None:
    packed = Identifiers.of(ids)
    assert len(packed) == len(ids)
    chosen = data.draw(st.lists(st.sampled_from(ids))) if ids else []
    rows = packed.rows([*chosen, "an id that is not there, surely"])
    assert sorted(packed.at(rows)) == sorted(set(chosen))
    assert packed.at(np.arange(len(ids))) == ids


def test_identifiers_of_one_hash_are_told_apart() -> None:
    packed = Identifiers.of(["a", "b", "c"])
    same = Identifiers(packed.text, packed.ends, np.repeat(packed.hashes[:1], 3), packed.owners)
    found = {id: same.rows([id]).tolist() for id in ("a", "b", "c")}
    owner = packed.at(packed.owners[:1].astype(np.int64))[0]
    assert found[owner] == [["a", "b", "c"].index(owner)]
    assert all(rows == [] for id, rows in found.items() if id != owner)
