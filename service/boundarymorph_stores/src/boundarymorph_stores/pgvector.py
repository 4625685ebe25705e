"""Search tables of PostgreSQL with the extension pgvector."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import orjson
import psycopg
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput, RetrieverFailed, RetrieverUnavailable, UnknownIndex
from boundarymorph.retrieval.document import Document, canonical
from boundarymorph.retrieval.filters import NEVER, Bounds, Compare, Exists
from boundarymorph.retrieval.stores.table import (
    EXACT,
    FoundRows,
    Payload,
    Store,
    Table,
    check_columns,
    is_integer,
    is_uuid,
)
from boundarymorph.settings import AttachedTable, StoreSettings

SCAN = {"hnsw.iterative_scan": "relaxed_order", "hnsw.ef_search": 1_000, "hnsw.max_scan_tuples": 200_000}
SCAN |= {"hnsw.scan_mem_multiplier": 16}
LONGEST_NAME = 63  # most letters of a table's name
MOST_INDEXED = 4_000  # dimensions of an HNSW index of halfvec
NUL = b"\\u0000"  # a NUL in JSON
HEADER = 4  # bytes of a vector before its numbers: its dimension, and two unused ones
_DISTANCES = {"cosine": "<=>", "inner product": "<#>", "l2": "<->"}
_NUMBERS = {"vector": ">f4", "halfvec": ">f2"}
_INTEGERS = {"int2": 15, "int4": 31, "int8": 63}
_ORDER = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_COLUMNS = """
    SELECT attname, typname, atttypmod FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
_TABLES = """
    SELECT DISTINCT relname, attrelid::regclass::text FROM pg_attribute
    JOIN pg_type ON pg_type.oid = atttypid JOIN pg_class ON pg_class.oid = attrelid
    WHERE typname IN ('vector', 'halfvec') AND relkind IN ('r', 'v', 'm', 'p') AND attnum > 0 AND NOT attisdropped
    AND pg_table_is_visible(attrelid)"""
_INDEXED = """
    SELECT reltuples, EXISTS (
        SELECT 1 FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
        JOIN pg_attribute ON pg_attribute.attrelid = indexrelid
        WHERE indrelid = to_regclass(%(table)s) AND amname = 'hnsw' AND attname = %(vector)s),
        obj_description(oid, 'pg_class')
    FROM pg_class WHERE oid = to_regclass(%(table)s)"""

Answer = TypeVar("Answer")


class Where(NamedTuple):
    """A condition that is true or false, never null, and the values of its `%s`."""

    text: str
    values: tuple[Any, ...] = ()


