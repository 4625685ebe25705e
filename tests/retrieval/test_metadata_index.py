"""The metadata index: what it finds against the predicate, what a filter costs, older stores, and what is bounded."""

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boundarymorph.inference.executors import Abandoned, awaited
from boundarymorph.retrieval.build import build_catalog
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import MAX_STRING, Filter
from boundarymorph.retrieval.local import matching as matching_module
from boundarymorph.retrieval.local import metadata_index, schema
from boundarymorph.retrieval.local.matching import MatchingReader
from boundarymorph.retrieval.local.metadata_index import MOST_TERMS, SCHEMA, UNINDEXED, add, candidates, terms_of
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.settings import Settings
from tests.contract.document_store import matching
from tests.patience import PATIENCE
from tests.retrieval.test_filters import filters, metadata
from tests.stateful.profile import times

ALL = 10**9


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DocumentStore]:
    store = DocumentStore.create(tmp_path / "s", encoder=None, dimension=4, lexical=False)
    yield store
    store.close()


def write(store: DocumentStore, documents: dict[str, dict[str, Any]]) -> None:
    rows = [Document(id, "", metadata=each) for id, each in documents.items()]
    store.upsert(rows, np.tile(np.eye(1, 4), (len(rows), 1)), [b""] * len(rows))


def indexed(rows: list[dict[str, Any]]) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute(SCHEMA)
    add(connection, [(number, orjson.dumps(row)) for number, row in enumerate(rows, start=1)])
    return connection


@settings(max_examples=times(120, 3_000), deadline=None)
@given(filters, st.lists(metadata, min_size=1, max_size=8))
def test_whatever_meets_a_filter_is_a_candidate(filter: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    asked = Filter(filter)
    with closing(indexed(rows)) as connection:
        for after in (0, 3):
            found = candidates(connection, asked.condition, after, ALL)
            if found is not None:
                expected = {number for number, row in enumerate(rows, start=1) if asked.matches(row) and number > after}
                assert expected <= set(found.tolist())
                assert found.tolist() == sorted({number for number in found.tolist() if number > after})


ROWS: list[dict[str, Any]] = [
    {"a": 1, "b": "x"},
    {"a": 1.0, "b": {"c": "x"}},
    {"a": True, "b": ["x", "y", ["z"], {"c": 1}]},
    {"a": "1", "b": None},
    {"a": -0.0, "b": "x\0y"},
]


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({"a": 1}, [1, 2]),
        ({"a": 0}, [5]),
        ({"a": {"in": [True, "1"]}}, [3, 4]),
        ({"b": "x"}, [1, 3, 5]),
        ({"b": None}, [4]),
        ({"b": "z"}, []),
        ({"b.c": {"in": [1, "x"]}}, [2]),
        ({"a": 1, "b": "x"}, [1, 2]),  # of the shorter list, and what both have is seen in the metadata
        ({"b": "x", "a": {"gt": 5}}, [1, 3, 5]),
        ({"or": [{"a": 0}, {"b.c": "x"}]}, [2, 5]),
        ({"or": [{"a": 0}, {"a": {"lt": 5}}]}, None),
        ({"a": {"in": []}}, []),
        ({"a": {"ne": 1}}, None),
        ({"a": {"exists": True}}, None),
        ({}, None),
    ],
)
def test_how_far_a_filter_is_narrowed_down(filter: dict[str, Any], expected: list[int] | None) -> None:
    with closing(indexed(ROWS)) as connection:
        found = candidates(connection, Filter(filter).condition, 0, ALL)
        assert (None if found is None else found.tolist()) == expected


def test_too_many_candidates_are_none() -> None:
    with closing(indexed([{"a": 1, "b": number} for number in range(2_001)])) as connection:
        for filter, count in (({"a": 1}, 2_001), ({"or": [{"a": 1}, {"b": 5}]}, 2_001), ({"a": 1, "b": 7}, 1)):
            condition = Filter(filter).condition
            found = candidates(connection, condition, 0, count)
            assert found is not None
            assert len(found) == count
            assert candidates(connection, condition, 0, count - 1) is None
        assert candidates(connection, Filter({"or": [{"a": 1}, {"a": {"gt": 5}}]}).condition, 0, ALL) is None


def test_what_no_filter_can_name_has_no_term() -> None:
    assert terms_of(orjson.dumps({"a": {}, "b": [], "c": [[1]], "d": "x" * (MAX_STRING + 1)})) == set()
    assert terms_of(orjson.dumps({"d" * (MAX_STRING + 1): 1})) == set()
    assert len(terms_of(orjson.dumps({"d": "x" * MAX_STRING}))) == 1
    assert len(terms_of(orjson.dumps({"d" * MAX_STRING: 1}))) == 1
    assert len(terms_of(orjson.dumps({"d": "x" * MAX_STRING + "\0more"}))) == 1


