"""The totals of a directory's indexes, against a model, as two processes see them."""

import random
import time
from pathlib import Path

import lancedb
import numpy as np
import pytest

from boundarymorph.errors import StorageUnavailable
from boundarymorph.retrieval.catalog import UNREADABLE, IndexDescription, IndexTotals, UnreadableIndex
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local import totals
from boundarymorph.retrieval.local.catalog import KINDS, LocalCatalog
from boundarymorph.retrieval.stores.catalog import Catalogs, StoreCatalog
from boundarymorph.retrieval.stores.lancedb import LanceStore

NAMES = ["a", "b", "c", "d", "e"]


def counts(catalog: LocalCatalog) -> dict[str, tuple[int, int]]:
    return {kind: (found.indexes, found.documents) for kind, found in catalog.totals().items()}


def sizes(catalog: LocalCatalog) -> dict[str, int]:
    """By kind, as `list` has them."""
    found = dict.fromkeys((*KINDS, UNREADABLE), 0)
    for info in catalog.list():
        assert not isinstance(info, UnreadableIndex)
        found[info.kind] += info.bytes
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


def test_what_has_not_changed_is_not_counted_again(tmp_path: Path) -> None:
    catalog = LocalCatalog(tmp_path / "indexes")
    for name in NAMES:
        catalog.create(name, encoder=None, dimension=1).upsert([Document("x", "x")], np.ones((1, 1)))
    asked: list[str] = []

    def describe(name: str) -> IndexDescription:
        asked.append(name)
        return catalog.describe(name)

    now = time.time() + 1.5 * totals.SETTLED
    summed = totals.Totals(describe, lambda: now)
    folders = [tmp_path / "indexes" / name for name in NAMES]
    first = summed.of(folders)
    assert first["flat"].documents == len(NAMES) == len(asked)
    for _ in range(3):
        assert summed.of(folders) == first
    assert len(asked) == len(NAMES)
    catalog.get("c").upsert([Document("y", "y")], np.ones((1, 1)))
    assert summed.of(folders)["flat"].documents == len(NAMES) + 1
    assert asked[len(NAMES) :] == ["c"]
    catalog.close()


def test_a_change_within_one_tick_of_the_file_system_is_seen_later(tmp_path: Path) -> None:
    catalog = LocalCatalog(tmp_path / "indexes")
    index = catalog.create("a", encoder=None, dimension=1)
    (folder,) = (tmp_path / "indexes").iterdir()
    (file,) = folder.glob("*.sqlite3")
    second = int(time.time())

    def describe(name: str) -> IndexDescription:
        described = catalog.describe(name)
        if not described.count:  # another process writes after the first look
            index.upsert([Document("x", "x")], np.ones((1, 1)))
        return described

    now = float(second)
    summed = totals.Totals(describe, lambda: now)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(totals, "files_of", lambda folder: {file: (1, second * 10**9)})
        assert summed.of([folder])["flat"].documents == 0
        now += 2 * totals.SETTLED
        assert summed.of([folder])["flat"].documents == 1
    catalog.close()


def test_one_that_cannot_be_read_is_tried_again(tmp_path: Path) -> None:
    catalog = LocalCatalog(tmp_path / "indexes")
    catalog.create("a", encoder=None, dimension=1)
    (folder,) = (tmp_path / "indexes").iterdir()
    trouble = True

    def describe(name: str) -> IndexDescription:
        if trouble:
            raise StorageUnavailable("the disk does not answer")
        return catalog.describe(name)

    summed = totals.Totals(describe)
    assert summed.of([folder])[UNREADABLE].indexes == 1
    trouble = False
    assert summed.of([folder]) == {"flat": IndexTotals(1, 0, sizes(catalog)["flat"])}
    catalog.delete("a")
    assert summed.of([folder]) == {}
    catalog.close()


def test_beside_attached_stores_those_on_the_disk_count(tmp_path: Path) -> None:
    catalog = LocalCatalog(tmp_path / "indexes")
    catalog.create("a", encoder=None, dimension=1).upsert([Document("x", "x")], np.ones((1, 1)))
    lancedb.connect(tmp_path / "lance").create_table("t", [{"id": "x", "text": "x", "vector": [1.0]}])
    both = Catalogs(catalog, {"lance": StoreCatalog(LanceStore(str(tmp_path / "lance")), {})})
    assert {info.name for info in both.list()} == {"a", "lance/t"}
    assert both.totals() == catalog.totals() and counts(catalog)["flat"] == (1, 1)
    both.close()
