"""Test snapshots of indexes: their contents, damage, and that a restore is complete or void."""

import hashlib
import os
import random
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from boundarymorph.errors import CorruptIndex, IndexConflict, InvalidIndexName, InvalidInput, UnknownIndex
from boundarymorph.retrieval.artifacts import FILE, Artifacts
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.local.blocks import BACKUP_FORMAT, seal
from boundarymorph.retrieval.local.catalog import LocalCatalog, LocalIndex
from tests.patience import until
from tests.retrieval.fakes import nearest, vector_of
from tests.system import script

COUNT = 300


@pytest.fixture
def index(catalog: LocalCatalog) -> LocalIndex:
    index = catalog.create("a", encoder=None, dimension=32, kind="ivf")
    put(index, range(COUNT + 20))
    index.delete(["3"])
    return index


@pytest.fixture
def copy(index: LocalIndex, tmp_path: Path) -> Path:
    index.back_up(tmp_path / "copy")
    return tmp_path / "copy"


def put(index: LocalIndex, numbers: range, version: int = 0) -> None:
    documents = [Document(str(n), f"version {version} of {n}", "title", {"n": n}) for n in numbers]
    index.upsert(documents, np.array([vector_of(document.text) for document in documents]))


def contents(index: LocalIndex) -> dict[str, Document]:
    found = nearest(index, np.ones(32), 10_000)
    assert len(found) == index.count()
    return index.documents(found.ids)


def assert_same(one: LocalIndex, other: LocalIndex) -> None:
    assert contents(one) == contents(other)
    for seed in range(5):
        first, second = (nearest(index, vector_of(f"query {seed}"), 50) for index in (one, other))
        assert list(first.ids) == list(second.ids)
        np.testing.assert_array_equal(first.embeddings, second.embeddings)
    search = Search("version 7", 10_000, np.ones(32))
    mine, theirs = (index.retrieve(search).pool.features["bm25"] for index in (one, other))
    np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(one.matching_sequences(Filter({"n": 7})), other.matching_sequences(Filter({"n": 7})))


def test_restored_index_equals_the_original(
    catalog: LocalCatalog, index: LocalIndex, copy: Path, tmp_path: Path
) -> None:
    info = catalog.restore("b", copy)
    assert (info.name, info.count, info.kind, info.created) == ("b", COUNT + 19, "ivf", index.info.created)
    restored = catalog.get("b")
    assert restored.info == index.info
    assert restored.path.name != index.path.name
    assert_same(index, restored)
    put(restored, range(5), version=1)
    assert nearest(restored, vector_of("version 1 of 4"), 1).ids == ["4"]
    assert contents(index)["4"].text == "version 0 of 4"
    with pytest.raises(InvalidInput, match="already"):
        index.back_up(copy)


def test_snapshots_made_during_writes_are_consistent(catalog: LocalCatalog, tmp_path: Path) -> None:
    """Each contains everything acknowledged before, and only whole batches."""
    index = catalog.create("a", encoder=None, dimension=32)
    written, done = [0], threading.Event()

    def write() -> None:
        while not done.is_set():
            put(index, range(10 * written[0], 10 * written[0] + 10))
            written[0] += 1

    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(write)
        try:
            for number in range(4):
                until(lambda number=number: written[0] >= 3 * number)  # type: ignore[misc]
                before = written[0]
                index.back_up(tmp_path / str(number))
                after = written[0]
                count = catalog.restore(f"b{number}", tmp_path / str(number)).count
                assert count % 10 == 0 and before <= count // 10 <= after + 1
        finally:
            done.set()
        writing.result()