def test_a_document_of_very_many_values_is_a_candidate_of_every_filter(store: DocumentStore) -> None:
    most, more = list(range(MOST_TERMS)), list(range(MOST_TERMS + 1))
    assert len(terms_of(orjson.dumps({"n": most}))) == MOST_TERMS
    assert terms_of(orjson.dumps({"n": more})) == {UNINDEXED}
    write(store, {f"d{number}": {"n": -1} for number in range(50)} | {"most": {"n": most}, "more": {"n": more}})
    assert matching(store, Filter({"n": 7})) == ["most", "more"]
    assert matching(store, Filter({"n": MOST_TERMS})) == ["more"]
    assert matching(store, Filter({"n": MOST_TERMS + 1})) == []
    store.delete(["more"])
    assert rows_of(store) == 50 + MOST_TERMS


def rows_of(store: DocumentStore) -> int:
    with store.transaction() as connection:
        (count,) = connection.execute("SELECT count(*) FROM terms").fetchone()
    return int(count)


def test_what_is_replaced_or_deleted_leaves_no_terms(store: DocumentStore) -> None:
    write(store, {"a": {"x": 1, "y": [1, 2, 2]}, "b": {"x": 1}})
    assert rows_of(store) == 4
    write(store, {"a": {"x": 2}})
    assert rows_of(store) == 2
    twice = [Document("b", "", metadata={"x": 5, "z": 5}), Document("b", "", metadata={"x": 6})]
    store.upsert(twice, np.tile(np.eye(1, 4), (2, 1)), [b""] * 2)
    assert rows_of(store) == 2
    assert (matching(store, Filter({"x": 5})), matching(store, Filter({"x": 6}))) == ([], ["b"])
    store.delete(["a", "b", "unknown"])
    assert rows_of(store) == 0


def work_of(store: DocumentStore, filter: dict[str, Any]) -> int:
    """How many hundred instructions of SQLite's machine it takes to answer a filter that was never asked before."""
    calls = [0]

    def count() -> None:
        calls[0] += 1

    with store.transaction() as connection:
        connection.set_progress_handler(count, 100)
        MatchingReader().sequences(connection, Filter(filter))
        connection.set_progress_handler(None, 0)
    return calls[0]


@pytest.mark.parametrize("filter", [{"t": 3}, {"t": {"in": [3, 4]}, "all": 1}, {"t": 3, "n": {"gte": 0}}, {"t": "no"}])
def test_a_new_filter_costs_what_it_matches(tmp_path: Path, filter: dict[str, Any]) -> None:
    work = []
    for size in (1_000, 8_000):
        store = DocumentStore.create(tmp_path / str(size), encoder=None, dimension=4, lexical=False)
        write(store, {f"d{n}": {"t": n if n < 20 else -1, "all": 1, "n": n} for n in range(size)})
        work.append(work_of(store, filter))
        store.close()
    small, large = work
    # Beside what it matches, the candidates of a part that helps no more may be read up to a bound, once.
    assert large <= 2 * small + 200
    assert large < 500


def test_remembered_answers_are_bounded(store: DocumentStore) -> None:
    write(store, {f"d{number}": {"n": number} for number in range(1_000)})
    answer = 8 * 1_000 + 2_000  # bytes, with those of the filter itself

    def kept(most_bytes: int) -> int:
        reader = MatchingReader(most_bytes=most_bytes)
        with store.transaction() as connection:
            for number in [*range(30), 29]:
                assert len(reader.sequences(connection, Filter({"n": {"gte": -number}}))) == 1_000
        assert reader._bytes == sum(matched.counted for matched in reader._matched.values())
        return len(reader._matched)

    assert 1 < kept(3 * answer) < 4
    assert kept(30 * answer) == 30
    assert kept(1) == 1  # the last answer, however large


def test_a_large_filter_counts_too(store: DocumentStore) -> None:
    write(store, {"a": {"n": 1}})
    reader = MatchingReader(most_bytes=1_000_000)
    with store.transaction() as connection:
        for number in range(20):
            reader.sequences(connection, Filter({"n": {"in": [f"{number}{'x' * 1_000}{each}" for each in range(200)]}}))
        assert len(reader._matched) == 2


