"""Search tables of LanceDB, in folders on a disk or in object storage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, time, timedelta
from pathlib import Path
from typing import Any, Literal

import lancedb
import numpy as np
import orjson
import pyarrow as arrow
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError, RetrieverFailed, RetrieverUnavailable, UnknownIndex
from boundarymorph.retrieval.document import Document, canonical
from boundarymorph.retrieval.filters import NEVER, UNKNOWN, Bounds, Compare, Exists, Scalar, whole
from boundarymorph.retrieval.stores.table import EXACT, FoundRows, Payload, Store, Table, check_columns, is_integer
from boundarymorph.settings import AttachedTable, StoreSettings, secret

ABOUT = "boundarymorph.index"
SETTLED = 64  # writes after which the pieces of a table are joined
_DISTANCES = {"cosine": "cosine", "inner product": "dot", "l2": "l2"}
_MISSING = re.compile(r"not found|does not exist|no such", re.IGNORECASE)
OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_EXACT_NUMBER = 2**53  # integers up to this are exact as floats


class LanceStore(Store):
    """A `Store`: the tables of a database of LanceDB."""

    name = "LanceDB"

    def __init__(self, uri: str, *, timeout: float = 10.0, api_key: str | None = None) -> None:
        """Prepare a connection.

        Args:
            uri: A folder, or one in object storage such as s3://BUCKET/PATH.
            timeout: Seconds for a search.
            api_key: The key, if any.
        """
        self._uri, self._api_key = uri, api_key
        self.timeout = timedelta(seconds=timeout)
        self._database: Any = None

    @classmethod
    def connect(cls, chosen: StoreSettings) -> LanceStore:
        """Return the store at lancedb://PATH or lancedb://s3://BUCKET/PATH."""
        uri = chosen.url.get_secret_value().removeprefix("lancedb://")
        return cls(uri, timeout=chosen.timeout_seconds, api_key=secret(chosen.api_key))

    def names(self) -> Sequence[str]:
        with errors():
            found: list[str] = self._connected().list_tables().tables
            return found

    def columns(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        with errors():
            for name in self.names():
                schema = self._connected().open_table(name).schema
                yield name, {field.name: kind_of(field.type) for field in schema}

    def open(self, attached: AttachedTable) -> LanceTable:
        with errors():
            return LanceTable(self._connected().open_table(attached.table), attached, self.timeout)

    def create(self, table: str, dimension: int, kind: str, about: str, *, lexical: bool) -> None:
        columns: dict[str, arrow.DataType] = dict.fromkeys(("id", "text", "title", "metadata"), arrow.string())
        columns |= {"digest": arrow.binary(), "vector": arrow.list_(arrow.float16(), dimension)}
        with errors():
            self._connected().create_table(table, schema=arrow.schema(columns).with_metadata({ABOUT: about}))

    def drop(self, table: str) -> None:
        with errors():
            self._connected().drop_table(table)

    def close(self) -> None:
        self._database = None

    def _connected(self) -> Any:
        if "://" not in self._uri and not Path(self._uri).is_dir():
            raise RetrieverUnavailable(f"LanceDB: there is no folder {self._uri}; create it, or correct the URL")
        if self._database is None:
            self._database = lancedb.connect(self._uri, api_key=self._api_key, read_consistency_interval=timedelta(0))
        return self._database


class LanceTable(Table):
    """A `Table`, searched exactly or by an index of its vectors.

    The search is exact up to `search.exact_up_to` rows (EXACT), under filters, and without an index.
    """

    def __init__(self, table: Any, attached: AttachedTable, timeout: timedelta) -> None:
        self._table, self.attached, self._timeout = table, attached, timeout
        schema: arrow.Schema = table.schema
        self.about = (schema.metadata or {}).get(ABOUT.encode(), b"").decode()
        self._types = {field.name: field.type for field in schema}
        check_columns(attached, self._types, "LanceDB")
        self._numbers = arrow.types.is_integer(self._types[attached.id])
        vector = self._types[attached.vector]
        if not arrow.types.is_fixed_size_list(vector) or not arrow.types.is_floating(vector.value_type):
            raise RetrieverFailed(f"the column {attached.vector!r} of {attached.table!r} in LanceDB holds no vectors")
        self.dimension: int = vector.list_size
        kinds = {name: kind_of(type) for name, type in self._types.items()}
        self._payload = Payload(attached, "LanceDB", kinds)
        self._fields = [*self._payload.texts, *self._payload.columns(self._types)]
        indexed = {column: index.index_type for index in table.list_indices() for column in index.columns}
        self._indexed = attached.vector in indexed
        self.words = indexed.get(attached.text) == "FTS"
        self._search: dict[str, Any] = {"exact_up_to": EXACT, **attached.search}

    def count(self) -> int:
        with errors():
            return int(self._table.count_rows(f"{quoted(self.attached.vector)} IS NOT NULL"))

    def search(
        self, query: NDArray[np.float32], depth: int, where: Any, *, vectors: bool = True, documents: bool = False
    ) -> FoundRows:
        with errors():
            large = self._indexed and where is True and self._table.count_rows() > int(self._search["exact_up_to"])
            searching = self._table.search(query, vector_column_name=self.attached.vector)
            searching = searching.distance_type(_DISTANCES[self.attached.distance]).limit(depth)
            if large:
                for name in ("nprobes", "refine_factor", "ef"):
                    if name in self._search:
                        searching = getattr(searching, name)(self._search[name])
            else:
                searching = searching.bypass_vector_index()
            rows = self._read(searching, where, self._columns(vectors, documents), "_distance")
        return self._found(rows, vectors, documents)._replace(exact=not large)

    def best(self, query: str, depth: int, where: Any) -> Mapping[str, float]:
        """Rank as `Table.best` does, by the BM25 of LanceDB."""
        with errors():
            searching = self._table.search(query, query_type="fts", fts_columns=self.attached.text).limit(depth)
            rows = self._read(searching, where, [self.attached.id], "_score")
        scores = zip(self._ids(rows), rows["_score"].to_pylist(), strict=True)
        return {id: score for id, score in reversed(list(scores)) if id is not None}

    def rows(self, ids: Sequence[str], *, vectors: bool = False, documents: bool = False) -> FoundRows:
        return self._found(self._by_id(ids, self._columns(vectors, documents)), vectors, documents)

    def upsert(self, documents: Sequence[Document], vectors: NDArray[np.floating], digests: Sequence[bytes]) -> None:
        attached = self.attached
        columns = {
            attached.id: [each.id for each in documents],
            attached.vector: list(vectors.astype(self._types[attached.vector].value_type.to_pandas_dtype())),
            attached.text: [each.text for each in documents],
            attached.title: [each.title for each in documents],
            self._payload.whole: [canonical(each, dict(each.metadata)).decode() for each in documents],
            attached.digest: digests,
        }
        rows = arrow.table({name: arrow.array(of, self._types[name]) for name, of in columns.items() if name})
        with errors():
            merging = self._table.merge_insert(attached.id).when_matched_update_all().when_not_matched_insert_all()
            merging.execute(rows)
            if self._table.version % SETTLED == 0:
                with suppress(RuntimeError):  # another process does the same
                    self._table.optimize()

    def delete(self, ids: Sequence[str]) -> int:
        there = [id for id in self._ids(self._by_id(ids, [self.attached.id])) if id is not None]
        if there:
            with errors():
                self._table.delete(self._id_condition(there))
        return len(there)

    def digests(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        rows = self._by_id(ids, [self.attached.id, str(self.attached.digest)])
        known = zip(self._ids(rows), rows[self.attached.digest].to_pylist(), strict=True)
        return {id: digest for id, digest in known if id is not None and digest is not None}

    def join(self, by: Literal["and", "or"], parts: Sequence[str]) -> str:
        return "(" + f" {by} ".join(parts) + ")"

    def negate(self, part: str) -> str:
        return f"(NOT {part})"

    def leaf(self, condition: Exists | Compare) -> Bounds[str]:
        """Translate as `Language.leaf` does. A null counts as a missing field."""
        type = self._type(condition.path)
        if type is None or isinstance(type, str):
            return NEVER if type is None else UNKNOWN
        path = self._payload.path(condition.path) or ()
        if any("`" in name for name in path):
            return UNKNOWN
        column = ".".join(map(quoted, path))
        there = f"{column} IS NOT NULL"
        if isinstance(condition, Exists):
            return Bounds.from_expression(f"({there})")
        met = compared(column, type, condition)
        return (
            Bounds(met, met is not True and met)
            if isinstance(met, bool)
            else Bounds.from_expression(f"({there} AND {met})")
        )

    def _type(self, path: tuple[str, ...]) -> arrow.DataType | Literal["within text"] | None:
        """Return the type of a field of the metadata, or None if no field has that name."""
        within = self._payload.path(path)
        if within is None or within[0] not in self._types:
            return None
        type = self._types[within[0]]
        for name in within[1:]:
            if not arrow.types.is_struct(type):
                return None if self._payload.whole is None else "within text"
            if type.get_field_index(name) < 0:
                return None
            type = type.field(name).type
        return type

    def _read(self, searching: Any, where: Any, columns: list[str], score: str | None = None) -> arrow.Table:
        if where is not True:
            searching = searching.where(where, prefilter=True)
        return searching.select([*columns, *([score] if score else [])]).to_arrow(timeout=self._timeout)

    def _by_id(self, ids: Sequence[str], columns: list[str]) -> arrow.Table:
        with errors():  # without a limit, because rows may share an id
            return self._read(self._table.search(), self._id_condition(ids), columns)

    def _id_condition(self, ids: Sequence[str]) -> str:
        """Return a condition for rows with these ids."""
        known = [id for id in ids if is_integer(id) and abs(int(id)) < 2**63] if self._numbers else map(literal, ids)
        listed = ", ".join(known)
        return f"{quoted(self.attached.id)} IN ({listed})" if listed else "false"

    def _columns(self, vectors: bool, documents: bool) -> list[str]:
        vector = [self.attached.vector] if vectors else []
        return [self.attached.id, *vector, *(self._fields if documents else [])]

    def _ids(self, rows: arrow.Table) -> list[str | None]:
        return [None if id is None else str(id) for id in rows[self.attached.id].to_pylist()]

    def _matrix(self, rows: arrow.Table) -> NDArray[np.floating]:
        """Return the (n, d) vectors, without a copy if they are in one piece."""
        column = rows[self.attached.vector].combine_chunks()
        if column.null_count:
            raise RetrieverFailed(f"some documents in {self.attached.table!r} have no vector")
        matrix: NDArray[np.floating] = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, self.dimension)
        return matrix

    def _found(self, rows: arrow.Table, vectors: bool, documents: bool) -> FoundRows:
        """Return the contents of rows of `_columns`; of documents with one id, the first."""
        ids, read = self._ids(rows), {}
        if documents:
            given = rows.select(self._fields)
            try:
                fields = _with_times(given, _in_microseconds).to_pylist()
            except (OverflowError, ValueError):  # Python's years are 1 to 9999
                fields = _with_times(given, _in_text).to_pylist()
            read = {
                id: self._document(id, row)
                for id, row in reversed(list(zip(ids, map(plain, fields), strict=True)))
                if id is not None
            }
        return FoundRows(ids, self._matrix(rows) if vectors else None, read)

    def _document(self, id: str, row: Mapping[str, Any]) -> Document:
        whole = self._payload.whole
        if whole is not None and arrow.types.is_string(self._types[whole]):
            row = {**row, whole: _decoded(row.get(whole))}
        return self._payload.document(id, row)


@contextmanager
def errors() -> Iterator[None]:
    """Raise our own errors instead of LanceDB's, which are few and general."""
    try:
        yield
    except BoundaryMorphError:
        raise
    except (FileNotFoundError, ValueError, RuntimeError, OSError) as error:
        said = str(error).splitlines()[0][:500]
        if "table" in said.lower() and _MISSING.search(said):
            raise UnknownIndex(f"the table is gone: {said}") from error
        kind = RetrieverFailed if isinstance(error, ValueError) else RetrieverUnavailable
        raise kind(f"LanceDB cannot do that: {said}") from error


def _decoded(text: str | None) -> Any:
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(text or "")
    return None


def kind_of(type: arrow.DataType) -> str:
    """Return the kind of a column, as for `guess_columns`."""
    if arrow.types.is_fixed_size_list(type):
        return "vector"
    return "object" if arrow.types.is_struct(type) else "json" if arrow.types.is_string(type) else ""


def compared(column: str, type: arrow.DataType, condition: Compare) -> str | bool:
    """Return an expression for a column that is not null.

    It is True if no expression can say it, and False if no row can match.
    """
    if arrow.types.is_large_list(type) or arrow.types.is_fixed_size_list(type):
        return True
    inner = type.value_type if arrow.types.is_list(type) else type
    match condition.type:
        case "text":
            fits = arrow.types.is_string(inner) or arrow.types.is_large_string(inner)
        case "number":
            fits = arrow.types.is_integer(inner) or arrow.types.is_floating(inner)
        case "true" | "false":
            fits = arrow.types.is_boolean(inner)
        case _:
            return False
    known = (arrow.types.is_primitive(inner) and not arrow.types.is_temporal(inner)) or arrow.types.is_string(inner)
    if not fits:
        return arrow.types.is_struct(inner) is False and not known
    if arrow.types.is_floating(inner):
        column = f"CAST({column} AS {'DOUBLE[]' if inner is not type else 'DOUBLE'})"
    values: list[Any] = list(condition.values)
    comparison = OPERATORS.get(condition.comparison, "")
    if arrow.types.is_integer(inner):
        named, values = whole(condition.comparison, values)
        comparison = OPERATORS.get(named, "")
        if any(abs(value) >= 2 ** (inner.bit_width - 1) for value in values):
            return True
    elif any(isinstance(value, int | float) and abs(value) > _EXACT_NUMBER for value in values):
        return True
    literals = [literal(value) for value in values]
    if not literals:
        return False
    if inner is not type:
        return True if comparison else f"array_has_any({column}, [{', '.join(literals)}])"
    return f"{column} {comparison} {literals[0]}" if comparison else f"{column} IN ({', '.join(literals)})"


def literal(value: Scalar) -> str:
    """Return a value in SQL."""
    match value:
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bool():
            return "true" if value else "false"
        case _:
            return repr(value)


def quoted(name: str) -> str:
    """Return a name in SQL; it must not contain a backtick."""
    return f"`{name}`"


def _with_times(rows: arrow.Table, kind: Callable[[arrow.DataType], arrow.DataType]) -> arrow.Table:
    """Return rows whose times, at any depth, are of another type."""

    def changed(type: arrow.DataType) -> arrow.DataType:
        if arrow.types.is_struct(type):
            return arrow.struct([field.with_type(changed(field.type)) for field in type])
        if arrow.types.is_list(type) or arrow.types.is_large_list(type) or arrow.types.is_fixed_size_list(type):
            return arrow.list_(type.value_field.with_type(changed(type.value_type)))
        return kind(type) if arrow.types.is_temporal(type) else type

    schema = arrow.schema([field.with_type(changed(field.type)) for field in rows.schema])
    return rows.cast(schema, safe=False)


def _in_microseconds(type: arrow.DataType) -> arrow.DataType:
    """Return a type of times without nanoseconds, which Python's do not have."""
    if getattr(type, "unit", None) != "ns":
        return type
    if arrow.types.is_timestamp(type):
        return arrow.timestamp("us", type.tz)
    return arrow.time64("us") if arrow.types.is_time(type) else arrow.duration("us")


def _in_text(type: arrow.DataType) -> arrow.DataType:
    return arrow.int64() if arrow.types.is_duration(type) else arrow.string()


def plain(value: Any) -> Any:
    """Return a value as JSON, with times in ISO 8601.

    Nulls that stand for missing fields are left out.
    """
    match value:
        case dict():
            return {name: plain(each) for name, each in value.items() if each is not None}
        case list():
            return [plain(each) for each in value]
        case date() | time():
            return value.isoformat()
        case str() | int() | float() | None:
            return value
        case _:
            return str(value)
