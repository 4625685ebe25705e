"""LocalIndex: its vectors keep step with the store, whoever writes it meanwhile."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.inference.concurrency import awaited
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.local.catalog import LocalIndex
from boundarymorph.retrieval.local.store import Changes, DocumentStore
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


def test_sequence_numbers_are_those_of_the_store(open_index: Open) -> None:
    index = open_index("ivf")
    put(index, names(500))
    index.compact()
    put(index, names(10), seed=1)
    index.delete(["d20"])
    changes = index.changes(0)
    expected = dict(zip(changes.ids, changes.sequences.tolist(), strict=True))
    query = unit(1, DIMENSION)[0]
    for opened in (index, open_index("ivf")):
        with opened._up_to_date() as vectors:
            found = vectors.search(query, 10_000)
            assert dict(zip(found.ids, found.sequences.tolist(), strict=True)) == expected
            some = np.sort(changes.sequences[::7])
            assert sorted(vectors.among(some).search(query, 10_000).sequences.tolist()) == some.tolist()
            assert vectors.among(np.empty(0, np.int64)).search(query, 3).ids == []


def test_it_answers_after_a_restart_however_much_was_deleted(tmp_path: Path) -> None:
    """Also when the deletions are recorded no more, and the changes take many pages."""
    path = tmp_path / "index.sqlite3"
    DocumentStore.create(path, encoder=None, dimension=DIMENSION).close()
    writer = LocalIndex("index", path, tombstones_kept=2, page=3)
    put(writer, names(40))
    for number in range(10):
        writer.delete([f"d{3 * number}"])
    started = LocalIndex("index", path, page=3)
    for index in (started, writer):
        assert len(nearest(index, unit(1, DIMENSION)[0], 100)) == 30
        index.close()


@pytest.mark.parametrize("kind", ["flat", "ivf"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_what_matches_throughout_is_found(
    open_index: Open, monkeypatch: pytest.MonkeyPatch, kind: str, hybrid: bool
) -> None:
    """Another process rewrites documents, and another thread searches, after the filter has been looked up."""
    reader, writer = open_index(kind), open_index(kind)
    vectors = unit(40, DIMENSION)
    documents = [Document(f"d{i}", "tram" if i % 2 else "violin", None, {"even": i % 2 == 0}) for i in range(40)]
    writer.upsert(documents, vectors)
    writer.compact()
    looked_up = DocumentStore.matching_sequences

    def interrupted(store: DocumentStore, filter: Filter) -> NDArray[np.int64]:
        found = looked_up(store, filter)
        writer.upsert(documents[:20], vectors[:20])
        other = threading.Thread(target=nearest, args=(reader, vectors[0], 1))
        other.start()
        other.join()
        return found

    monkeypatch.setattr(DocumentStore, "matching_sequences", interrupted)
    for _ in range(3):
        pool = reader.retrieve(Search("violin", 100, vectors[0], {"even": True}, hybrid)).pool
        assert sorted(pool.ids) == sorted(f"d{i}" for i in range(0, 40, 2))
        assert (pool.features["bm25"] > 0).all()


def test_words_that_another_process_indexes_are_used(tmp_path: Path) -> None:
    path = tmp_path / "plain.sqlite3"
    DocumentStore.create(path, encoder=None, dimension=DIMENSION, lexical=False).close()
    running, other = LocalIndex("a", path), LocalIndex("a", path)
    vectors = unit(2, DIMENSION)
    running.upsert([Document("a", "tram"), Document("b", "violin")], vectors)
    assert dict(running.retrieve(Search("tram", 2, vectors[1])).pool.features) == {}
    assert other.index_words()
    for hybrid, order in ((False, ["b", "a"]), (True, ["a", "b"])):
        pool = running.retrieve(Search("trams, tram", 2, vectors[1], hybrid=hybrid)).pool
        assert pool.ids == order
        bm25 = dict(zip(pool.ids, pool.features["bm25"], strict=True))
        assert bm25["b"] == 0 < bm25["a"]
        assert pool.terms is not None
        assert pool.terms.tolist() == [[id == "a" for id in order]]
    running.close()
    other.close()


def test_deletions_that_are_forgotten_while_it_is_first_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read on an early page is gone, and no longer recorded, before the last page is read."""
    path = tmp_path / "index.sqlite3"
    DocumentStore.create(path, encoder=None, dimension=DIMENSION).close()
    writer = LocalIndex("index", path, tombstones_kept=2)
    put(writer, names(40))
    reader = LocalIndex("index", path, page=10)
    read = DocumentStore.changes

    def changes(store: DocumentStore, after: int, *, texts: bool) -> Changes:
        if after == 20:
            monkeypatch.undo()
            for id in names(12):
                writer.delete([id])
            put(writer, names(30, 100))
        return read(store, after, texts=texts)

    monkeypatch.setattr(DocumentStore, "changes", changes)
    assert sorted(nearest(reader, unit(1, DIMENSION)[0], 1000).ids) == sorted(names(28, 12) + names(30, 100))
    reader.close()
    writer.close()


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
