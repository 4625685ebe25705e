"""Test tables of PostgreSQL with pgvector as indexes, on a real server."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray

from boundarymorph.errors import RetrieverFailed, RetrieverUnavailable, UnknownIndex
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.interfaces import Index
from boundarymorph.retrieval.stores.catalog import StoreCatalog
from boundarymorph.retrieval.stores.index import StoreIndex
from boundarymorph.settings import AttachedTable
from boundarymorph_stores.pgvector import PgvectorStore
from boundarymorph_stores.testing import (
    COUNT,
    DIMENSION,
    DOCUMENTS,
    FLAWED,
    QUERIES,
    VECTORS,
    Flaws,
    ReadOnly,
    StoreContract,
)
from tests.ports import free_port
from tests.retrieval.test_filters import METADATA, filters
from tests.stateful.profile import times
from tests.stores import postgres

opened: list[StoreCatalog] = []


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with postgres.folder() as folder, postgres.running(folder, port := free_port()):
        with psycopg.connect(postgres.url(port), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
            connection.execute("ALTER SYSTEM SET timezone TO 'America/New_York'")
            connection.execute("SELECT pg_reload_conf()")
        yield port


@pytest.fixture(autouse=True, scope="module")
def closed() -> Iterator[None]:
    yield
    while opened:
        opened.pop().close()


@pytest.fixture(scope="module")
def connection(port: int) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url(port), autocommit=True) as connection:
        yield connection


def fill(connection: psycopg.Connection[Any], table: str, type: str, rows: list[Document]) -> None:
    quoted = table.replace('"', '""')
    connection.execute(f"""CREATE TABLE "{quoted}" (id text PRIMARY KEY, text text, title text, metadata jsonb,
        embedding {type})""")
    with connection.cursor() as cursor:
        cursor.executemany(
            'INSERT INTO "' + quoted.replace("%", "%%") + '" VALUES (%s, %s, %s, %s, %s::vector)',
            [
                (each.id, each.text, each.title, orjson.dumps(each.metadata).decode(), literal(vector))
                for each, vector in zip(rows, VECTORS, strict=False)
            ],
        )


def literal(vector: NDArray[np.float32]) -> str:
    return "[" + ",".join(map(str, vector.tolist())) + "]"


def catalog_of(port: int, **tables: AttachedTable) -> StoreCatalog:
    opened.append(StoreCatalog(PgvectorStore(postgres.url(port), timeout=5), tables, schema_seconds=0))
    return opened[-1]


class TestHalves(ReadOnly, StoreContract):
    halves = True

    @pytest.fixture(scope="class")
    @classmethod
    def index(cls, port: int, connection: psycopg.Connection[Any]) -> Index:
        fill(connection, 'half "of" %s', f"halfvec({DIMENSION})", DOCUMENTS)
        catalog = catalog_of(port)  # it guesses the columns
        (name,) = [info.name for info in catalog.list() if "half" in info.name]
        return catalog.get(name)


class TestColumns(ReadOnly, StoreContract):
    """Metadata have their own columns, vectors any dimension, and PostgreSQL searches words."""

    @pytest.fixture(scope="class")
    @classmethod
    def index(cls, port: int, connection: psycopg.Connection[Any]) -> Index:
        fill(connection, "whole", "vector", DOCUMENTS)
        columns = [*{name: None for each in DOCUMENTS for name in each.metadata}]
        selected = ", ".join(f"metadata -> '{name}' AS \"{name}\"" for name in columns)
        connection.execute(f"""CREATE TABLE columns AS SELECT id, text, title, embedding, {selected},
            to_tsvector('simple', coalesce(title, '') || ' ' || text) AS found FROM whole""")
        connection.execute("INSERT INTO columns (id, text) VALUES ('without a vector', 'tram')")
        connection.execute("INSERT INTO columns (id, text, embedding) VALUES ('other', 'tram', '[1, 2]')")
        attached = AttachedTable(table="public.columns", vector="embedding", title="title", full_text="found")
        return catalog_of(port, mine=attached).get("mine")


@pytest.mark.strangers
def test_times_become_texts_in_utc(port: int, connection: psycopg.Connection[Any]) -> None:
    """The server's time zone is New York."""
    connection.execute("""CREATE TABLE days (id text, text text, embedding vector(2), at timestamptz, day date,
        several timestamp[])""")
    connection.execute("""INSERT INTO days VALUES ('a', 'tram', '[1, 0.5]', '-infinity', '2025-03-04', '{}'),
        ('b', 'tram', '[1, 0.5]', '2025-03-04T19:00:00.25-05:00', '2025-03-05', '{2025-03-05 12:00}')""")
    index = catalog_of(port, mine=AttachedTable(table="days", vector="embedding")).get("mine")
    assert index.documents(["b"])["b"].metadata == {
        "at": "2025-03-05T00:00:00.25+00:00",
        "day": "2025-03-05",
        "several": ["2025-03-05T12:00:00"],
    }
    for filter in ({"at": {"gte": "2025-03-05T00:00:00"}}, {"day": "2025-03-05"}, {"several": {"lt": "2025-04"}}):
        assert list(index.retrieve(Search("", 9, [1.0, 0.0], filter=filter)).pool.ids) == ["b"], filter