class PgvectorStore(Store):
    """A `Store`: the tables and views of a database."""

    name = "pgvector"
    kinds = ("flat", "hnsw")
    dimensions = range(1, 16_001)  # the limit of halfvec

    def __init__(self, url: str, *, timeout: float = 10.0, connections: int = 16) -> None:
        """Prepare connections; it does not connect yet.

        Args:
            url: The address as libpq takes it.
            timeout: Seconds for a connection or a statement.
            connections: Most connections.
        """
        self._url, self._timeout = url, timeout
        self._idle: list[psycopg.Connection[Any]] = []
        self._places = threading.BoundedSemaphore(connections)

    @classmethod
    def connect(cls, chosen: StoreSettings) -> PgvectorStore:
        """Return the store at pgvector://USER:PASSWORD@HOST:PORT/DATABASE. Does not connect yet."""
        url = chosen.url.get_secret_value().replace("pgvector://", "postgresql://", 1)
        return cls(url, timeout=chosen.timeout_seconds, connections=chosen.connections)

    def names(self) -> Sequence[str]:
        return [name for name, _ in self.read(_TABLES, ())]

    def columns(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        for name, table in self.read(_TABLES, ()):
            yield name, {column: _kind(type) for column, type, _ in self.read(_COLUMNS, (table,))}

    def reference(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def open(self, attached: AttachedTable) -> PgvectorTable:
        columns = {name: (type, modifier) for name, type, modifier in self.read(_COLUMNS, (attached.table,))}
        if not columns:
            raise UnknownIndex(f"there is no table {attached.table!r}")
        check_columns(attached, columns, "pgvector")
        if columns[attached.vector][0] not in _NUMBERS:
            raise RetrieverFailed(
                f"the column {attached.vector!r} of {attached.table!r} in pgvector is {columns[attached.vector][0]}; "
                "vector and halfvec can be searched"
            )
        return PgvectorTable(self, attached, columns)

    def create(self, table: str, dimension: int, kind: str, about: str, *, lexical: bool) -> None:
        if len(table) > LONGEST_NAME:
            raise InvalidInput(f"PostgreSQL has names of up to {LONGEST_NAME} letters, and {table!r} is longer")
        if kind == "hnsw" and dimension > MOST_INDEXED:
            raise InvalidInput(
                f"an HNSW index of pgvector has up to {MOST_INDEXED:,} dimensions, not {dimension:,}; use 'flat'"
            )
        name = _quoted(table)
        self.run(
            lambda cursor: [
                cursor.execute(statement)
                for statement in (
                    f"CREATE TABLE {name} (id text PRIMARY KEY, text text, title text, metadata jsonb, digest bytea, "
                    f"vector halfvec({dimension}) NOT NULL)",
                    f"COMMENT ON TABLE {name} IS {psycopg.sql.Literal(about).as_string()}",
                    *([f"CREATE INDEX ON {name} USING hnsw (vector halfvec_cosine_ops)"] if kind == "hnsw" else []),
                )
            ]
        )

    def drop(self, table: str) -> None:
        self.run(lambda cursor: cursor.execute(f"DROP TABLE {_quoted(table)}"))

    def read(
        self, query: str, values: Sequence[Any] | Mapping[str, Any], scan: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query. `scan` has parameters of the server for it."""

        def rows(cursor: psycopg.Cursor[Any]) -> list[tuple[Any, ...]]:
            for name, value in (scan or {}).items():
                cursor.execute("SELECT set_config(%s, %s, true)", (name, str(value)))
            return cursor.execute(query, values).fetchall()

        return self.run(rows)

    def run(self, statements: Callable[[psycopg.Cursor[Any]], Answer]) -> Answer:
        """Run statements in a transaction.

        If the server has ended an idle connection, they are run again.
        """

        def run(connection: psycopg.Connection[Any]) -> Answer:
            with self._cut(connection), connection.transaction(), connection.cursor(binary=True) as cursor:
                return statements(cursor)

        with self._errors(), self._place():
            while self._idle:
                began = time.monotonic()
                try:
                    return self._kept(self._idle.pop(), run)
                except IndexError:
                    break  # another thread took it
                except psycopg.OperationalError as error:
                    ended = error.sqlstate is None or error.sqlstate.startswith("57P")
                    if not ended or time.monotonic() - began > self._timeout / 2:
                        raise  # not the error of an idle connection after a restart of the server
            return self._kept(self._connected(), run)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _connected(self) -> psycopg.Connection[Any]:
        milliseconds = max(1, int(1e3 * self._timeout))
        return psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=max(2, int(self._timeout)),
            options=f"-c statement_timeout={milliseconds} -c TimeZone=UTC",
            application_name="boundarymorph",
        )

    def _kept(self, connection: psycopg.Connection[Any], run: Callable[[psycopg.Connection[Any]], Answer]) -> Answer:
        """Run a function on a connection, and keep the connection unless it broke."""
        try:
            return run(connection)
        finally:
            if connection.closed or connection.broken:
                connection.close()
            else:
                self._idle.append(connection)

    @contextmanager
    def _cut(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Cut the connection if the server does not end a statement in time.

        The answer has some time to arrive.
        """
        with socket.socket(fileno=os.dup(connection.fileno())) as door:
            timer = threading.Timer(2 * self._timeout, door.shutdown, [socket.SHUT_RDWR])
            timer.start()
            try:
                yield
            finally:
                timer.cancel()
                timer.join()

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(timeout=self._timeout):
            raise RetrieverUnavailable("pgvector: all connections are busy; raise stores.NAME.connections")
        try:
            yield
        finally:
            self._places.release()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.UndefinedTable as error:
            raise UnknownIndex(f"the table is gone: {error}") from error
        except (psycopg.errors.InvalidPassword, psycopg.errors.InvalidAuthorizationSpecification) as error:
            raise RetrieverFailed(f"pgvector rejects the user or password of its URL: {error}") from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise RetrieverUnavailable(f"pgvector does not work now: {str(error).strip()}") from error
        except psycopg.Error as error:
            raise RetrieverFailed(f"pgvector cannot do that: {str(error).strip()}") from error


class PgvectorTable(Table):
    """A `Table`, searched exactly or by an iterative scan of its HNSW index.

    The search is exact up to `search.exact_up_to` rows (EXACT), under filters, and without such an index.
    """

    at_a_time = 10_000

    def __init__(self, store: PgvectorStore, attached: AttachedTable, columns: Mapping[str, tuple[str, int]]) -> None:
        self._store, self.attached = store, attached
        self.words = attached.full_text is not None
        ((named,),) = store.read("SELECT to_regclass(%s)::text", (attached.table,))
        self._table = named.replace("%", "%%")
        self._id, self._vector = _quoted(attached.id), _quoted(attached.vector)
        self._id_type = columns[attached.id][0]
        self._type, modifier = columns[attached.vector]
        self._there = Where(f"{self._vector} IS NOT NULL")
        self.dimension = modifier if modifier > 0 else self._first_dimension()
        if modifier <= 0:
            self._there = Where(f"{self._vector} IS NOT NULL AND vector_dims({self._vector}) = %s", (self.dimension,))
        kinds = {name: _kind(type) for name, (type, _) in columns.items()}
        self._payload = Payload(attached, store.name, kinds)
        self._metadata = self._payload.columns(columns)
        self._types = {name: type for name, (type, _) in columns.items()}
        self._of_document = [*map(_quoted, self._payload.texts), *map(self._as_json, self._metadata)]
        self._search = {"exact_up_to": EXACT, **attached.search}
        names = {"table": attached.table, "vector": attached.vector}
        ((self._estimate, self._indexed, about),) = store.read(_INDEXED, names) or [(0, False, None)]
        self.about = about or ""

    def count(self) -> int:
        ((count,),) = self._store.read(
            f"SELECT count(*) FROM {self._table} WHERE {self._there.text}", self._there.values
        )
        return int(count)

    def search(
        self, query: NDArray[np.float32], depth: int, where: Any, *, vectors: bool = True, documents: bool = False
    ) -> FoundRows:
        approximate = where is True and self._indexed and self._estimate > int(self._search["exact_up_to"])
        literal = "[" + ",".join(map(repr, query.tolist())) + "]"
        distance = f"{self._vector} {_DISTANCES[self.attached.distance]} %s::{self._type}"
        order = distance if approximate else f"({distance}) + 0"  # no index can sort by this
        chosen = Where("true") if where is True else where
        rows = self._store.read(
            f"SELECT {self._columns(vectors, documents)} FROM {self._table} WHERE {self._there.text} AND {chosen.text} "
            f"ORDER BY {order} LIMIT %s",
            (*self._there.values, *chosen.values, literal, depth),
            SCAN | {name: value for name, value in self._search.items() if "." in name} if approximate else None,
        )
        return self._found(rows, vectors, documents)._replace(exact=not approximate)

    def best(self, query: str, depth: int, where: Any) -> Mapping[str, float]:
        """Rank as `Table.best` does, by ts_rank_cd, documents with any of the words."""
        column, chosen = _quoted(str(self.attached.full_text)), Where("true") if where is True else where
        rows = self._store.read(
            f"SELECT {self._id}::text, ts_rank_cd({column}, words) AS rank FROM {self._table}, "
            "(SELECT replace(plainto_tsquery(%s)::text, '&', '|')::tsquery AS words) AS asked "
            f"WHERE {column} @@ words AND {self._there.text} AND {chosen.text} ORDER BY rank DESC, 1 LIMIT %s",
            (query, *self._there.values, *chosen.values, depth),
        )
        return {id: float(rank) for id, rank in reversed(rows) if id is not None}

    def rows(self, ids: Sequence[str], *, vectors: bool = False, documents: bool = False) -> FoundRows:
        return self._found(self._rows(ids, self._columns(vectors, documents)), vectors, documents)

    def characters(self, ids: Sequence[str]) -> Mapping[str, int]:
        lengths = " + ".join(f"coalesce(length({_quoted(name)}), 0)" for name in self._payload.texts)
        return {id: int(length) for id, length in self._rows(ids, f"{self._id}::text, {lengths}")}

    def check(self, document: Document) -> None:
        """Check as `Table.check` does: PostgreSQL cannot store a NUL."""
        metadata = canonical(document, dict(document.metadata))
        if "\0" in document.id + document.text + (document.title or "") or NUL in metadata.replace(rb"\\", b""):
            raise InvalidInput(f"the document {document.id!r} has a NUL character, which PostgreSQL cannot keep")

    def upsert(self, documents: Sequence[Document], vectors: NDArray[np.floating], digests: Sequence[bytes]) -> None:
        attached = self.attached
        rows = [
            {
                attached.id: document.id,
                attached.vector: str(vector.tolist()),
                attached.text: document.text,
                attached.title: document.title,
                self._payload.whole: canonical(document, dict(document.metadata)).decode(),
                attached.digest: digest,
            }
            for document, vector, digest in zip(documents, vectors, digests, strict=True)
        ]
        names = [name for name in rows[0] if name is not None]
        places = [f"%s::{self._types[name]}" for name in names]
        changes = [f"{_quoted(name)} = excluded.{_quoted(name)}" for name in names[1:]]
        statement = (
            f"INSERT INTO {self._table} ({', '.join(map(_quoted, names))}) VALUES ({', '.join(places)}) "
            f"ON CONFLICT ({self._id}) DO UPDATE SET {', '.join(changes)}"
        )
        values = [[row[name] for name in names] for row in sorted(rows, key=lambda row: str(row[attached.id]))]
        self._store.run(lambda cursor: cursor.executemany(statement, values))

    def delete(self, ids: Sequence[str]) -> int:
        among, known = self._id_condition(ids)
        statement = f"DELETE FROM {self._table} WHERE {among}"
        return self._store.run(lambda cursor: cursor.execute(statement, (known,)).rowcount)

    def digests(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        rows = self._rows(ids, f"{self._id}::text, {_quoted(str(self.attached.digest))}")
        return {id: digest for id, digest in rows if digest is not None}

    def join(self, by: Literal["and", "or"], parts: Sequence[Where]) -> Where:
        return Where(
            f"({f' {by} '.join(each.text for each in parts)})", tuple(v for each in parts for v in each.values)
        )

    def negate(self, part: Where) -> Where:
        return Where(f"(NOT {part.text})", part.values)

    def leaf(self, condition: Exists | Compare) -> Bounds[Where]:
        path = self._payload.path(condition.path)
        if path is None or path[0] not in self._types:
            return NEVER
        value = Where(f"({self._as_json(path[0])}{' -> %s' * (len(path) - 1)})", path[1:])
        if isinstance(condition, Exists):
            return Bounds.from_expression(Where(f"({value.text} IS NOT NULL)", value.values))
        if condition.comparison == "in":
            wanted = [orjson.dumps(each).decode() for each in condition.values]
            return Bounds.from_expression(
                Where(f"coalesce({value.text} @> ANY(%s::jsonb[]), false)", (*value.values, wanted))
            )
        kind, (operand,) = "string" if condition.type == "text" else "number", condition.values
        met = f"(%s #>> '{{}}') COLLATE \"C\" {_ORDER[condition.comparison]} %s"
        if kind == "number":
            met = f"(%s #>> '{{}}')::numeric {_ORDER[condition.comparison]} %s::numeric"
        given = operand if kind == "string" else repr(operand)
        element = met.replace("%s", "element", 1)
        return Bounds.from_expression(
            Where(
                f"(CASE jsonb_typeof({value.text}) WHEN '{kind}' THEN {met.replace('%s', value.text, 1)} "
                f"WHEN 'array' THEN EXISTS (SELECT 1 FROM jsonb_array_elements({value.text}) AS element "
                f"WHERE CASE jsonb_typeof(element) WHEN '{kind}' THEN {element} ELSE false END) ELSE false END)",
                (*value.values, *value.values, given, *value.values, given),
            )
        )

    def _first_dimension(self) -> int:
        rows = self._store.read(
            f"SELECT vector_dims({self._vector}) FROM {self._table} WHERE {self._vector} IS NOT NULL LIMIT 1", ()
        )
        return int(rows[0][0]) if rows else 1

    def _columns(self, vectors: bool, documents: bool) -> str:
        """Return expressions for the id and vector of a row, and the parts of its document.

        The parts are its texts and metadata.
        """
        columns = [f"{self._id}::text", self._vector if vectors else "NULL"]
        return ", ".join([*columns, *(f"{each}::text" for each in self._of_document if documents)])

    def _as_json(self, name: str) -> str:
        """Return an expression for a column as JSON."""
        return f"{_quoted(name)}::jsonb" if _kind(self._types[name]) == "json" else f"to_jsonb({_quoted(name)})"

    def _found(self, rows: Sequence[Sequence[Any]], vectors: bool, documents: bool) -> FoundRows:
        """Return the contents of rows of `_columns`; of documents with one id, the first."""
        named = [row for row in reversed(rows) if documents and row[0] is not None]
        read = {row[0]: self._document(row[0], row[2:]) for row in named}
        return FoundRows([row[0] for row in rows], self._matrix([row[1] for row in rows]) if vectors else None, read)

    def _document(self, id: str, row: Sequence[Any]) -> Document:
        given = zip(self._metadata, row[len(self._payload.texts) :], strict=True)
        read = {name: orjson.loads(value) for name, value in given if value is not None}
        return self._payload.document(id, read | dict(zip(self._payload.texts, row, strict=False)))

    def _rows(self, ids: Sequence[str], columns: str) -> list[tuple[Any, ...]]:
        """Return these columns of the rows with these ids."""
        among, known = self._id_condition(ids)
        return self._store.read(
            f"SELECT {columns} FROM {self._table} WHERE {among} AND {self._there.text}", (known, *self._there.values)
        )

    def _id_condition(self, ids: Sequence[str]) -> tuple[str, list[Any]]:
        """Return a condition for rows with these ids, and the value of its `%s`."""
        match self._id_type:
            case "int2" | "int4" | "int8":
                most = 2 ** _INTEGERS[self._id_type]
                known: list[Any] = [id for id in ids if is_integer(id) and -most <= int(id) < most]
                among = f"{self._id} = ANY(%s::{self._id_type}[])"
            case "uuid":
                known, among = [id for id in ids if is_uuid(id)], f"{self._id} = ANY(%s::uuid[])"
            case "text" | "varchar":
                known, among = [id for id in ids if "\0" not in id], f"{self._id} = ANY(%s)"
            case _:
                known, among = [id for id in ids if "\0" not in id], f"{self._id}::text = ANY(%s)"
        return among, known

    def _matrix(self, rows: Sequence[bytes]) -> NDArray[np.floating]:
        """Return the (n, d) vectors that the server sent as bytes."""
        numbers = np.dtype(_NUMBERS[self._type])
        whole = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), HEADER + numbers.itemsize * self.dimension)
        matrix = np.ascontiguousarray(whole[:, HEADER:]).view(numbers)
        return matrix.astype(numbers.newbyteorder("="))


def _kind(type: str) -> str:
    return {"vector": "vector", "halfvec": "vector", "json": "json", "jsonb": "json"}.get(type, "")


def _quoted(name: str) -> str:
    """Quote an identifier, for a statement with parameters."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'
