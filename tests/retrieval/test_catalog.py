"""Named indexes: configuration, names, deletion, totals, how many are open at a time, and two processes over one
directory."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boundarymorph.database import bytes_of
from boundarymorph.errors import (
    BoundaryMorphError,
    CorruptIndex,
    EmptyIndex,
    StorageUnavailable,
    UnknownIndex,
)
from boundarymorph.inference.concurrency import CALLER
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.interfaces import UNREADABLE, IndexDescription, IndexTotals, UnreadableIndex
from boundarymorph.retrieval.local import catalog as module
from boundarymorph.retrieval.local.catalog import KINDS, LocalCatalog, LocalIndex
from tests.retrieval.fakes import nearest, vector_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def other(catalog: LocalCatalog, tmp_path: Path) -> Iterator[LocalCatalog]:
    """The same directory, as another process has it open."""
    other = LocalCatalog(tmp_path / "indexes")
    yield other
    other.close()


def put(index: LocalIndex, *texts: str) -> None:
    documents = [Document(text.split()[0], text) for text in texts]
    index.upsert(documents, np.array([vector_of(text) for text in texts]))


def found(index: LocalIndex, text: str) -> str:
    """The text that the index answers with, by its nearest document."""
    (id,) = nearest(index, vector_of(text), 1).ids
    return index.documents([id])[id].text


def test_writes_are_visible_to_the_next_search(catalog: LocalCatalog, other: LocalCatalog) -> None:
    ours = catalog.create("a", encoder=None, dimension=32)
    theirs = other.get("a")
    for version in range(5):
        put(ours, f"x {version}", f"y {version}")
        assert found(theirs, f"x {version}") == f"x {version}"
        put(theirs, f"x {version} theirs")
        assert found(ours, f"x {version} theirs") == f"x {version} theirs"
        assert set(nearest(ours, vector_of("?"), 9).ids) == {"x", "y"}
    assert theirs.delete(["x"]) == 1
    assert list(nearest(ours, vector_of("x 4"), 9).ids) == ["y"]
    assert ours.count() == theirs.count() == 1


def test_many_creating_one_index_get_the_same(tmp_path: Path) -> None:
    catalogs = [LocalCatalog(tmp_path) for _ in range(8)]
    made: list[bool] = []
    created: list[Path] = []

    def create(catalog: LocalCatalog) -> None:
        made.append(catalog.ensure("a", encoder=None, dimension=4))
        created.append(catalog.get("a").path)

    threads = [threading.Thread(target=create, args=(catalog,)) for catalog in catalogs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 7 + [True]
    assert len(created) == 8
    assert len(set(created)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    for catalog in catalogs:
        catalog.close()


@pytest.mark.parametrize("again", [False, True])
def test_an_index_that_is_deleted_while_it_is_opened(
    catalog: LocalCatalog, other: LocalCatalog, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Its folder is found empty; perhaps there is another one by then."""
    put(catalog.create("a", encoder=None, dimension=32), "x")
    listed = Path.iterdir

    def emptied(folder: Path) -> Iterator[Path]:
        monkeypatch.setattr(Path, "iterdir", listed)
        catalog.delete("a")
        if again:
            put(catalog.create("a", encoder=None, dimension=32), "y", "z")
        return iter(())

    monkeypatch.setattr(Path, "iterdir", emptied)
    if again:
        assert other.get("a").count() == 2
    else:
        with pytest.raises(UnknownIndex):
            other.get("a")


def test_indexes_come_and_go_whole(catalog: LocalCatalog, other: LocalCatalog) -> None:
    done = threading.Event()
    failures: list[Exception] = []
    seen = set()

    def look() -> None:
        while not done.is_set():
            try:
                seen.add(other.get("a").count())
                other.list()
            except UnknownIndex:
                pass
            except Exception as failure:
                failures.append(failure)

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(40):
        put(catalog.create("a", encoder=None, dimension=32), "x", "y")
        catalog.delete("a")
    done.set()
    looking.join()
    assert not failures
    assert seen <= {0, 2}