class TestFlaws(Flaws):
    @pytest.fixture
    def flawed(self, port: int, connection: psycopg.Connection[Any]) -> StoreIndex:
        connection.execute("DROP TABLE IF EXISTS flaws")
        connection.execute("CREATE TABLE flaws (id text, text text, embedding vector(2))")
        for id, text, vector in FLAWED:
            connection.execute("INSERT INTO flaws VALUES (%s, %s, %s::vector)", (id, text, str(vector)))
        return catalog_of(port, mine=AttachedTable(table="flaws", vector="embedding")).get("mine")


@settings(max_examples=times(25, 500), deadline=None, suppress_health_check=list(HealthCheck))
@given(filter=filters)
def test_pgvector_filters_match_like_python_filters(
    port: int, connection: psycopg.Connection[Any], filter: dict[str, Any]
) -> None:
    if connection.execute("SELECT to_regclass('drawn')").fetchone() == (None,):
        rows = [Document(str(n), "", metadata=row) for n, row in enumerate([*METADATA.values()][:COUNT])]
        fill(connection, "drawn", f"vector({DIMENSION})", rows)
    catalog = catalog_of(port, drawn=AttachedTable(table="drawn", vector="embedding", metadata=("metadata",)))
    index = catalog.get("drawn")
    found = set(index.retrieve(Search("", 1_000, np.ones(DIMENSION), filter=filter)).pool.ids)
    rows_there = index.documents([str(n) for n in range(COUNT)])
    assert found == {id for id, document in rows_there.items() if Filter(filter).matches(document.metadata)}
    catalog.close()