def test_restore_names_any_damaged_file(catalog: LocalCatalog, copy: Path) -> None:
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    assert len(files) == 2
    for path in files:
        sound = path.read_bytes()
        flipped = bytearray(sound)
        flipped[len(flipped) // 2] ^= 1
        for damage in (bytes(flipped), sound[:-1]):
            path.write_bytes(damage)
            check_refused(catalog, copy, path.name)
        path.unlink()
        check_refused(catalog, copy, path.name)
        path.write_bytes(sound)
    catalog.restore("b", copy)


def test_restore_refuses_a_folder_without_a_snapshot(catalog: LocalCatalog, index: LocalIndex, tmp_path: Path) -> None:
    assert index.compact()
    (manifest,) = index.path.parent.glob("*.block/*/manifest.json")  # the manifest of a block
    for source in (tmp_path / "nowhere", index.path.parent, index.path, manifest.parent):
        check_refused(catalog, source, "not a snapshot of an index")


def seal_copy(copy: Path) -> None:
    """Write a manifest with correct checksums, as an attacker would."""
    (copy / "manifest.json").unlink()
    seal(copy, {"format": BACKUP_FORMAT, "name": "a"})


def sign_manifest(copy: Path, **facts: Any) -> None:
    """Change the manifest, and write its correct checksum."""
    manifest = orjson.loads((copy / "manifest.json").read_bytes()) | facts
    content = {name: value for name, value in manifest.items() if value is not ... and name != "sha256"}
    digest = hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
    (copy / "manifest.json").write_bytes(orjson.dumps({**content, "sha256": digest}))


def check_refused(catalog: LocalCatalog, copy: Path, said: str) -> None:
    """Check that a restore fails with this message and leaves nothing behind."""
    with pytest.raises((CorruptIndex, InvalidInput), match=said) as caught:
        catalog.restore("b", copy)
    assert ".creating" not in str(caught.value), "the message names the snapshot"
    assert [info.name for info in catalog.list()] == ["a"]


TRIGGER = "create trigger evil after insert on documents begin delete from documents; end"


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (TRIGGER, "trigger 'evil'"),
        ("create view evil as select * from documents", "view 'evil'"),
        ("create virtual table evil using fts5 (a)", "table 'evil"),
        ("drop index living; create index living on documents (sequence) where 0", "index 'living'"),
        ("drop table field_values; create view field_values as select 1 field, 2 value, 3 sequence", "'field_values'"),
        ("alter table documents add column evil generated always as (hex(zeroblob(1000000)))", "table 'documents'"),
        ("delete from meta", "'meta' does not say what the index is"),
        ("update meta set value = 'many' where key = 'dimension'", "'meta' does not say what the index is"),
        ("update meta set value = null where key = 'kind'", "'meta' does not say what the index is"),
    ],
)
def test_restore_refuses_another_schema(catalog: LocalCatalog, copy: Path, statement: str, said: str) -> None:
    """The statements of the trigger would run with every later upload."""
    with closing(sqlite3.connect(copy / "index.sqlite3")) as database:
        database.executescript(statement)
    seal_copy(copy)
    check_refused(catalog, copy, said)


@pytest.mark.strangers
@pytest.mark.parametrize("name", ["index.sqlite3", "manifest.json", FILE])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_restore_refuses_links_and_pipes(
    catalog: LocalCatalog, index: LocalIndex, tmp_path: Path, name: str, kind: str
) -> None:
    """A link may lead to any file of the machine, and a pipe never ends."""
    catalog.artifacts("a").change(description="secret")
    index.back_up(tmp_path / "copy")
    path = tmp_path / "copy" / name
    path.rename(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside") if kind == "link" else os.mkfifo(path)
    check_refused(catalog, tmp_path / "copy", " is a link" if kind == "link" else "(is not a file|is missing)")


@pytest.mark.strangers
def test_snapshot_contains_the_artifacts_of_its_index(catalog: LocalCatalog, index: LocalIndex, tmp_path: Path) -> None:
    catalog.artifacts("a").change(description="Photos.", distinct="n")
    index.back_up(tmp_path / "copy")
    catalog.restore("b", tmp_path / "copy")
    assert catalog.artifacts("b").read() == Artifacts("Photos.", "n")
    (index.path.parent / FILE).write_bytes(b"{")
    with pytest.raises(CorruptIndex, match=FILE):
        index.back_up(tmp_path / "damaged")
    assert {path.name for path in tmp_path.iterdir()} == {"indexes", "copy"}


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"format": ...}, "has format None"),
        ({"format": 2}, r"manifest\.json has format 2; this program reads format 1"),
        ({"files": ...}, "does not list files"),
        ({"files": {"index.sqlite3": {"bytes": "3", "sha256": ""}}}, "does not list files"),
        ({"files": {"index.sqlite3": {"bytes": 3}}}, "does not list files"),
        ({"files": {}}, "not a snapshot of an index"),
        ({"files": {"../evil.txt": {"bytes": 0, "sha256": ""}}}, "not a snapshot of an index"),
        ({"files": {"/etc/passwd": {"bytes": 0, "sha256": ""}}}, "not a snapshot of an index"),
        ({"name": ...}, "not a snapshot of an index"),
        ({"files": {"index.sqlite3": {"bytes": 10**15, "sha256": ""}}}, "should have 1000000000000000"),
    ],
)
def test_restore_refuses_another_manifest(catalog: LocalCatalog, copy: Path, facts: dict[str, Any], said: str) -> None:
    sign_manifest(copy, **facts)
    check_refused(catalog, copy, said)


