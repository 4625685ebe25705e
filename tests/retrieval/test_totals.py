"""The totals of a directory's indexes, against a model, as two processes see them."""

import random
from pathlib import Path

import lancedb
import numpy as np
import pytest

from boundarymorph.errors import StorageUnavailable
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.interfaces import UNREADABLE, IndexDescription, IndexTotals, UnreadableIndex
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


def test_beside_attached_stores_those_on_the_disk_count(tmp_path: Path) -> None:
    catalog = LocalCatalog(tmp_path / "indexes")
    catalog.create("a", encoder=None, dimension=1).upsert([Document("x", "x")], np.ones((1, 1)))
    lancedb.connect(tmp_path / "lance").create_table("t", [{"id": "x", "text": "x", "vector": [1.0]}])
    both = Catalogs(catalog, {"lance": StoreCatalog(LanceStore(str(tmp_path / "lance")), {})})
    assert {info.name for info in both.list()} == {"a", "lance/t"}
    assert both.totals() == catalog.totals() and counts(catalog)["flat"] == (1, 1)
    both.close()