def downgraded(path: Path) -> None:
    """Make a store what the program before the metadata index would have left."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP TABLE terms")
        connection.execute("PRAGMA user_version=2")


ASKED = [{"t": number} for number in range(4)] + [{"n": {"gte": 5}, "t": 1}]


def agrees(store: DocumentStore, held: dict[str, dict[str, Any]]) -> None:
    for filter in map(Filter, ASKED):
        assert sorted(matching(store, filter)) == sorted(id for id, each in held.items() if filter.matches(each))


def test_a_store_of_schema_version_2_is_taken_over(
    store: DocumentStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    held = {f"d{number}": {"t": number % 4, "n": number} for number in range(20)}
    write(store, held)
    store.delete(["d7"])
    del held["d7"]
    for batch in (3, 19, 20, 1_000):
        downgraded(store.path)
        monkeypatch.setattr(schema, "BATCH", batch)
        opened = DocumentStore(store.path)
        agrees(opened, held)
        assert rows_of(opened) == 2 * len(held)
        with opened.transaction() as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (3,)
            assert connection.execute("SELECT * FROM meta WHERE key = 'metadata_until'").fetchone() is None
        opened.close()
    assert caplog.text.count("schema version 2") == 4


def test_taking_over_a_store_goes_on_where_it_was_cut_off(
    store: DocumentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the program of before, which knows no metadata index, may have replaced documents and deleted some."""
    held = {f"d{number}": {"t": number % 4, "n": number} for number in range(20)}
    write(store, held)
    downgraded(store.path)
    monkeypatch.setattr(schema, "BATCH", 3)
    batches = 0

    def cut_off(connection: sqlite3.Connection, documents: list[tuple[int, bytes]]) -> None:
        nonlocal batches
        batches += 1
        if batches == 3:
            raise KeyboardInterrupt
        add(connection, documents)

    monkeypatch.setattr(metadata_index, "add", cut_off)
    with pytest.raises(KeyboardInterrupt):
        DocumentStore(store.path)
    monkeypatch.undo()
    assert rows_of(store) == 2 * 6
    with closing(sqlite3.connect(store.path, isolation_level=None)) as old_program:
        for id, each in (("d2", {"t": 1, "n": 9}), ("d15", {"t": 2, "n": 0})):
            old_program.execute(
                "INSERT OR REPLACE INTO documents (id, digest, embedding, title, text, metadata) "
                "SELECT id, digest, embedding, title, text, ? FROM documents WHERE id = ?",
                (orjson.dumps(each), id),
            )
            held[id] = each
        old_program.execute("INSERT OR REPLACE INTO documents (id) VALUES ('d1')")
        del held["d1"]
    opened = DocumentStore(store.path)
    agrees(opened, held)
    write(opened, {"d3": {"t": 0, "n": 0}})
    agrees(opened, held | {"d3": {"t": 0, "n": 0}})
    opened.close()


def test_the_setting_bounds_every_index(tmp_path: Path) -> None:
    catalog = build_catalog(Settings(data_directory=tmp_path, filter_bytes=20_000))
    index = catalog.create("a", encoder=None, dimension=4)
    rows = [Document(str(number), "", metadata={"n": number}) for number in range(1_000)]
    index.upsert(rows, np.tile(np.eye(1, 4), (1_000, 1)))
    for number in range(5):
        assert len(index._store.matching_sequences(Filter({"n": {"gte": -number}}))) == 1_000
    assert len(index._store._matched._matched) == 2
    catalog.close()


class TestGivingUp:
    """A filter that takes long ends with whoever waits for it, and the next one goes on from there."""

    COSTLY: ClassVar = {"or": [{"tags": {"gt": f"x{number}"}} for number in range(400)]}

    @pytest.fixture
    def filled(self, store: DocumentStore, monkeypatch: pytest.MonkeyPatch) -> DocumentStore:
        monkeypatch.setattr(matching_module, "_PAGE", 100)
        write(store, {str(number): {"tags": [f"t{tag}" for tag in range(20)]} for number in range(2_000)})
        return store

    def scan(self, store: DocumentStore, left: threading.Event) -> BaseException | None:
        """What a scan ends with if its caller leaves when the event is set."""
        ended: list[BaseException | None] = []

        def search() -> None:
            try:
                store.matching_sequences(Filter(self.COSTLY))
            except BaseException as error:
                ended.append(error)
            else:
                ended.append(None)

        with awaited() as context:
            thread = threading.Thread(target=context.run, args=(search,))
            thread.start()
            assert left.wait(PATIENCE)
        thread.join(PATIENCE)
        return ended[0]

    def test_ends_it_in_the_middle_of_a_statement(self, filled: DocumentStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """One page of 2,000 documents is one statement of SQLite, which takes seconds."""
        monkeypatch.setattr(matching_module, "_PAGE", 10_000)
        begun = threading.Event()
        written = matching_module._written

        def noted(*given: Any) -> Any:
            begun.set()
            written(*given)
            raise AssertionError("it went on to its end")

        monkeypatch.setattr(matching_module, "_written", noted)
        assert isinstance(self.scan(filled, begun), Abandoned)
        assert filled.count() == 2_000, "the connection of others is as it was"

    def test_keeps_the_pages_that_were_read(self, filled: DocumentStore, monkeypatch: pytest.MonkeyPatch) -> None:
        pages: list[int] = []
        enough = threading.Event()
        written = matching_module._written

        def noted(connection: sqlite3.Connection, filter: Filter, after: int, *given: Any) -> Any:
            pages.append(after)
            if len(pages) == 3:
                enough.set()
                time.sleep(0.5)  # the caller leaves
            return written(connection, filter, after, *given)

        monkeypatch.setattr(matching_module, "_written", noted)
        assert isinstance(self.scan(filled, enough), Abandoned)
        assert pages == [0, 100, 200]
        assert filled.matching_sequences(Filter(self.COSTLY)).size == 0
        assert pages[3] in (200, 300), "it goes on where the other gave up"
        assert pages[-1] == 1_900
