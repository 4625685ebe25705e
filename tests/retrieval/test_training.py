"""Indexes of kind ivf: when they are trained and by whom, what a start reads, and that none of it changes answers."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.errors import IndexConflict, InvalidInput, StorageUnavailable, UnknownIndex
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.local.flat import FlatIndex
from boundarymorph.retrieval.local.index import LocalIndex
from boundarymorph.retrieval.local.ivf import IvfIndex
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.training import TrainingPolicy
from tests.contract.vector_index import names, unit
from tests.retrieval.fakes import nearest

ROOT = Path(__file__).parents[2]
DIMENSION = 16
EAGER = TrainingPolicy(least=100, share=0.2, pause=0)
NEVER = TrainingPolicy(least=10**9)
Open = Callable[..., LocalIndex]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    DocumentStore.create(tmp_path / "index.sqlite3", encoder=None, dimension=DIMENSION, kind="ivf").close()
    return tmp_path / "index.sqlite3"


@pytest.fixture
def open_index(path: Path) -> Iterator[Open]:
    """Another process's view of the index, as far as files tell."""
    opened = []

    def open_index(policy: TrainingPolicy = NEVER, **options: object) -> LocalIndex:
        opened.append(LocalIndex("index", DocumentStore(path), policy=policy, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_index
    for index in opened:
        index.close()


def put(index: LocalIndex, ids: list[str], seed: int = 0) -> NDArray[np.float32]:
    vectors = unit(len(ids), DIMENSION, seed)
    index.upsert([Document(id, "") for id in ids], vectors)
    return vectors


def trained(index: LocalIndex) -> int:
    """How many documents the index was trained with in this process; 0 while it is searched exhaustively."""
    vectors = index.refresh()
    info = index.structure()
    return info.count if isinstance(vectors, IvfIndex) and info and vectors.sequence == info.sequence else 0


def assert_same(first: LocalIndex, second: LocalIndex) -> None:
    """In all that an approximate search is to find: everything, and exact vectors and scores of what is nearest."""
    for query in unit(5, DIMENSION, seed=99):
        for depth in (1, 10_000):
            one, other = nearest(first, query, depth), nearest(second, query, depth)
            shared = [id for id in one.ids if id in set(other.ids)]
            assert len(one) == len(other)
            assert depth == 1 or len(shared) == len(one)
            for id in shared:
                place, elsewhere = list(one.ids).index(id), list(other.ids).index(id)
                np.testing.assert_array_equal(one.embeddings[place], other.embeddings[elsewhere])
                assert one.scores[place] == other.scores[elsewhere]


def until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about")


def damage(path: Path) -> None:
    (file,) = path.with_suffix(".ivf").glob("*-*/vectors.faiss")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_start_reads_what_was_trained_and_then_what_followed(open_index: Open) -> None:
    index, exact = open_index(), open_index(make_vectors=FlatIndex)
    put(index, names(1000))
    assert index.structure() is None
    assert index.compact()
    told = index.structure()
    assert told is not None
    assert (told.count, told.sequence) == (1000, 1000)
    assert min(told.recall.values()) >= 0.99
    put(index, names(30, 990), seed=1)
    index.delete(names(20))
    started = open_index()
    assert (trained(started), trained(index), trained(exact)) == (1000, 1000, 0)
    vectors = started.refresh()
    assert isinstance(vectors, IvfIndex)
    assert (len(vectors), vectors.changed) == (1000, 10 + 20 + 30 + 20)
    assert_same(started, exact)
    assert_same(started, index)
    assert index.compact()
    assert trained(index) == 1000 and index.structure() != told
    assert_same(started, index)
    assert_same(open_index(), exact)
    assert index.compact()  # of nothing new


def test_it_trains_itself_while_it_is_searched_and_written(open_index: Open) -> None:
    """Each search sees what was acknowledged before it, in each of the states between trainings."""
    index, other, plain = open_index(EAGER), open_index(EAGER), open_index(make_vectors=FlatIndex)
    acknowledged, failures, done = [0], [], threading.Event()

    def search(searched: LocalIndex) -> None:
        try:
            while not done.is_set():
                at_least = acknowledged[0]
                if at_least:
                    pool = nearest(searched, unit(1, DIMENSION, seed=3)[0], 10**6)
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
    until(lambda: not any(EAGER.due(cast(IvfIndex, searched.refresh())) for searched in (index, other)))
    # Each may have kept a structure of its own: the last one is on disk, and what is not due takes over no other.
    assert all(isinstance(searched.refresh(), IvfIndex) for searched in (index, other))
    assert_same(index, plain)
    assert_same(other, plain)


def test_another_process_takes_over_what_was_trained(open_index: Open) -> None:
    writer, reader = open_index(), open_index(EAGER)
    put(writer, names(50))
    assert trained(reader) == 0
    put(writer, names(500))
    writer.compact()
    told = writer.structure()
    until(lambda: trained(reader) == 500)
    assert writer.structure() == told
    assert_same(reader, writer)


def test_while_another_trains_it_goes_on(open_index: Open) -> None:
    index, other = open_index(), open_index()
    put(index, names(300))
    with other._trainer.files.lock() as ours:
        assert ours
        assert not index.compact()
        assert len(nearest(index, unit(1, DIMENSION)[0], 10**6)) == 300
    assert index.compact()


def test_attempts_keep_their_distance(open_index: Open, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    index = open_index(TrainingPolicy(least=100, pause=5, longest=26), clock=lambda: now[0])
    path.with_suffix(".ivf").write_text("in the way")
    put(index, names(300))
    for seconds, expected in [(0, 1), (9, 1), (1, 2), (19, 2), (1, 3), (25, 3), (1, 4), (26, 5)]:  # 10, 20, then 26
        now[0] += seconds
        index.settle()
        warnings = [record for record in caplog.records if "could not make a structure" in record.message]
        assert len(warnings) == expected
    with pytest.raises(StorageUnavailable, match="'index'"):
        index.compact()
    assert len(nearest(index, unit(1, DIMENSION)[0], 10**6)) == 300
    path.with_suffix(".ivf").unlink()
    now[0] += 26
    index.refresh()
    until(lambda: trained(index) == 300)


def test_a_damaged_structure_is_named_and_trained_again(
    open_index: Open, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = open_index()
    put(index, names(300))
    index.compact()
    damage(path)
    started = open_index(EAGER)
    assert len(nearest(started, unit(1, DIMENSION)[0], 10**6)) == 300
    assert caplog.text.count("ignoring the structure") == 1 and "vectors.faiss" in caplog.text
    assert_same(started, open_index(make_vectors=FlatIndex))
    until(lambda: trained(started) == 300)
    assert trained(open_index()) == 300


@pytest.mark.parametrize("change", ["another store", "a later format", "a missing file"])
def test_a_structure_that_is_not_of_this_store(
    open_index: Open, path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    index = open_index()
    put(index, names(300))
    index.compact()
    (folder,) = path.with_suffix(".ivf").glob("*-*")
    if change == "a missing file":
        (folder / "rows.npz").unlink()
    elif change == "another store":
        path.with_suffix(".ivf").rename(path.with_name("other.ivf"))
        path = path.with_name("other.sqlite3")
        DocumentStore.create(path, encoder=None, dimension=DIMENSION, kind="ivf").close()
    else:
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    other = LocalIndex("index", DocumentStore(path), policy=NEVER)
    assert not isinstance(other.refresh(), IvfIndex)
    assert "ignoring the structure" in caplog.text
    other.close()


def test_a_store_that_was_restored_from_an_older_copy(
    open_index: Open, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = open_index()
    put(index, names(200))
    index.close()
    copy = path.read_bytes()
    index = open_index()
    put(index, names(100, 200))
    index.compact()
    index.close()
    path.write_bytes(copy)
    restored = open_index()
    assert sorted(nearest(restored, unit(1, DIMENSION)[0], 10**6).ids) == sorted(names(200))
    assert "newer than its store" in caplog.text


def test_forgotten_deletions_do_not_come_back(open_index: Open, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index, sleeping = open_index(), open_index(EAGER)
    put(index, names(400))
    index.compact()
    assert trained(sleeping) == 400
    forgetful = DocumentStore(path, tombstones_kept=2)
    for number in range(10):
        forgetful.delete([f"d{number}"])
    forgetful.close()
    for late in (sleeping, open_index(EAGER)):
        assert sorted(nearest(late, unit(1, DIMENSION)[0], 10**6).ids) == sorted(names(390, 10))
        assert trained(late) == 400
    assert_same(sleeping, open_index(make_vectors=FlatIndex))
    assert not caplog.records


def test_an_empty_index_is_not_trained(open_index: Open, path: Path) -> None:
    index = open_index()
    put(index, names(300))
    index.delete(names(300))
    assert index._trainer.train(0)
    assert index.compact()
    assert [file.name for file in path.with_suffix(".ivf").iterdir()] == ["lock"]
    put(index, names(300))
    assert index.compact()
    assert trained(index) == 300


def test_a_failure_leaves_no_trace_at_any_point(open_index: Open, path: Path) -> None:
    index = open_index()
    put(index, names(300))
    trainer, steps = index._trainer, 0
    for at in (1, 5, 20, 70, 71, 72):
        steps = 0

        def checkpoint(at: int = at) -> None:
            nonlocal steps
            steps += 1
            if steps == at:
                raise InterruptedError

        trainer._checkpoint = checkpoint  # type: ignore[method-assign]
        with pytest.raises(InterruptedError):
            trainer.train(0)
        assert [file.name for file in path.with_suffix(".ivf").iterdir()] == ["lock"]
        assert not trained(index)


def test_kinds_are_chosen_at_creation(tmp_path: Path) -> None:
    catalog = LocalCatalog(tmp_path)
    index = catalog.create("a", encoder=None, dimension=DIMENSION, kind="ivf")
    vectors = put(index, names(400))
    assert catalog.describe("a").structure is None
    assert index.compact()
    info = catalog.describe("a")
    assert (info.kind, info.structure and info.structure.count) == ("ivf", 400)
    assert info.bytes > sum(file.stat().st_size for file in index.path.parent.glob("*.ivf/*/*"))
    catalog.close()

    again = LocalCatalog(tmp_path)
    index = again.create("a", encoder=None, dimension=DIMENSION)
    assert trained(index) == 400
    assert nearest(index, vectors[50], 1).ids == ["d50"]
    assert again.create("a", encoder=None, dimension=DIMENSION, kind="ivf") is index
    with pytest.raises(IndexConflict, match="ivf"):
        again.create("a", encoder=None, dimension=DIMENSION, kind="flat")
    for kind in ("pq", "hnsw", "sq8"):
        with pytest.raises(InvalidInput, match=f"'{kind}'; use one of flat, ivf"):
            again.create("b", encoder=None, dimension=DIMENSION, kind=kind)
    assert not again.exists("b")
    again.delete("a")
    with pytest.raises(UnknownIndex):
        nearest(index, vectors[0], 1)
    assert list(tmp_path.iterdir()) == []
    again.close()


@pytest.mark.parametrize("count", [99, 100])
def test_settled_it_is_trained_if_that_was_due(path: Path, count: int) -> None:
    index = LocalIndex("index", DocumentStore(path), policy=EAGER)
    put(index, names(count))
    index.settle()
    index.close()
    told = LocalIndex("index", DocumentStore(path)).structure()
    assert (None if told is None else told.count) == (100 if count == 100 else None)


def test_closing_ends_a_training(path: Path) -> None:
    index = LocalIndex("index", DocumentStore(path), policy=EAGER)
    put(index, names(9000))
    index.refresh()
    index.close()
    thread = index._trainer._thread
    assert thread is not None
    assert not thread.is_alive()
    with pytest.raises(UnknownIndex):
        index.refresh()
    assert not list(path.with_suffix(".ivf").glob(".writing-*"))


def test_deleting_an_index_ends_its_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog = LocalCatalog(tmp_path)
    for _ in range(5):
        index = catalog.create("a", encoder=None, dimension=DIMENSION, kind="ivf")
        index._trainer._policy = EAGER
        put(index, names(3000))
        index.refresh()
        catalog.delete("a")
        assert list(tmp_path.iterdir()) == []
    assert not caplog.records
    catalog.close()


def test_killed_at_any_moment_of_a_training(path: Path, open_index: Open) -> None:
    script = (
        "import sys; from pathlib import Path; from boundarymorph.retrieval.local.index import LocalIndex\n"
        "from boundarymorph.retrieval.local.store import DocumentStore\n"
        "from tests.retrieval.test_training import put, names\n"
        "index = LocalIndex('index', DocumentStore(Path(sys.argv[1]))); print('ready', flush=True)\n"
        "for seed in range(10**9): put(index, names(40, seed % 50), seed); index.compact()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    rng = random.Random(0)
    put(open_index(), names(300))
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, cwd=ROOT, env=environment
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.1, 0.4))
            process.kill()
        index = open_index()
        assert_same(index, open_index(make_vectors=FlatIndex))
    assert index.compact()
    assert trained(index) == 300
    assert not list(path.with_suffix(".ivf").glob(".writing-*"))