def test_an_index_made_again_elsewhere_serves_nothing_old(catalog: LocalCatalog, other: LocalCatalog) -> None:
    old = catalog.create("a", encoder=None, dimension=32)
    put(old, "old")
    assert found(old, "old") == "old"
    other.delete("a")
    made_again = other.create("a", encoder="e", dimension=8)
    with pytest.raises(UnknownIndex):
        nearest(old, vector_of("old"), 1)
    with pytest.raises(UnknownIndex):
        put(old, "lost")
    current = catalog.get("a")
    assert (current.info.encoder, current.info.dimension, current.count()) == ("e", 8, 0)
    with pytest.raises(EmptyIndex, match="'a'"):
        nearest(current, np.ones(8), 1)
    current.upsert([Document("new", "")], np.ones((1, 8)))
    assert list(nearest(made_again, np.ones(8), 9).ids) == ["new"]


def by_readability(catalog: LocalCatalog) -> tuple[list[str], dict[str, type[BoundaryMorphError]]]:
    """The names of the listed indexes that can be read, and the errors of the others."""
    listed = catalog.list()
    unreadable = {index.name: type(index.error) for index in listed if isinstance(index, UnreadableIndex)}
    return [index.name for index in listed if isinstance(index, IndexDescription)], unreadable


def test_a_damaged_index_is_named_and_hides_no_other(catalog: LocalCatalog, caplog: pytest.LogCaptureFixture) -> None:
    path = catalog.create("bad", encoder=None, dimension=4).path
    catalog.create("good", encoder=None, dimension=4)
    catalog.close()
    path.write_bytes(b"this is no database" * 1000)
    with pytest.raises(CorruptIndex, match=path.name):
        catalog.get("bad")
    assert by_readability(catalog) == (["good"], {"bad": CorruptIndex})
    assert path.name in caplog.text
    path.unlink()
    with pytest.raises(CorruptIndex, match="bad"):
        catalog.get("bad")
    catalog.delete("bad")
    with pytest.raises(UnknownIndex):
        catalog.get("bad")


def test_one_that_cannot_be_read_hides_no_other(catalog: LocalCatalog, caplog: pytest.LogCaptureFixture) -> None:
    path = catalog.create("bad", encoder=None, dimension=4).path
    catalog.create("good", encoder=None, dimension=4)
    catalog.close()
    for file in path.parent.iterdir():
        file.unlink()
    path.mkdir()  # which SQLite cannot open
    with pytest.raises(StorageUnavailable, match=path.name):
        catalog.get("bad")
    (path.parents[1] / "file").write_text("")
    with pytest.raises(StorageUnavailable, match="file"):
        catalog.get("file")
    assert by_readability(catalog) == (["good"], {"bad": StorageUnavailable})
    assert path.name in caplog.text
    catalog.check()  # the other can be read
    catalog.delete("good")
    with pytest.raises(StorageUnavailable, match=path.name):
        catalog.check()


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o200])
def test_without_permission_for_one(catalog: LocalCatalog, mode: int) -> None:
    """In a user namespace, in which root is bound by permissions as everyone is."""
    folder = catalog.create("bad", encoder=None, dimension=4).path.parent
    catalog.create("good", encoder=None, dimension=4)
    catalog.close()
    script = (
        "import sys; from pathlib import Path; from boundarymorph.errors import StorageUnavailable\n"
        "from boundarymorph.retrieval.local.catalog import LocalCatalog\n"
        "catalog = LocalCatalog(Path(sys.argv[1]))\n"
        "print([index.name for index in catalog.list() if not hasattr(index, 'error')])\n"
        "for call in (catalog.get, catalog.describe, lambda name: catalog.create(name, encoder=None, dimension=4)):\n"
        "    try: call('bad')\n"
        "    except StorageUnavailable as error: print(error)\n"
    )
    listed, *refused = told_without_permission(script, folder.parent, folder, mode)
    assert listed == "['good']"
    assert len(refused) == 3 and all("Permission denied" in line for line in refused)


