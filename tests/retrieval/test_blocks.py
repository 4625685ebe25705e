"""Test that an index's vectors and blocks agree with its store.

Blocks have clusters or not. The tests cover when and by which process they are made, what a start reads, and that all
ways of searching agree.
"""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.errors import IndexConflict, InvalidInput, StorageUnavailable
from boundarymorph.inference.concurrency import awaited_context
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.catalog import LocalCatalog, LocalIndex
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.vectors import TrainingPolicy
from tests.contract.vector_index import names, unit
from tests.patience import until
from tests.retrieval.fakes import nearest
from tests.system import script

DIMENSION = 16
EAGER = TrainingPolicy(least=100, share=0.2, pause=0)
NEVER = TrainingPolicy(least=10**9)
QUERY = unit(1, DIMENSION, seed=3)[0]
Open = Callable[..., LocalIndex]


@pytest.fixture(params=["flat", "ivf"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    DocumentStore.create(tmp_path / "index.sqlite3", encoder=None, dimension=DIMENSION, kind=request.param).close()
    return tmp_path / "index.sqlite3"


@pytest.fixture
def open_index(path: Path) -> Iterator[Open]:
    """Return a function that opens the index as another process would.

    A `plain` index uses no block.
    """
    opened = []

    def open_index(policy: TrainingPolicy = NEVER, *, plain: bool = False, **options: Any) -> LocalIndex:
        opened.append(LocalIndex("index", path, policy=policy, **options))
        if plain:
            opened[-1]._trainer.files.newest = lambda after=0: None  # type: ignore[method-assign]
        return opened[-1]

    yield open_index
    for index in opened:
        index.close()


def put(index: LocalIndex, ids: list[str], seed: int = 0) -> NDArray[np.float32]:
    vectors = unit(len(ids), DIMENSION, seed)
    index.upsert([Document(id, "") for id in ids], vectors)
    return vectors


def make(index: LocalIndex) -> bool:
    """Make the block, which a flat index has only if it is large."""
    index.refresh()
    return index._trainer.train(after=index.last_sequence() - 1)


def rows(index: LocalIndex) -> int:
    """Return the number of rows in the block that this process searches, or 0 without a block."""
    return index.refresh().view().base


def assert_same(first: LocalIndex, second: LocalIndex) -> None:
    """Compare all documents, and the exact vectors and scores of the nearest ones."""
    for query in unit(5, DIMENSION, seed=99):
        for depth in (1, 10_000):
            one, other = nearest(first, query, depth), nearest(second, query, depth)
            places = {id: place for place, id in enumerate(other.ids)}
            shared = [place for place, id in enumerate(one.ids) if id in places]
            elsewhere = [places[one.ids[place]] for place in shared]
            assert len(one) == len(other)
            assert (depth == 1 and first.info.kind == "ivf") or len(shared) == len(one)
            np.testing.assert_array_equal(one.embeddings[shared], other.embeddings[elsewhere])
            np.testing.assert_array_equal(one.scores[shared], other.scores[elsewhere])


def file_of(path: Path, name: str = "vectors.faiss") -> Path:
    (file,) = path.with_suffix(".block").glob(f"*-*/{name}")
    return file


def test_index_start_reads_the_block_and_later_changes(open_index: Open, path: Path) -> None:
    index, plain = open_index(), open_index(plain=True)
    put(index, names(1000))
    assert index.structure() is None
    assert make(index)
    told = index.structure()
    if index.info.kind == "ivf":
        assert told is not None
        assert (told.count, told.sequence) == (1000, 1000)
        assert min(told.recall.values()) >= 0.99
    else:
        assert told is None  # a flat index is not trained
    before = file_of(path).read_bytes()
    put(index, names(30, 990), seed=1)
    index.delete(names(20))
    started = open_index()
    assert (rows(started), rows(index), rows(plain)) == (1000, 1000, 0)
    assert (len(started.refresh()), started.refresh().changed) == (1000, 10 + 20 + 30 + 20)
    assert_same(started, plain)
    assert_same(started, index)
    assert file_of(path).read_bytes() == before
    assert index.compact()
    assert rows(index) == 1000 and file_of(path).read_bytes() != before
    assert_same(started, index)
    assert_same(open_index(), plain)
    assert index.compact()  # without new documents


@pytest.mark.parametrize("count", [99, 100])
def test_block_is_made_from_the_least_number_of_documents(open_index: Open, count: int) -> None:
    index = open_index(EAGER)
    put(index, names(count))
    index.await_training()
    assert rows(open_index()) == (100 if count == 100 else 0)
    written = index._trainer.files._names()
    index.await_training()  # nothing changes, so nothing is written
    assert index._trainer.files._names() == written


def test_block_is_made_during_searches_and_writes(open_index: Open) -> None:
    """Each search sees every acknowledged document, in each state between two blocks."""
    index, other, plain = open_index(EAGER), open_index(EAGER), open_index(plain=True)
    acknowledged, done = [0], threading.Event()

    def search(searched: LocalIndex) -> None:
        while not done.is_set():
            if at_least := acknowledged[0]:
                pool = nearest(searched, QUERY, 10**6)
                assert len(set(pool.ids)) == len(pool.ids)
                steps = {int(id.split("-")[0]) for id in pool.ids}
                assert set(range(max(0, acknowledged[0] - 9), at_least)) <= steps

    with ThreadPoolExecutor(2) as threads:
        searches = [threads.submit(search, searched) for searched in (index, other)]
        for step in range(20):
            put(index if step % 2 else other, [f"{step}-{number}" for number in range(40)], seed=step)
            if step >= 10:
                index.delete([f"{step - 10}-{number}" for number in range(40)])
            acknowledged[0] = step + 1
        done.set()
        for each in searches:
            each.result()
    until(lambda: not any(EAGER.is_due(searched.refresh()) for searched in (index, other)))
    for searched in (index, other):
        assert rows(searched)
        assert_same(searched, plain)


@pytest.mark.parametrize("damage", ["a bit", "the end", "a later format", "a missing file"])
def test_damaged_block_is_reported_and_rebuilt(
    open_index: Open, path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    index = open_index()
    put(index, names(300))
    make(index)
    file = file_of(path)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "a later format":
        manifest = json.loads((file.parent / "manifest.json").read_text())
        (file.parent / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    elif damage == "a missing file":
        (file.parent / "rows.npy").unlink()
    else:
        file.unlink()  # processes keep their mapped files
        file.write_bytes(content if damage == "a bit" else content[:-4])
    other = LocalIndex("index", path, policy=NEVER)
    assert rows(other) == 0
    other.refresh()
    assert caplog.text.count("ignoring the structure") == 1
    assert "vectors.faiss" in caplog.text or damage not in ("a bit", "the end")
    assert_same(other, open_index(plain=True))
    assert_same(index, other)
    assert make(other)
    assert rows(other) == 300
    other.close()


def test_failed_training_is_retried_after_growing_pauses(
    open_index: Open, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    index = open_index(TrainingPolicy(least=100, pause=5, longest=26), clock=lambda: now[0])
    path.with_suffix(".block").write_text("in the way")
    put(index, names(300))
    for seconds, expected in [(0, 1), (9, 1), (1, 2), (19, 2), (1, 3), (25, 3), (1, 4), (26, 5)]:  # 10, 20, then 26
        now[0] += seconds
        index.await_training()
        assert caplog.text.count("could not make a structure") == expected
    if index.info.kind == "ivf":
        with pytest.raises(StorageUnavailable, match="'index'"):
            index.compact()
    assert len(nearest(index, QUERY, 10**6)) == 300


def test_block_newer_than_its_store_is_ignored(open_index: Open, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = open_index()
    put(index, names(200))
    index.close()
    copy = path.read_bytes()
    index = open_index()
    put(index, names(100, 200))
    make(index)
    index.close()
    path.write_bytes(copy)
    path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
    assert sorted(nearest(open_index(), QUERY, 10**6).ids) == sorted(names(200))
    assert "newer than its store" in caplog.text


def test_documents_replaced_during_a_training_are_found(open_index: Open, path: Path) -> None:
    """The rows are read in pages, between which other processes write."""
    index, plain = open_index(), open_index(plain=True)
    index.page_rows = 50
    put(index, names(300))
    steps = 0

    def checkpoint() -> None:
        nonlocal steps
        steps += 1
        if steps in (3, 5):
            put(plain, names(20, 40 * steps), seed=steps)
            plain.delete([f"d{steps}", f"d{300 - steps}"])

    index._trainer._checkpoint = checkpoint  # type: ignore[method-assign]
    assert make(index)
    assert 0 < rows(index) < 300
    assert_same(index, plain)
    assert_same(open_index(), plain)


def test_index_kind_is_chosen_at_creation(catalog: LocalCatalog) -> None:
    index = catalog.create("a", encoder=None, dimension=DIMENSION, kind="ivf")
    put(index, names(400))
    assert catalog.describe("a").structure is None
    assert index.compact()
    info = catalog.describe("a")
    assert (info.kind, info.structure and info.structure.count) == ("ivf", 400)
    assert info.bytes is not None
    assert info.bytes > sum(file.stat().st_size for file in index.path.parent.glob("*.block/*/*"))
    assert catalog.create("a", encoder=None, dimension=DIMENSION) is index
    with pytest.raises(IndexConflict, match="ivf"):
        catalog.create("a", encoder=None, dimension=DIMENSION, kind="flat")
    with pytest.raises(InvalidInput, match="'pq'; use one of flat, ivf"):
        catalog.create("b", encoder=None, dimension=DIMENSION, kind="pq")


@pytest.mark.slow
def test_training_survives_a_kill_at_any_moment(path: Path, open_index: Open) -> None:
    code = (
        "import sys; from pathlib import Path; from boundarymorph.retrieval.local.catalog import LocalIndex\n"
        "from boundarymorph.retrieval.local.store import DocumentStore\n"
        "from tests.retrieval.test_blocks import make, put, names\n"
        "index = LocalIndex('index', Path(sys.argv[1])); print('ready', flush=True)\n"
        "for seed in range(10**9): put(index, names(40, seed % 50), seed); make(index)"
    )
    rng = random.Random(0)
    put(open_index(), names(300))
    for _ in range(3):
        with script.running(code, str(path)) as (_, printed):
            assert printed.readline() == b"ready\n"
            time.sleep(rng.uniform(0.1, 0.4))
        assert_same(open_index(), open_index(plain=True))
    index = open_index()
    assert make(index)
    assert rows(index) == 300
    assert not list(path.with_suffix(".block").glob(".writing-*"))


def test_first_reading_of_an_index_continues_when_abandoned(open_index: Open) -> None:
    """Otherwise, an index that takes longer to read than any deadline would never be read."""
    index = open_index()
    put(index, names(40))
    with awaited_context() as context:
        pass
    context.run(index.refresh)
    assert len(index._vectors or ()) == 40
