"""LocalIndex over snapshots: what a start reads, what compaction changes (nothing), and who does it."""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.errors import IndexConflict, InvalidInput, StorageUnavailable, UnknownIndex
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.local.compaction import CompactionPolicy
from boundarymorph.retrieval.local.index import LocalIndex
from boundarymorph.retrieval.local.segmented import SegmentedIndex, SegmentedView
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.structures import KINDS
from boundarymorph.retrieval.local.vectors import FlatIndex
from boundarymorph.retrieval.retriever import Search
from tests.contract.vector_index import names, unit

ROOT = Path(__file__).parents[2]
DIMENSION = 16
EAGER = CompactionPolicy(least=100, share=0.2, pause=0)
NEVER = CompactionPolicy(least=10**9)
Open = Callable[..., LocalIndex]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    DocumentStore.create(tmp_path / "index.sqlite3", encoder=None, dimension=DIMENSION).close()
    return tmp_path / "index.sqlite3"


@pytest.fixture
def open_index(path: Path) -> Iterator[Open]:
    """Another process's view of the index, as far as files tell."""
    opened = []

    def open_index(policy: CompactionPolicy = NEVER, **options: object) -> LocalIndex:
        opened.append(LocalIndex("index", DocumentStore(path), policy=policy, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_index
    for index in opened:
        index.close()


def put(index: LocalIndex, ids: list[str], seed: int = 0) -> NDArray[np.float32]:
    vectors = unit(len(ids), DIMENSION, seed)
    index.upsert([Document(id, "") for id in ids], vectors)
    return vectors


def view(index: LocalIndex) -> SegmentedView:
    vectors = index.refresh()
    assert isinstance(vectors, SegmentedIndex)
    return vectors.view()


def assert_same(first: LocalIndex, second: LocalIndex) -> None:
    for query in unit(5, DIMENSION, seed=99):
        for depth in (1, 7, 100, 10_000):
            one, other = first.search(query, depth), second.search(query, depth)
            assert list(one.ids) == list(other.ids)
            np.testing.assert_array_equal(one.embeddings, other.embeddings)
            np.testing.assert_array_equal(one.scores, other.scores)


def until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about")


def test_a_start_reads_the_snapshot_and_then_what_followed(open_index: Open) -> None:
    index = open_index()
    put(index, names(1000))
    assert index.snapshot() is None
    assert index.compact()
    snapshot = index.snapshot()
    assert snapshot is not None
    assert (snapshot.count, snapshot.sequence, snapshot.kind) == (1000, 1000, "flat")
    put(index, names(30, 990), seed=1)
    index.delete(names(20))
    started = open_index()
    now = view(started)
    assert (len(now.base), now.dead, now.recent.living, len(now)) == (1000, 30, 30, 1000)
    assert_same(started, open_index(make_vectors=FlatIndex))
    assert_same(started, index)
    assert index.compact()
    assert (view(index).dead, view(index).recent.living) == (0, 0)
    assert_same(started, index)
    assert_same(started, open_index())
    assert index.compact()  # of nothing new


def test_sequence_numbers_are_those_of_the_store(open_index: Open) -> None:
    index = open_index()
    put(index, names(500))
    index.compact()
    put(index, names(10), seed=1)
    index.delete(["d20"])
    changes = index._store.changes(0)
    expected = dict(zip(changes.ids, changes.sequences.tolist(), strict=True))
    for opened in (index, open_index(), open_index(make_vectors=FlatIndex)):
        pool, sequences = opened.search_with_sequences(unit(1, DIMENSION)[0], 10_000)
        assert dict(zip(pool.ids, sequences.tolist(), strict=True)) == expected
        some = np.sort(changes.sequences[::7])
        pool, sequences = opened.search_with_sequences(unit(1, DIMENSION)[0], 10_000, within=some)
        assert sorted(sequences.tolist()) == some.tolist()
        assert len(opened.search_with_sequences(unit(1, DIMENSION)[0], 3, within=np.empty(0, np.int64))[0]) == 0


def test_it_compacts_itself_while_it_is_searched_and_written(open_index: Open) -> None:
    """Each search sees what was acknowledged before it, in each of the states between snapshots."""
    index, other, plain = open_index(EAGER), open_index(EAGER), open_index(make_vectors=FlatIndex)
    acknowledged, failures, done = [0], [], threading.Event()

    def search(searched: LocalIndex) -> None:
        try:
            while not done.is_set():
                at_least = acknowledged[0]
                if at_least:
                    pool = searched.search(unit(1, DIMENSION, seed=3)[0], 10**6)
                    assert len(set(pool.ids)) == len(pool.ids)
                    steps = [int(id.split("-")[0]) for id in pool.ids]
                    assert set(range(max(0, acknowledged[0] - 9), at_least)) <= set(steps)
        except BaseException as failure:
            failures.append(failure)

    searchers = [threading.Thread(target=search, args=(searched,)) for searched in (index, other)]
    for searcher in searchers:
        searcher.start()
    for step in range(60):
        put(index if step % 2 else other, [f"{step}-{number}" for number in range(40)], seed=step)
        if step >= 10:
            index.delete([f"{step - 10}-{number}" for number in range(40)])
        acknowledged[0] = step + 1
    done.set()
    for searcher in searchers:
        searcher.join()
    assert not failures
    until(lambda: not EAGER.due(view(index)) and not EAGER.due(view(other)))
    assert len(view(index).base) > 0
    assert len(view(other).base) > 0
    assert_same(index, plain)
    assert_same(other, plain)


def test_another_process_takes_over_the_snapshot(open_index: Open) -> None:
    writer, reader = open_index(), open_index(EAGER)
    put(writer, names(50))
    assert len(view(reader).base) == 0
    put(writer, names(500))
    writer.compact()
    snapshot = writer.snapshot()
    until(lambda: len(view(reader).base) == 500)
    assert writer.snapshot() == snapshot
    assert_same(reader, writer)


def test_while_another_compacts_it_goes_on(open_index: Open) -> None:
    index, other = open_index(), open_index()
    put(index, names(300))
    with other._snapshots.lock() as ours:
        assert ours
        assert not index.compact()
        assert len(index.search(unit(1, DIMENSION)[0], 10**6)) == 300
    assert index.compact()


def test_attempts_keep_their_distance(open_index: Open, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    index = open_index(CompactionPolicy(least=100, pause=5), clock=lambda: now[0])
    path.with_suffix(".snapshots").write_text("in the way")
    put(index, names(300))
    for expected in (1, 1, 2):
        index.refresh()
        index._compactor.wait()
        warnings = [record for record in caplog.records if "no snapshot" in record.message]
        assert len(warnings) == expected
        now[0] += 3
    with pytest.raises(StorageUnavailable, match="'index'"):
        index.compact()
    assert len(index.search(unit(1, DIMENSION)[0], 10**6)) == 300
    path.with_suffix(".snapshots").unlink()
    now[0] += 5
    index.refresh()
    until(lambda: len(view(index).base) == 300)


def test_damaged_snapshots_are_made_again_from_the_store(
    open_index: Open, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = open_index()
    put(index, names(300))
    index.compact()
    put(index, names(300), seed=1)
    index.compact()
    for folder in path.with_suffix(".snapshots").glob("*-*"):
        (folder / "vectors.f16").write_bytes(b"")
    started = open_index(EAGER)
    assert len(started.search(unit(1, DIMENSION)[0], 10**6)) == 300
    assert caplog.text.count("is not used") == 2
    assert_same(started, open_index(make_vectors=FlatIndex))
    until(lambda: len(view(started).base) == 300)
    assert len(view(open_index()).base) == 300


def test_a_store_that_was_restored_from_an_older_copy(
    open_index: Open, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = open_index()
    put(index, names(200))
    index.compact()
    index.close()
    copy = path.read_bytes()
    index = open_index()
    put(index, names(100, 200))
    index.compact()
    index.close()
    path.write_bytes(copy)
    restored = open_index()
    assert sorted(restored.search(unit(1, DIMENSION)[0], 10**6).ids) == sorted(names(200))
    assert "ahead of its store" in caplog.text
    assert len(view(restored).base) == 200


def test_forgotten_deletions_do_not_come_back(open_index: Open, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index, sleeping = open_index(), open_index(EAGER)
    put(index, names(400))
    index.compact()
    assert len(view(sleeping).base) == 400
    forgetful = DocumentStore(path, tombstones_kept=2)
    for number in range(10):
        forgetful.delete([f"d{number}"])
    forgetful.close()
    for late in (sleeping, open_index(EAGER)):
        assert sorted(late.search(unit(1, DIMENSION)[0], 10**6).ids) == sorted(names(390, 10))
        assert (len(view(late).base), view(late).dead) == (400, 10)
    assert_same(sleeping, open_index(make_vectors=FlatIndex))
    assert not caplog.records


def test_it_answers_after_a_restart_however_much_was_deleted(path: Path) -> None:
    """Also when the deletions are recorded no more, and the changes take many pages."""
    writer = LocalIndex("index", DocumentStore(path, tombstones_kept=2, page=3), policy=NEVER)
    put(writer, names(40))
    for number in range(10):
        writer.delete([f"d{3 * number}"])
    started = LocalIndex("index", DocumentStore(path, page=3), policy=NEVER)
    for index in (started, writer):
        assert len(index.search(unit(1, DIMENSION)[0], 100)) == 30
        index.close()


@pytest.mark.parametrize("make_vectors", [None, FlatIndex])
@pytest.mark.parametrize("hybrid", [False, True])
def test_what_matches_throughout_is_found(
    open_index: Open, monkeypatch: pytest.MonkeyPatch, make_vectors: object, hybrid: bool
) -> None:
    """Another process rewrites documents, and another thread searches, after the filter has been looked up."""
    reader, writer = open_index(make_vectors=make_vectors), open_index()
    vectors = unit(40, DIMENSION)
    documents = [Document(f"d{i}", "tram" if i % 2 else "violin", None, {"even": i % 2 == 0}) for i in range(40)]
    writer.upsert(documents, vectors)
    looked_up = DocumentStore.matching_sequences

    def interrupted(store: DocumentStore, filter: Filter) -> NDArray[np.int64]:
        found = looked_up(store, filter)
        writer.upsert(documents[:20], vectors[:20])
        other = threading.Thread(target=reader.search, args=(vectors[0], 1))
        other.start()
        other.join()
        return found

    monkeypatch.setattr(DocumentStore, "matching_sequences", interrupted)
    for _ in range(3):
        pool = reader.retrieve(Search("violin", 100, vectors[0], {"even": True}, hybrid)).pool
        assert sorted(pool.ids) == sorted(f"d{i}" for i in range(0, 40, 2))
        assert (pool.features["bm25"] > 0).all()


def test_an_index_with_vectors_of_another_make_starts_from_the_snapshot(open_index: Open) -> None:
    index = open_index()
    put(index, names(300))
    index.compact()
    put(index, names(10), seed=1)
    flat = open_index(make_vectors=FlatIndex)
    assert not flat.compact()
    assert isinstance(flat.refresh(), FlatIndex)
    assert_same(flat, index)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_are_chosen_at_creation(tmp_path: Path, kind: str) -> None:
    catalog = LocalCatalog(tmp_path)
    index = catalog.create("a", encoder=None, dimension=DIMENSION, kind=kind)
    vectors = put(index, names(400))
    assert catalog.describe("a").snapshot is None
    assert index.compact()
    info = catalog.describe("a")
    assert info.kind == kind
    assert info.snapshot is not None
    assert (info.snapshot.kind, info.snapshot.count) == (kind, 400)
    assert (info.snapshot.recall == {}) is (kind == "flat")
    assert info.bytes > sum(file.stat().st_size for file in index.path.parent.glob("*.snapshots/*/*"))
    put(index, names(10), seed=1)
    index.delete(["d11"])
    catalog.close()

    again = LocalCatalog(tmp_path)
    index = again.create("a", encoder=None, dimension=DIMENSION)
    assert len(view(index).base) == 400
    assert index.search(vectors[50], 1).ids == ["d50"]
    assert len(index.search(vectors[50], 399)) == 399
    assert again.create("a", encoder=None, dimension=DIMENSION, kind=kind) is index
    with pytest.raises(IndexConflict, match=kind):
        again.create("a", encoder=None, dimension=DIMENSION, kind="hnsw" if kind != "hnsw" else "ivf")
    with pytest.raises(InvalidInput, match="pq"):
        again.create("b", encoder=None, dimension=DIMENSION, kind="pq")
    assert not again.exists("b")
    again.delete("a")
    with pytest.raises(UnknownIndex):
        index.search(vectors[0], 1)
    assert list(tmp_path.iterdir()) == []
    again.close()


@pytest.mark.parametrize("count", [99, 100])
def test_settled_it_is_left_with_the_snapshot_that_was_due(path: Path, count: int) -> None:
    index = LocalIndex("index", DocumentStore(path), policy=EAGER)
    put(index, names(count))
    index.settle()
    index.close()
    snapshot = LocalIndex("index", DocumentStore(path)).snapshot()
    assert (None if snapshot is None else snapshot.count) == (100 if count == 100 else None)


def test_words_that_another_process_indexes_are_used(tmp_path: Path) -> None:
    path = tmp_path / "plain.sqlite3"
    DocumentStore.create(path, encoder=None, dimension=DIMENSION, lexical=False).close()
    running, other = LocalIndex("a", DocumentStore(path)), LocalIndex("a", DocumentStore(path))
    vectors = unit(2, DIMENSION)
    running.upsert([Document("a", "tram"), Document("b", "violin")], vectors)
    assert dict(running.retrieve(Search("tram", 2, vectors[1])).pool.features) == {}
    assert other.index_words()
    pool = running.retrieve(Search("tram", 2, vectors[1])).pool
    assert pool.ids == ["b", "a"]
    assert pool.features["bm25"][0] == 0 < pool.features["bm25"][1]
    running.close()
    other.close()


def test_closing_ends_a_compaction(tmp_path: Path) -> None:
    store = DocumentStore.create(tmp_path / "index.sqlite3", encoder=None, dimension=DIMENSION, kind="hnsw")
    index = LocalIndex("index", store, policy=EAGER)
    put(index, names(9000))
    index.refresh()
    index.close()
    thread = index._compactor._thread
    assert thread is not None
    assert not thread.is_alive()
    with pytest.raises(UnknownIndex):
        index.refresh()
    assert not list((tmp_path / "index.snapshots").glob(".writing-*"))


def test_deleting_an_index_ends_its_compaction(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog = LocalCatalog(tmp_path)
    for _ in range(5):
        index = catalog.create("a", encoder=None, dimension=DIMENSION)
        index._compactor._policy = EAGER
        put(index, names(3000))
        index.refresh()
        catalog.delete("a")
        assert list(tmp_path.iterdir()) == []
    assert not caplog.records
    catalog.close()


def test_killed_at_any_moment_of_a_compaction(path: Path, open_index: Open) -> None:
    script = (
        "import sys; from pathlib import Path; from boundarymorph.retrieval.local.index import LocalIndex\n"
        "from boundarymorph.retrieval.local.store import DocumentStore; from tests.retrieval.test_live import put, names\n"
        "index = LocalIndex('index', DocumentStore(Path(sys.argv[1]))); print('ready', flush=True)\n"
        "for seed in range(10**9): put(index, names(40, seed % 50), seed); index.compact()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    rng = random.Random(0)
    put(open_index(), names(300))
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, cwd=ROOT, env=environment
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.05, 0.3))
            process.kill()
        index = open_index()
        assert_same(index, open_index(make_vectors=FlatIndex))
    assert len(view(index).base) == 300
    assert index.compact()
    assert not list(path.with_suffix(".snapshots").glob(".writing-*"))