def test_without_permission_to_delete(catalog: LocalCatalog) -> None:
    folder = catalog.create("kept", encoder=None, dimension=4).path.parent
    script = (
        "import sys; from pathlib import Path; from boundarymorph.errors import StorageUnavailable\n"
        "from boundarymorph.retrieval.local.catalog import LocalCatalog\n"
        "try: LocalCatalog(Path(sys.argv[1])).delete('kept')\n"
        "except StorageUnavailable as error: print(error)\n"
    )
    told = told_without_permission(script, folder.parent, folder.parent, 0o500)
    assert told == ["'kept' could not be deleted: Permission denied"]
    assert catalog.exists("kept")


def told_without_permission(script: str, directory: Path, folder: Path, mode: int) -> list[str]:
    """What a script prints about the indexes in a directory while the folder has this mode."""
    folder.chmod(mode)
    try:
        command = ["unshare", "--user", sys.executable, "-c", script, str(directory)]
        told = subprocess.run(command, check=False, capture_output=True, text=True)
    finally:
        folder.chmod(0o700)
    assert told.returncode == 0, told.stderr
    return told.stdout.splitlines()


MOST_OPEN = 4
MANY = [f"i{number}" for number in range(12)]
QUERY = [1.0, 0.0]


@pytest.fixture
def many(tmp_path: Path) -> Iterator[LocalCatalog]:
    """Twelve indexes, each with a document of its own name."""
    catalog = LocalCatalog(tmp_path / "indexes", most_open=MOST_OPEN)
    for name in MANY:
        index = catalog.create(name, encoder=None, dimension=2)
        index.upsert([Document(name, f"text of {name}")], np.array([[1.0, 1.0]]))
    yield catalog
    catalog.close()


def get(catalog: LocalCatalog, name: str, caller: str = "a") -> LocalIndex:
    """Use an index on behalf of a caller."""

    def used() -> LocalIndex:
        CALLER.set(caller)
        return catalog.get(name)

    return copy_context().run(used)