def test_restore_refuses_a_taken_name_and_keeps_its_index(catalog: LocalCatalog, index: LocalIndex, copy: Path) -> None:
    put(index, range(1), version=1)
    with pytest.raises(IndexConflict, match="'a'"):
        catalog.restore("a", copy)
    with pytest.raises(InvalidIndexName):
        catalog.restore("../a", copy)
    (copy / "index.sqlite3").write_bytes(b"nothing")
    with pytest.raises(CorruptIndex):
        catalog.restore("a", copy, replace=True)
    assert contents(index)["0"].text == "version 1 of 0"


def test_restore_replaces_an_index_on_request(
    catalog: LocalCatalog, index: LocalIndex, copy: Path, tmp_path: Path
) -> None:
    other = LocalCatalog(tmp_path / "indexes")
    theirs = other.get("a")
    put(theirs, range(1), version=1)
    assert catalog.restore("a", copy, replace=True).count == COUNT + 19
    for old in (index, theirs):
        with pytest.raises(UnknownIndex):
            nearest(old, np.ones(32), 1)
    assert contents(other.get("a"))["0"].text == "version 0 of 0"
    assert_same(catalog.get("a"), other.get("a"))
    assert catalog.restore("new", copy, replace=True).name == "new"
    assert sorted(path.name for path in (tmp_path / "indexes").iterdir()) == ["a", "new"]
    other.close()


def test_interrupted_replacement_is_undone(catalog: LocalCatalog, index: LocalIndex, tmp_path: Path) -> None:
    folder = tmp_path / "indexes"
    (folder / "a").rename(folder / ".replaced-0123-a")
    (folder / ".creating-0123").mkdir()
    again = LocalCatalog(folder)
    assert again.get("a").count() == COUNT + 19
    assert [path.name for path in folder.iterdir()] == ["a"]
    again.close()


@pytest.mark.slow
def test_replacement_survives_a_kill_at_any_moment(catalog: LocalCatalog, index: LocalIndex, tmp_path: Path) -> None:
    """The index is wholly the old or the new one, wherever the process was killed."""
    index.back_up(tmp_path / "0")
    put(index, range(COUNT), version=1)
    index.back_up(tmp_path / "1")
    catalog.close()
    code = (
        "import sys; from pathlib import Path; from boundarymorph.retrieval.local.catalog import LocalCatalog\n"
        "folder = Path(sys.argv[1]); catalog = LocalCatalog(folder / 'indexes')\n"
        "while True:\n"
        "    for copy in '01': catalog.restore('a', folder / copy, replace=True); print(copy, flush=True)"
    )
    rng = random.Random(1)
    seen: set[str] = set()
    turn = 0
    while turn < 6 or (len(seen) < 2 and turn < 60):  # on a busy machine many kills may leave the same state
        with script.running(code, str(tmp_path)) as (_, printed):
            for _ in range(1 + turn % 2):
                printed.readline()
            time.sleep(rng.uniform(0, 0.1))
        turn += 1
        again = LocalCatalog(tmp_path / "indexes")
        versions = {
            document.text.split()[1] for number, document in contents(again.get("a")).items() if int(number) < COUNT
        }
        assert len(versions) == 1
        seen |= versions
        again.close()
        assert [path.name for path in (tmp_path / "indexes").iterdir()] == ["a"]
    assert seen == {"0", "1"}
