"""The file of vectors that all processes of an index of kind flat map: when it is written, read and replaced."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.retrieval.local.flat import FlatIndex
from boundarymorph.retrieval.local.index import LocalIndex
from boundarymorph.retrieval.local.store import DocumentStore
from tests.contract.vector_index import names, unit
from tests.retrieval.fakes import nearest
from tests.retrieval.test_training import DIMENSION, EAGER, NEVER, put, until

Open = Callable[..., LocalIndex]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    DocumentStore.create(tmp_path / "index.sqlite3", encoder=None, dimension=DIMENSION).close()
    return tmp_path / "index.sqlite3"


@pytest.fixture
def open_index(path: Path) -> Iterator[Open]:
    """Another process's view of the index, as far as files tell."""
    opened = []

    def open_index(policy: object = EAGER) -> LocalIndex:
        opened.append(LocalIndex("index", DocumentStore(path), policy=policy))  # type: ignore[arg-type]
        return opened[-1]

    yield open_index
    for index in opened:
        index.close()


def vectors_of(index: LocalIndex) -> FlatIndex:
    return cast(FlatIndex, index.refresh())


def mapped(index: LocalIndex) -> bool:
    """Whether the vectors of the index are in the file."""
    base: object = vectors_of(index).view().matrix
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    return isinstance(base, np.memmap)


def same(index: LocalIndex, vectors: dict[str, NDArray[np.float32]]) -> None:
    """The index finds these documents, with these vectors, in the order of their inner products."""
    query = unit(1, DIMENSION, seed=99)[0]
    pool = nearest(index, query, 10_000)
    expected = sorted(vectors, key=lambda id: -float(vectors[id] @ query))
    assert sorted(pool.ids) == sorted(expected)
    assert list(pool.ids)[:20] == expected[:20]
    for id, row in zip(pool.ids, pool.embeddings, strict=True):
        np.testing.assert_allclose(row, vectors[id], atol=1e-3)


def test_a_file_is_written_once_it_is_worth_it(open_index: Open, path: Path) -> None:
    index = open_index()
    put(index, names(99))
    index.settle()
    assert not mapped(index) and vectors_of(index).sequence == 0
    rows = dict(zip(names(100), put(index, names(100), seed=1), strict=True))
    index.settle()
    assert mapped(index)
    same(index, rows)
    assert index.structure() is None  # which describes what was trained


def test_what_follows_stays_in_the_memory_of_each_process(open_index: Open, path: Path) -> None:
    writer, reader = open_index(), open_index()
    rows = dict(zip(names(200), put(writer, names(200)), strict=True))
    writer.settle()
    (file,) = path.with_suffix(".flat").glob("*/vectors.f4")
    before = file.read_bytes()
    rows |= dict(zip([f"new{n}" for n in range(30)], put(writer, [f"new{n}" for n in range(30)], seed=2), strict=True))
    writer.delete(["d3", "new4"])
    del rows["d3"], rows["new4"]
    for index in (writer, reader, open_index(NEVER)):
        same(index, rows)
        assert mapped(index)
    assert file.read_bytes() == before


def test_more_than_it_has_room_for_is_searched_too(open_index: Open) -> None:
    first = open_index()
    rows = dict(zip(names(200), put(first, names(200)), strict=True))
    first.settle()
    late = open_index(NEVER)
    many = [f"new{n}" for n in range(300)]
    rows |= dict(zip(many, put(late, many, seed=2), strict=True))
    same(late, rows)
    assert not mapped(late)


def test_it_is_written_again_after_many_changes_and_taken_over_by_others(open_index: Open, path: Path) -> None:
    writer, reader = open_index(), open_index()
    put(writer, names(200))
    writer.settle()
    reader.settle()
    first = vectors_of(reader).sequence
    rows = dict(zip(names(200), put(writer, names(200), seed=5), strict=True))  # each replaced
    until(lambda: vectors_of(writer).sequence == vectors_of(reader).sequence > first > 0)
    writer.settle()
    reader.settle()
    (file,) = path.with_suffix(".flat").glob("*/vectors.f4")
    assert file.stat().st_size == 4 * DIMENSION * 250  # without what was replaced, and with room
    written = file.stat().st_mtime_ns
    for index in (writer, reader):  # nothing changes, so nothing is written
        index.settle()
    assert file.stat().st_mtime_ns == written
    for index in (writer, reader):
        same(index, rows)
        assert mapped(index)


@pytest.mark.parametrize("damage", ["a bit", "the end", "everything"])
def test_a_damaged_file_is_not_used(
    open_index: Open, path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    index = open_index()
    rows = dict(zip(names(200), put(index, names(200)), strict=True))
    index.settle()
    (file,) = path.with_suffix(".flat").glob("*/vectors.f4")
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.unlink()  # others keep what they have mapped
    if damage != "everything":
        file.write_bytes(content if damage == "a bit" else content[:-4])
    later = open_index(NEVER)
    same(later, rows)
    assert not mapped(later)
    assert "ignoring the structure" in caplog.text
    same(index, rows)


def test_a_file_that_is_newer_than_its_store_is_not_used(open_index: Open, path: Path) -> None:
    index = open_index()
    rows = dict(zip(names(200), put(index, names(200)), strict=True))
    older = path.with_name("older.sqlite3")
    DocumentStore(path).back_up(older)
    put(index, [f"new{n}" for n in range(100)])
    index.settle()
    index.close()
    older.replace(path)
    path.with_name("index.sqlite3-wal").unlink(missing_ok=True)
    restored = open_index(NEVER)
    same(restored, rows)
    assert not mapped(restored)


def test_searches_go_on_while_files_are_written_and_replaced(open_index: Open) -> None:
    index, other = open_index(), open_index()
    put(index, names(150))
    done = threading.Event()
    failures: list[BaseException] = []

    def search(searched: LocalIndex) -> None:
        try:
            while not done.is_set():
                pool = nearest(searched, unit(1, DIMENSION, seed=3)[0], 40)
                assert len(pool) == len(set(pool.ids)) == 40
        except BaseException as error:
            failures.append(error)

    searchers = [threading.Thread(target=search, args=(searched,)) for searched in (index, other)]
    for searcher in searchers:
        searcher.start()
    rows: dict[str, NDArray[np.float32]] = {}
    for step in range(30):
        ids = [f"{step}-{number}" for number in range(40)]
        rows |= dict(zip(ids, put(index if step % 2 else other, ids, seed=step), strict=True))
    index.delete(names(150))
    done.set()
    for searcher in searchers:
        searcher.join()
    assert not failures
    until(lambda: mapped(index) and mapped(other))
    same(index, rows)
    same(other, rows)


def test_a_disk_without_room_for_two_files_gets_none(
    open_index: Open, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    size = 4 * DIMENSION * 250
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=2 * size - 1))
    index = open_index()
    rows = dict(zip(names(200), put(index, names(200)), strict=True))
    index.settle()
    assert not mapped(index) and not list(path.with_suffix(".flat").glob("*/*"))
    assert f"needs {size:,} bytes" in caplog.text
    same(index, rows)
    index.close()  # and with it any further attempt
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=2 * size))
    other = open_index()
    until(lambda: mapped(other))
