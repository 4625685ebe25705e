"""LocalIndex: its vectors keep step with the store, whoever writes it meanwhile."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from boundarymorph.inference.concurrency import awaited
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.local.catalog import LocalIndex
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.vectors import VectorIndex
from tests.contract.vector_index import names, unit
from tests.retrieval.fakes import nearest
from tests.retrieval.test_blocks import put

DIMENSION = 16
Open = Callable[..., LocalIndex]


@pytest.fixture
def open_index(tmp_path: Path) -> Iterator[Open]:
    """Another process's view of the index of a kind, as far as files tell."""
    opened = []

    def open_index(kind: str, **options: object) -> LocalIndex:
        path = tmp_path / f"{kind}.sqlite3"
        if not path.exists():
            DocumentStore.create(path, encoder=None, dimension=DIMENSION, kind=kind).close()
        opened.append(LocalIndex("index", path, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_index
    for index in opened:
        index.close()


def test_a_first_reading_does_not_keep_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "index.sqlite3"
    DocumentStore.create(path, encoder=None, dimension=DIMENSION).close()
    writer = LocalIndex("index", path)
    put(writer, names(40))
    reader = LocalIndex("index", path, page=10)
    emptied, upsert = [], VectorIndex.upsert

    def slowly(index: VectorIndex, *arguments: object) -> None:
        emptied.append(writer.empty_log())
        upsert(index, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(VectorIndex, "upsert", slowly)
    assert len(nearest(reader, unit(1, DIMENSION)[0], 1000)) == 40
    assert emptied == [True] * 4
    reader.close()
    writer.close()


def test_a_first_reading_goes_on_if_nobody_waits_for_it(open_index: Open) -> None:
    """Else an index that takes longer to read than anybody waits would never be read."""
    index = open_index("flat")
    put(index, names(40))
    with awaited() as context:
        pass
    context.run(index.refresh)
    assert len(index._vectors or ()) == 40


def test_words_move_with_their_rows(open_index: Open) -> None:
    """Once most rows are dead, the living are put together."""
    index = open_index("flat")
    for version in range(50):
        numbers = range(60 if version == 0 else 30)
        documents = [Document(f"d{n}", "tram " + "rail " * ((n + version) % 7)) for n in numbers]
        index.upsert(documents, unit(len(documents), DIMENSION, seed=version))
        index.refresh()
    search = Search("tram", 60, unit(1, DIMENSION)[0])
    kept, fresh = index.retrieve(search).pool, open_index("flat").retrieve(search).pool
    assert kept.ids == fresh.ids
    np.testing.assert_array_equal(kept.features["bm25"], fresh.features["bm25"])
