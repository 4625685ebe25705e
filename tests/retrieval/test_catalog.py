"""Named indexes: configuration, names, deletion, and two processes over one directory."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from boundarymorph.errors import (
    BoundaryMorphError,
    CorruptIndex,
    EmptyIndex,
    StorageUnavailable,
    UnknownIndex,
)
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.interfaces import IndexDescription, UnreadableIndex
from boundarymorph.retrieval.local.catalog import LocalCatalog, LocalIndex
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