def test_large_table_is_searched_by_its_vector_index(port: int, connection: psycopg.Connection[Any]) -> None:
    fill(connection, "large", f"vector({DIMENSION})", DOCUMENTS)
    connection.execute("CREATE INDEX ON large USING hnsw (embedding vector_cosine_ops)")
    connection.execute("ANALYZE large")
    exact, approximate = (
        catalog_of(port, a=AttachedTable(table="large", vector="embedding", metadata=("metadata",), search=search)).get(
            "a"
        )
        for search in ({}, {"exact_up_to": 10, "hnsw.ef_search": 40})
    )
    search = Search("tram", 100, QUERIES[0])
    expected, found = exact.retrieve(search), approximate.retrieve(search)
    assert (list(expected.warnings), [each.slug for each in found.warnings]) == ([], ["approximate-search"])
    assert len(found.pool) == 100  # more than ef_search: the scan went on
    assert len(set(found.pool.ids) & set(expected.pool.ids)) >= 95
    filtered = approximate.retrieve(Search("tram", 100, QUERIES[0], filter={"subject": "tram"}))
    assert (len(filtered.pool), list(filtered.warnings)) == (COUNT // 5, [])


@pytest.mark.servers
def test_mistakes_in_a_table_description_are_named(port: int, connection: psycopg.Connection[Any]) -> None:
    fill(connection, "flawed", f"vector({DIMENSION})", DOCUMENTS[:5])
    attached = AttachedTable(table="flawed", vector="embedding", title="title", metadata=("metadata",))
    catalog = catalog_of(port, mine=attached)
    connection.execute("ALTER TABLE flawed RENAME COLUMN text TO body")
    with pytest.raises(RetrieverFailed, match="no column 'text'; its columns are id, body"):
        catalog.get("mine")
    with pytest.raises(RetrieverFailed, match="'id' of 'flawed' in pgvector is text"):
        catalog_of(port, mine=attached.model_copy(update={"vector": "id", "text": "body"})).get("mine")
    connection.execute("CREATE ROLE reader LOGIN")
    store = PgvectorStore(f"postgresql://reader@127.0.0.1:{port}/postgres")
    with pytest.raises(RetrieverFailed, match="permission denied"):  # this is no outage
        StoreCatalog(store, {"a": attached.model_copy(update={"text": "body"})}).get("a").count()
    store.close()
    connection.execute("CREATE TABLE twice AS SELECT * FROM flawed UNION ALL SELECT * FROM flawed")
    twice = catalog_of(port, mine=attached.model_copy(update={"table": "twice", "text": "body"}))
    assert "10 rows share 5 ids" in twice.get("mine").retrieve(Search("", 5, QUERIES[0])).warnings[0].message
    index = twice.get("mine")
    connection.execute("DROP TABLE twice")
    for call in (lambda: index.retrieve(Search("", 5, QUERIES[0])), lambda: twice.get("mine")):
        with pytest.raises(UnknownIndex):
            call()


@pytest.mark.parametrize(
    ("type", "known", "unknown"),
    [("int", "-3", ["x", "0-3", "99999999999", "-03"]), ("uuid", "8d2fb0a4-9f0b-4a5e-8b2a-000000000001", ["x", "8D2"])],
)
def test_document_ids_may_be_numbers_or_uuids(
    port: int, connection: psycopg.Connection[Any], type: str, known: str, unknown: Any
) -> None:
    connection.execute(f"CREATE TABLE ids_{type} (id {type}, content text, v vector(2))")
    connection.execute(f"INSERT INTO ids_{type} VALUES ('{known}', 'tram', '[1, 0]')")
    index = catalog_of(port).get(f"ids_{type}")
    assert index.retrieve(Search("tram", 3, np.ones(2))).pool.ids == [known]
    assert index.documents([*unknown, known]) == {known: Document(known, "tram")}
    assert index.characters([known, *unknown]) == {known: 4}


def test_server_away_slow_or_restarted_raises_typed_errors() -> None:
    port = free_port()
    store = PgvectorStore(postgres.url(port), timeout=1)
    catalog = StoreCatalog(store, {"mine": AttachedTable(table="kept", vector="embedding", metadata=("metadata",))})
    with pytest.raises(RetrieverUnavailable, match="pgvector"):
        catalog.get("mine")
    search = Search("tram", 5, QUERIES[0])
    with postgres.folder() as folder:
        with postgres.running(folder, port), psycopg.connect(postgres.url(port), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
            fill(connection, "kept", f"vector({DIMENSION})", DOCUMENTS)
            before = catalog.get("mine").retrieve(search).pool
            with pytest.raises(RetrieverUnavailable, match="timeout"):
                store.read("SELECT pg_sleep(3)", ())
        index = catalog.get("mine")
        with pytest.raises(RetrieverUnavailable):
            index.retrieve(search)
        with postgres.running(folder, port):
            assert index.retrieve(search).pool.ids == before.ids
    store.close()
