"""Test the table of metadata: its contents, the cost of filters, and its limits."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from boundarymorph.inference.concurrency import CallerGone, awaited_context
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import MAX_STRING, Filter
from boundarymorph.retrieval.local import metadata as module
from boundarymorph.retrieval.local.metadata import MatchingReader
from boundarymorph.retrieval.local.store import DocumentStore
from tests.patience import PATIENCE


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DocumentStore]:
    store = DocumentStore.create(tmp_path / "s", encoder=None, dimension=4, lexical=False)
    yield store
    store.close()


def write(store: DocumentStore, documents: dict[str, dict[str, Any]]) -> None:
    rows = [Document(id, "", metadata=each) for id, each in documents.items()]
    store.upsert(rows, np.tile(np.eye(1, 4), (len(rows), 1)), [b""] * len(rows))


def test_metadata_table_omits_values_that_no_filter_can_name() -> None:
    def rows(metadata: dict[str, Any]) -> list[tuple[str, Any, int]]:
        return module._rows([(1, orjson.dumps(metadata))])

    assert rows({"d" * (MAX_STRING + 1): 1, "a\x1fb": 2}) == []
    assert len(rows({"d" * MAX_STRING: 1})) == 1
    (field, value, _) = rows({"d": "x" * 5_000})[0]
    assert (field, value) == ("d", "x" * (MAX_STRING + 1))


def work_of(store: DocumentStore, filter: dict[str, Any]) -> int:
    """Return the number of SQLite instructions of a new filter, in hundreds."""
    with store.transaction() as connection:
        condition, calls = Filter(filter).condition, [0]
        connection.set_progress_handler(lambda: calls.__setitem__(0, calls[0] + 1), 100)
        module._matching(connection, condition)
        connection.set_progress_handler(None, 0)
    return calls[0]


@pytest.mark.parametrize("filter", [{"t": 3}, {"t": 3, "n": {"gte": 0}}, {"n": {"lt": 20}}, {"not": {"t": 3}}])
def test_filter_work_grows_with_its_matches_not_the_store(tmp_path: Path, filter: dict[str, Any]) -> None:
    work = []
    for size in (1_000, 8_000):
        store = DocumentStore.create(tmp_path / str(size), encoder=None, dimension=4, lexical=False)
        write(store, {f"d{n}": {"t": n if n < 20 else -1, "all": 1, "n": n} for n in range(size)})
        work.append(work_of(store, filter))
        store.close()
    small, large = work
    # Beside its matches, a filter may read one other part up to a bound.
    assert large <= 2 * small + 200


def test_cached_filter_answers_are_bounded_in_bytes(store: DocumentStore) -> None:
    write(store, {f"d{number}": {"n": number} for number in range(1_000)})
    answer = 8 * 1_000 + 2_000  # bytes, including the filter's own

    def kept(most_bytes: int, filters: list[Filter]) -> int:
        reader = MatchingReader(most_bytes=most_bytes)
        with store.transaction() as connection:
            for filter in filters:
                reader.sequences(connection, filter)
        assert reader._known.currsize <= most_bytes
        return len(reader._known)

    wide = [Filter({"n": {"gte": -number}}) for number in [*range(30), 29]]
    assert 1 < kept(3 * answer, wide) < 4
    assert kept(30 * answer, wide) == 30
    assert kept(1, wide) == 0
    large = [Filter({"n": {"in": [f"{n}{'x' * 1_000}{each}" for each in range(200)]}}) for n in range(5)]
    assert kept(1_000_000, large) == 2, "a large filter counts, too"


def test_filter_query_is_interrupted_when_abandoned(store: DocumentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its one comparison reads 200 million values, which takes longer than the test may."""
    begun, read = threading.Event(), module._read
    endless = (
        "(WITH RECURSIVE n(sequence) AS (SELECT 1 UNION ALL SELECT sequence + 1 FROM n WHERE sequence < 2e8) "
        "SELECT count(*) AS sequence FROM n)"
    )

    def noted(connection: Any, source: str, values: tuple[Any, ...], most: int) -> Any:
        begun.set()
        return read(connection, endless, (), most)

    monkeypatch.setattr(module, "_read", noted)
    with ThreadPoolExecutor(1) as thread:
        with awaited_context() as context:
            search = thread.submit(context.run, store.matching_sequences, Filter({"n": {"gte": 0}}))
            assert begun.wait(PATIENCE)
        with pytest.raises(CallerGone):
            search.result(PATIENCE)
    assert store.count() == 0, "the connection of others is as it was"