def files(catalog: LocalCatalog) -> set[str]:
    """The indexes that this process has files of open."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            links.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
    return {link.parent.name for link in links if catalog._directory in link.parents}


def test_so_many_and_no_more(many: LocalCatalog) -> None:
    for name in MANY:
        assert list(nearest(get(many, name), QUERY, 1).ids) == [name]
    assert files(many) == set(MANY[-MOST_OPEN:])
    nearest(get(many, MANY[-MOST_OPEN]), QUERY, 1)
    nearest(get(many, MANY[0]), QUERY, 1)
    assert files(many) == {MANY[0], MANY[-MOST_OPEN], *MANY[2 - MOST_OPEN :]}, "the least recently used went"


def test_a_list_of_all_closes_none(many: LocalCatalog) -> None:
    used = {name: many.get(name) for name in MANY[:MOST_OPEN]}
    assert [found.name for found in many.list()] == sorted(MANY)
    assert all(many.get(name) is index for name, index in used.items())
    assert len(files(many)) <= MOST_OPEN


def test_whoever_uses_most_makes_room(many: LocalCatalog) -> None:
    mine = get(many, "i0", "modest")
    for name in MANY[1:]:
        get(many, name, "greedy")
    assert get(many, "i0", "modest") is mine
    get(many, "i1", "modest")
    assert get(many, "i0", "modest") is mine


def test_a_search_that_is_going_on_does_not_notice(many: LocalCatalog) -> None:
    index = get(many, "i0")
    with index.one_state():
        for name in MANY[1:]:
            nearest(get(many, name), QUERY, 1)
        assert index.documents(["i0"])["i0"].text == "text of i0"
        assert list(nearest(index, QUERY, 1).ids) == ["i0"]
    assert "i0" not in files(many), "its files are closed at its end"
    index.upsert([Document("new", "new")], np.array([[1.0, 0.0]]))
    assert list(nearest(index, QUERY, 2).ids) == ["new", "i0"], "who kept it goes on using it"
    assert list(nearest(get(many, "i0"), QUERY, 2).ids) == ["new", "i0"]


def test_many_at_a_time(many: LocalCatalog) -> None:
    def use(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            name = rng.choice(MANY)
            index = get(many, name, rng.choice("ab"))
            assert list(nearest(index, QUERY, 1).ids) == [name]
            assert index.documents([name])[name].text == f"text of {name}"

    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(use, seed) for seed in range(6)]:
            done.result()
    assert len(files(many)) <= MOST_OPEN


NAMES = ["a", "b", "c", "d", "e"]


def counts(catalog: LocalCatalog) -> dict[str, tuple[int, int]]:
    return {kind: (found.indexes, found.documents) for kind, found in catalog.totals().items()}


def sizes(catalog: LocalCatalog) -> dict[str, int]:
    """By kind, as `list` has them."""
    found = dict.fromkeys((*KINDS, UNREADABLE), 0)
    for info in catalog.list():
        assert not isinstance(info, UnreadableIndex)
        found[info.kind] += info.bytes or 0
    return found


@pytest.mark.parametrize("seed", range(3))
def test_they_follow_what_any_process_writes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    writer, other = (LocalCatalog(tmp_path / "indexes", most_open=2) for _ in range(2))
    model: dict[str, tuple[str, set[str]]] = {}
    for _ in range(60):
        name, who = chance.choice(NAMES), chance.choice([writer, other])
        ids = {f"d{chance.randrange(20)}" for _ in range(chance.randrange(1, 6))}
        if name not in model:
            kind = chance.choice(KINDS)
            who.ensure(name, encoder=None, dimension=0 if kind == "words" else 2, kind=kind)
            model[name] = (kind, set())
        elif chance.random() < 0.15:
            who.delete(name)
            del model[name]
        elif chance.random() < 0.3:
            who.get(name).delete(sorted(ids))
            model[name][1].difference_update(ids)
        else:
            dimension = who.get(name).info.dimension
            who.get(name).upsert([Document(id, f"text of {id}") for id in sorted(ids)], np.ones((len(ids), dimension)))
            model[name][1].update(ids)
        wanted = {kind: [held for made, held in model.values() if made == kind] for kind in (*KINDS, UNREADABLE)}
        for catalog in (writer, other):
            assert counts(catalog) == {kind: (len(held), sum(map(len, held))) for kind, held in wanted.items()}
    listed = sizes(writer)  # first, as it may open files
    assert {kind: found.bytes for kind, found in writer.totals().items()} == listed
    writer.close()
    other.close()


def test_one_that_cannot_be_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = LocalCatalog(tmp_path / "indexes")
    catalog.create("a", encoder=None, dimension=1)
    size = sizes(catalog)["flat"]

    def unreadable(name: str) -> IndexDescription:
        raise StorageUnavailable("the disk does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(catalog, "describe", unreadable)
        assert catalog.totals()[UNREADABLE] == IndexTotals(1, 0, size)
    assert catalog.totals()["flat"] == IndexTotals(1, 0, size)
    catalog.delete("a")
    assert set(counts(catalog).values()) == {(0, 0)}
    catalog.close()


@pytest.mark.strangers
def test_describing_an_index_while_it_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = LocalCatalog(tmp_path), LocalCatalog(tmp_path)
    catalog.create("texts", encoder=None, dimension=2)

    def deleted_first(folder: Path) -> Any:
        other.delete("texts")
        return bytes_of(folder)

    monkeypatch.setattr(module, "bytes_of", deleted_first)
    with pytest.raises(UnknownIndex):
        catalog.describe("texts")
    assert bytes_of(tmp_path / "texts") == 0


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("owner", "moment"), [(os, "open"), (Path, "read_bytes"), (Path, "open"), (os, "fsync"), (Path, "replace")]
)
def test_artifacts_that_change_while_their_index_is_deleted(
    catalog: LocalCatalog, monkeypatch: pytest.MonkeyPatch, owner: Any, moment: str
) -> None:
    """There is no such index, whenever it went away; the disk is not to blame."""
    catalog.create("a", encoder=None, dimension=8)
    held = catalog.artifacts("a")
    held.change(description="before")
    call, deleted = getattr(owner, moment), False

    def deleted_before(*arguments: Any, **options: Any) -> Any:
        nonlocal deleted
        if not deleted:
            deleted = True
            catalog.delete("a")
        return call(*arguments, **options)

    monkeypatch.setattr(owner, moment, deleted_before)
    with pytest.raises(UnknownIndex, match="there is no index 'a'"):
        held.change(description="after")
    assert not catalog.exists("a")
