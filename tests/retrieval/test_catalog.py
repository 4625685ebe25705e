"""Test named indexes: configuration, names, deletion, totals, limits, and two processes."""

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest

from boundarymorph.errors import CorruptIndex, EmptyIndex, StorageUnavailable, UnknownIndex
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.interfaces import UNREADABLE, UnreadableIndex
from boundarymorph.retrieval.local.catalog import KINDS, LocalCatalog, LocalIndex
from tests.retrieval.fakes import nearest, vector_of


@pytest.fixture
def other(catalog: LocalCatalog, tmp_path: Path) -> Iterator[LocalCatalog]:
    """Yield another catalog over the same directory, like the one of a second process."""
    other = LocalCatalog(tmp_path / "indexes")
    yield other
    other.close()


def put(index: LocalIndex, *texts: str) -> None:
    documents = [Document(text.split()[0], text) for text in texts]
    index.upsert(documents, np.array([vector_of(text) for text in texts]))


def test_concurrent_creation_makes_one_index(tmp_path: Path) -> None:
    catalogs = [LocalCatalog(tmp_path) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda catalog: catalog.ensure("a", encoder=None, dimension=4), catalogs))
    assert sorted(made) == [False] * 7 + [True]
    assert len({catalog.get("a").path for catalog in catalogs}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    for catalog in catalogs:
        catalog.close()


@pytest.mark.parametrize("again", [False, True])
def test_index_deleted_while_it_is_opened(
    catalog: LocalCatalog, other: LocalCatalog, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Its folder is empty, or a new index has taken its name."""
    put(catalog.create("a", encoder=None, dimension=32), "x")
    listed = Path.iterdir

    def emptied(folder: Path) -> Iterator[Path]:
        monkeypatch.setattr(Path, "iterdir", listed)
        catalog.delete("a")
        if again:
            put(catalog.create("a", encoder=None, dimension=32), "y", "z")
        return iter(())

    monkeypatch.setattr(Path, "iterdir", emptied)
    with nullcontext() if again else pytest.raises(UnknownIndex):
        assert other.get("a").count() == 2


def test_index_recreated_by_another_process_serves_no_old_documents(catalog: LocalCatalog, other: LocalCatalog) -> None:
    old = catalog.create("a", encoder=None, dimension=32)
    put(old, "old")
    assert list(nearest(old, vector_of("old"), 1).ids) == ["old"]
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


@pytest.mark.parametrize("damage", ["garbage", "missing", "unreadable"])
def test_damaged_index_is_reported_and_hides_no_other(
    catalog: LocalCatalog, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = catalog.create("bad", encoder=None, dimension=4).path
    catalog.create("good", encoder=None, dimension=4)
    catalog.close()
    for file in path.parent.iterdir():
        file.unlink()
    if damage == "garbage":
        path.write_bytes(b"this is no database" * 1000)
    elif damage == "unreadable":
        path.mkdir()  # SQLite cannot open a folder
    kind = StorageUnavailable if damage == "unreadable" else CorruptIndex
    with pytest.raises(kind, match="bad" if damage == "missing" else path.name):
        catalog.get("bad")
    bad, good = catalog.list()
    assert isinstance(bad, UnreadableIndex) and type(bad.error) is kind and good.name == "good"
    assert "bad" in caplog.text
    catalog.check()  # the other index can be read
    catalog.delete("good")
    if damage == "unreadable":
        with pytest.raises(StorageUnavailable, match=path.name):
            catalog.check()
    catalog.delete("bad")
    with pytest.raises(UnknownIndex):
        catalog.get("bad")


MOST_OPEN = 4
MANY = [f"i{number}" for number in range(12)]
QUERY = [1.0, 0.0]


@pytest.fixture
def many(tmp_path: Path) -> Iterator[LocalCatalog]:
    """Yield a catalog of twelve indexes, each with one document."""
    catalog = LocalCatalog(tmp_path / "indexes", most_open=MOST_OPEN)
    for name in MANY:
        index = catalog.create(name, encoder=None, dimension=2)
        index.upsert([Document(name, f"text of {name}")], np.array([[1.0, 1.0]]))
    yield catalog
    catalog.close()


def get(catalog: LocalCatalog, name: str, caller: str = "a") -> LocalIndex:
    """Use an index on behalf of a caller."""
    return catalog.get(name, caller)


def files(catalog: LocalCatalog) -> set[str]:
    """Return the indexes whose files this process has open."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            links.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
    return {link.parent.name for link in links if catalog._directory in link.parents}


def test_catalog_closes_the_least_recently_used_index(many: LocalCatalog) -> None:
    for name in MANY:
        assert list(nearest(get(many, name), QUERY, 1).ids) == [name]
    assert files(many) == set(MANY[-MOST_OPEN:])
    nearest(get(many, MANY[-MOST_OPEN]), QUERY, 1)
    nearest(get(many, MANY[0]), QUERY, 1)
    assert files(many) == {MANY[0], MANY[-MOST_OPEN], *MANY[2 - MOST_OPEN :]}, "the least recently used went"


def test_catalog_closes_an_index_of_the_caller_with_the_most(many: LocalCatalog) -> None:
    mine = get(many, "i0", "modest")
    for name in MANY[1:]:
        get(many, name, "greedy")
    assert get(many, "i0", "modest") is mine


def test_catalog_keeps_an_index_in_use_open(many: LocalCatalog) -> None:
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


NAMES = ["a", "b", "c", "d", "e"]


def counts(catalog: LocalCatalog) -> dict[str, tuple[int, int]]:
    return {kind: (found.indexes, found.documents) for kind, found in catalog.totals().items()}


def test_catalog_totals_follow_writes_of_any_process(tmp_path: Path) -> None:
    chance = random.Random(0)
    writer, other = (LocalCatalog(tmp_path / "indexes", most_open=2) for _ in range(2))
    model: dict[str, tuple[str, set[str]]] = {}
    for _ in range(40):
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
    listed = sum(info.bytes or 0 for info in writer.list() if not isinstance(info, UnreadableIndex))
    assert sum(found.bytes for found in writer.totals().values()) == listed
    writer.close()
    other.close()
