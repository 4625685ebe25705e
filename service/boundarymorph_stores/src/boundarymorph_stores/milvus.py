"""Search collections of Milvus, and filter them by its expressions.

The expressions differ in types, lists, and missing fields, and between releases (`filters.bounds`). Strings are
compared whole, so a string with a NUL is found only if it is equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qs

import numpy as np
import orjson
from numpy.typing import NDArray
from pymilvus import CollectionSchema, DataType, Function, FunctionType, MilvusClient

from boundarymorph.errors import BoundaryMorphError, InvalidConfiguration, LimitExceeded, RetrieverFailed
from boundarymorph.retrieval.document import Document, canonical
from boundarymorph.retrieval.filters import NEVER, UNKNOWN, Bounds, Compare, Exists, Scalar, whole
from boundarymorph.retrieval.stores.table import FoundRows, Payload, Store, Table, check_columns, is_integer
from boundarymorph.settings import AttachedTable, StoreSettings, secret
from boundarymorph_stores.milvus_connection import CollectionNotLoaded, MilvusConnection

PROPERTY = "boundarymorph.index"
SEARCH_LIMIT = 16_384  # documents per answer of Milvus; we do not use that milvus-lite allows more
IDS_AT_A_TIME = 10_000
TEXTS_AT_A_TIME = 256
ANSWER_BYTES = 64 * 2**20  # bytes of vectors or texts per answer; the server's default limit is 100 MB
REQUEST_BYTES = 32 * 2**20  # bytes of rows per request; the server's limit is 64 MB
ROW_BYTES = 2**18  # bytes of the largest row without its vector
MAX_ID_BYTES = 2_048
MAX_BYTES = 65_535  # most bytes of a string in Milvus, and of JSON
WIDEST = 32_768  # largest value of `ef`
DYNAMIC = "$meta"  # holds the fields of a document that are not in the schema
WORDS, CONTENT = "words", "content"  # the field with Milvus's BM25, and that of the words
_MARGIN = 20  # nominate 1/_MARGIN more, since half precision rounds the query
_STRONG = "Strong"
_CONSISTENCY = ("strong", "session", "bounded", "eventually")
_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_INTEGERS = {"INT8": 7, "INT16": 15, "INT32": 31, "INT64": 63}
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_ .-]*")  # keys that all releases accept
_EXACT = 2**53  # integers up to this are exact as floats
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "flat": {"index_type": "FLAT"},
    "hnsw": {"index_type": "HNSW", "params": {"M": 32, "efConstruction": 360}},
}


class MilvusStore(Store):
    """A `Store`: the collections of a database of Milvus."""

    name = "Milvus"
    kinds = tuple(_KINDS)
    dimensions = range(2, 32_769)

    def __init__(self, connection: MilvusConnection, consistency: str = "strong") -> None:
        """Use a connection.

        `consistency` is the level for searches, and for reading their results.
        """
        self._connection, self._consistency = connection, consistency

    @classmethod
    def connect(cls, chosen: StoreSettings) -> MilvusStore:
        """Return the store at milvus://HOST:PORT/DATABASE?consistency=LEVEL.

        The scheme milvuss:// uses TLS, and milvus:///PATH.db is Milvus Lite in this process.

        Raises:
            InvalidConfiguration: If the URL is malformed.
        """
        scheme, _, address = chosen.url.get_secret_value().partition("://")
        address, _, query = address.partition("?")
        options = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
        consistency = options.pop("consistency", "strong")
        if options or consistency not in _CONSISTENCY:
            raise InvalidConfiguration(f"a URL of Milvus has only the option consistency: {', '.join(_CONSISTENCY)}")
        token = secret(chosen.api_key)
        if address.endswith(".db"):
            return cls(MilvusConnection(address, token=token, timeout=chosen.timeout_seconds), consistency)
        host, _, database = address.partition("/")
        url = f"{'https' if scheme == 'milvuss' else 'http'}://{host}"
        connection = MilvusConnection(url, token=token, database=database, timeout=chosen.timeout_seconds)
        return cls(connection, consistency)

    def names(self) -> Sequence[str]:
        found: Sequence[str] = self._connection.call("list_collections")
        return found

    def columns(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        for name in self.names():
            fields = _fields(self._connection.call("describe_collection", name))
            yield name, {field: "vector" if of.type.endswith("FLOAT_VECTOR") else "" for field, of in fields.items()}

    def open(self, attached: AttachedTable) -> MilvusTable:
        table = MilvusTable(self._connection, attached, self._consistency)
        if attached.digest and table.about and not table.index:  # its creation was interrupted
            self._index(attached.table, orjson.loads(table.about)["kind"], words=table.words)
            table = MilvusTable(self._connection, attached, self._consistency)
        return table

    def create(self, table: str, dimension: int, kind: str, about: str, *, lexical: bool) -> None:
        server = self._connection.server()
        words = lexical and server.full_text
        schema = _schema(dimension, halves=server.half_precision, words=words)
        self._connection.call(
            "create_collection", table, schema=schema, consistency_level=_STRONG, properties={PROPERTY: about}
        )
        self._index(table, kind, words=words)

    def drop(self, table: str) -> None:
        self._connection.call("drop_collection", table)

    def close(self) -> None:
        self._connection.close()

    def _index(self, table: str, kind: str, *, words: bool) -> None:
        """Index the fields of a new collection.

        The vectors come last, so that their index implies the others.
        """
        wanted = MilvusClient.prepare_index_params()
        if words:
            wanted.add_index(WORDS, index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
        wanted.add_index("vector", metric_type="COSINE", **_KINDS[kind])
        self._connection.call("create_index", table, wanted, sync=False)  # nothing to index yet


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a schema.

    Attributes:
        type: Milvus's name for the type, such as VARCHAR.
        element: The type of an array's elements.
        nullable: Whether it may be null.
        size: The dimension of a vector, or most bytes of a string.
    """

    type: str
    element: str = ""
    nullable: bool = False
    size: int = 0


class MilvusTable(Table):
    """A `Table`, whose recall depends on the index of the vectors in Milvus.

    It is `stale` after a failed call.
    """

    at_a_time = IDS_AT_A_TIME

    def __init__(self, connection: MilvusConnection, attached: AttachedTable, consistency: str = "strong") -> None:
        self.stale = False
        self._connection, self._consistency = connection, consistency.capitalize()
        described = connection.call("describe_collection", attached.table)
        self._fields = _fields(described)
        dynamic = bool(described["enable_dynamic_field"])
        if attached.digest and WORDS in self._fields:
            attached = attached.model_copy(update={"full_text": WORDS})
        needed = attached.model_copy(update={"metadata": None}) if dynamic else attached
        check_columns(needed, self._fields, "Milvus", "collection", "field")
        self.attached, self._vector = attached, self._fields[attached.vector]
        if self._vector.type not in ("FLOAT_VECTOR", "FLOAT16_VECTOR"):
            raise RetrieverFailed(
                f"the vectors of the collection {attached.table!r} in Milvus are {self._vector.type}; FLOAT_VECTOR and "
                "FLOAT16_VECTOR can be searched"
            )
        self.dimension, self.about = self._vector.size, described["properties"].get(PROPERTY, "")
        self.words = attached.full_text is not None
        self._numbers = self._fields[attached.id].type == "INT64"
        kinds = {name: {"JSON": "json"}.get(field.type, "") for name, field in self._fields.items()}
        kinds |= dict.fromkeys(
            (name for name, field in self._fields.items() if field.type.endswith("_VECTOR")), "vector"
        )
        self._payload = Payload(attached, "Milvus", kinds)
        self._dynamic, self._lite = dynamic, connection.server().lite
        beyond = [DYNAMIC] if dynamic and attached.metadata is None else []
        self._read = [*self._payload.texts, *self._payload.columns(self._fields), *beyond]
        indexes = self._call("list_indexes", field_name=attached.vector)
        self.index: Mapping[str, Any] = self._call("describe_index", index_name=indexes[0]) if indexes else {}

    def count(self) -> int:
        return self._count("")

    def search(
        self, query: NDArray[np.float32], depth: int, where: Any, *, vectors: bool = True, documents: bool = False
    ) -> FoundRows:
        """Search as `Table.search` does.

        More than SEARCH_LIMIT documents are fetched in pages or, if they are most of the collection, as the whole.
        """
        filter = "" if where is True else where
        if vectors and self._halves:
            depth += depth // _MARGIN + 16
        together = vectors and 4 * self.dimension * min(depth, SEARCH_LIMIT) <= ANSWER_BYTES
        fields = [*([self.attached.vector] if together else []), *(self._read if documents and not vectors else [])]
        there = depth if depth <= SEARCH_LIMIT else self._count(filter)
        if there <= SEARCH_LIMIT:
            few = min(depth, there)
            parameters = {"params": self._parameters(few)}
            asked = [self._asked(query)]
            rows = self._hits(asked, self.attached.vector, few, filter, parameters, fields) if there else []
        elif there <= 2 * depth:
            rows = self._pages("query_iterator", fields, filter, output_fields=[self.attached.id, *fields])
        else:
            rows = self._pages(
                "search_iterator",
                fields,
                filter,
                data=[self._asked(query)],
                anns_field=self.attached.vector,
                limit=depth,
                output_fields=fields,
                search_params={"metric_type": self.index["metric_type"], "params": self._parameters(SEARCH_LIMIT)},
            )
        found = dict(_of_hit(row, self.attached.id) for row in rows)
        if vectors and not together:
            return self.rows(list(found), vectors=True)._replace(exact=None)
        return self._found(found, vectors, documents and not vectors)._replace(exact=None)

    def best(self, query: str, depth: int, where: Any) -> Mapping[str, float]:
        """Rank as `Table.best` does, by the BM25 of Milvus."""
        field, filter = str(self.attached.full_text), "" if where is True else where
        parameters = {"metric_type": "BM25", "params": {}}
        hits = self._hits([query], field, min(depth, SEARCH_LIMIT), filter, parameters)
        return {str(hit.id): float(hit.distance) for hit in hits}

    def rows(self, ids: Sequence[str], *, vectors: bool = False, documents: bool = False) -> FoundRows:
        at_a_time = TEXTS_AT_A_TIME if documents else max(1, min(IDS_AT_A_TIME, ANSWER_BYTES // (4 * self.dimension)))
        fields = [*([self.attached.vector] if vectors else []), *(self._read if documents else [])]
        found = dict(self._rows(ids, fields, at_a_time))
        return self._found(found, vectors, documents)

    def check(self, document: Document) -> None:
        """Check as `Table.check` does: Milvus limits the length of strings and JSON."""
        for what, text, field in (
            ("id", document.id, self.attached.id),
            ("title", document.title or "", self.attached.title or ""),
            ("text", document.text, self.attached.text),
            ("metadata", canonical(document, dict(document.metadata)), ""),
        ):
            size = len(text if isinstance(text, bytes) else text.encode())
            limit = self._fields[field].size if field and not (field == self.attached.id and self._numbers) else 0
            if size > (limit or MAX_BYTES):
                raise LimitExceeded(
                    f"the {what} of {document.id!r} takes {size:,} bytes, and Milvus allows {limit or MAX_BYTES:,}; "
                    "divide it"
                )

    def upsert(self, documents: Sequence[Document], vectors: NDArray[np.floating], digests: Sequence[bytes]) -> None:
        stored = vectors.astype(np.float16 if self._halves else np.float32)
        rows = [self._row(*each) for each in zip(documents, stored, digests, strict=True)]
        at_a_time = max(1, REQUEST_BYTES // (4 * self.dimension + ROW_BYTES))
        for start in range(0, len(rows), at_a_time):
            self._call("upsert", data=rows[start : start + at_a_time])

    def delete(self, ids: Sequence[str]) -> int:
        present = [id for id, _ in self._rows(ids, [], consistency=_STRONG)]
        for expression in self._id_conditions(present, IDS_AT_A_TIME):
            self._call("delete", filter=expression)
        return len(present)

    def digests(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        field = str(self.attached.digest)
        return {id: bytes.fromhex(row[field]) for id, row in self._rows(ids, [field], consistency=_STRONG)}

    def join(self, by: Literal["and", "or"], parts: Sequence[str]) -> str:
        return join_expressions(by, parts)

    def negate(self, part: str) -> str:
        return f"(not {part})"

    def leaf(self, condition: Exists | Compare) -> Bounds[str]:
        path = self._payload.path(condition.path)
        if path is None:
            return NEVER
        name = path[0]
        field = self._fields.get(name)
        if field is None and not self._dynamic:
            return NEVER
        if field is None or field.type == "JSON":
            keys = path if field is None else path[1:]
            if not keys or not all(map(_PLAIN.fullmatch, keys)):
                return UNKNOWN
            place = ("$meta" if field is None else name) + "".join(f'["{key}"]' for key in keys)
            return self._json(place, condition)
        if len(path) > 1:
            return NEVER
        return _nullable(name, field, _scalar(name, field, condition))

    def _json(self, place: str, condition: Exists | Compare) -> Bounds[str]:
        exists = f"(exists {place})"
        if isinstance(condition, Exists):
            return Bounds(True, exists)  # in some releases, a null field does not exist
        if condition.type == "null":
            return UNKNOWN
        if condition.comparison in _OPERATORS:
            value = _literal(condition.values[0])
            if value is None or self._lite:
                return Bounds(exists, False)
            compared = f"{place} {_OPERATORS[condition.comparison]} {value}"
            return Bounds(f"({exists} and (({compared}) or (exists {place}[0])))", f"({exists} and ({compared}))")
        literals = [_literal(value) for value in condition.values]
        if None in literals or (self._lite and place.startswith("$meta")):  # milvus-lite finds no lists there
            return Bounds(exists, False)
        equal = [f"({place} == {literal})" for literal in literals]
        listed = f"(json_contains_any({place}, [{', '.join(map(str, literals))}]))"
        met = f"({exists} and {join_expressions('or', [*equal, listed])})"
        return Bounds(met, met if condition.type == "text" or not self._lite else False)

    @property
    def _halves(self) -> bool:
        return self._vector.type == "FLOAT16_VECTOR"

    def _asked(self, query: NDArray[np.float32]) -> NDArray[np.floating]:
        return query.astype(np.float16) if self._halves else query

    def _parameters(self, depth: int) -> dict[str, Any]:
        """Return the parameters of a search.

        The beam of HNSW is at least as wide as the depth, and by default twice as wide.
        """
        given = dict(self.attached.search)
        if self.index.get("index_type") == "HNSW":
            given["ef"] = min(WIDEST, max(depth, int(given.get("ef", 2 * depth))))
        return given

    def _hits(
        self,
        data: Sequence[object],
        field: str,
        depth: int,
        filter: str,
        search_params: Mapping[str, object],
        fields: Sequence[str] = (),
    ) -> Iterable[Any]:
        (hits,) = self._loaded(
            "search",
            data=data,
            anns_field=field,
            limit=depth,
            filter=filter,
            output_fields=list(fields),
            search_params=search_params,
            consistency_level=self._consistency,
        )
        found: Iterable[Any] = hits
        return found

    def _pages(self, method: str, fields: Sequence[str], filter: str, **options: Any) -> Iterator[Any]:
        size = SEARCH_LIMIT
        if self.attached.vector in fields:
            size = min(size, ANSWER_BYTES // (4 * self.dimension))
        options |= {"batch_size": size, "filter": filter, "consistency_level": self._consistency}
        for page in self._connection.pages(method, self.attached.table, **options):
            yield from page

    def _count(self, filter: str) -> int:
        (row,) = self._query(filter, ["count(*)"], _STRONG)
        return int(row["count(*)"])

    def _rows(
        self, ids: Iterable[str], fields: Sequence[str], at_a_time: int = IDS_AT_A_TIME, *, consistency: str = ""
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield fields of the documents with these ids, unordered, without unknown ids."""
        for expression in self._id_conditions(ids, at_a_time):
            for row in self._query(expression, [self.attached.id, *fields], consistency or self._consistency):
                yield str(row[self.attached.id]), row

    def _id_conditions(self, ids: Iterable[str], at_a_time: int) -> Iterator[str]:
        """Yield expressions that match the documents with these ids.

        The ids that no document can have are left out.
        """
        distinct = dict.fromkeys(ids)
        literals = list(filter(is_integer, distinct)) if self._numbers else list(map(quoted, distinct))
        for start in range(0, len(literals), at_a_time):
            yield f"{self.attached.id} in [{', '.join(literals[start : start + at_a_time])}]"

    def _query(self, expression: str, fields: list[str], consistency: str) -> Sequence[dict[str, Any]]:
        rows: Sequence[dict[str, Any]] = self._loaded(
            "query", filter=expression, output_fields=fields, consistency_level=consistency
        )
        return rows

    def _loaded(self, method: str, **options: Any) -> Any:
        """Call a method of this collection, after loading it if Milvus was restarted."""
        try:
            return self._call(method, **options)
        except CollectionNotLoaded:
            self._connection.call("load_collection", self.attached.table)
            return self._call(method, **options)

    def _call(self, method: str, **options: Any) -> Any:
        try:
            return self._connection.call(method, self.attached.table, **options)
        except CollectionNotLoaded:
            raise
        except BoundaryMorphError:
            self.stale = True
            raise

    def _matrix(self, rows: Sequence[Mapping[str, Any]]) -> NDArray[np.floating]:
        """Return the (n, d) vectors of n rows that include them.

        They are float16 if they are stored or were written as such.
        """
        values = [row[self.attached.vector] for row in rows]
        if self._halves:  # bytes from a search, a list of bytes from a query
            parts = [value[0] if isinstance(value, list) else value for value in values]
            return np.frombuffer(b"".join(parts), "<f2").reshape(-1, self.dimension)
        matrix = np.array(values, np.float32).reshape(-1, self.dimension)
        return matrix.astype(np.float16) if self.about else matrix

    def _found(self, rows: Mapping[str, Mapping[str, Any]], vectors: bool, documents: bool) -> FoundRows:
        read = {id: self._document(id, row) for id, row in rows.items()} if documents else {}
        return FoundRows(list(rows), self._matrix(list(rows.values())) if vectors else None, read)

    def _document(self, id: str, row: Mapping[str, Any]) -> Document:
        """Return a row as a document, without null fields in its metadata.

        An empty title counts as no title.
        """
        given = {name: _plain(value) for name, value in row.items() if value is not None or name not in self._fields}
        title = self.attached.title
        return self._payload.document(id, given | {title: given.get(title) or None} if title else given)

    def _row(self, document: Document, vector: NDArray[np.floating], digest: bytes) -> dict[str, Any]:
        attached, id = self.attached, int(document.id) if self._numbers else document.id
        row = {attached.id: id, attached.vector: vector, **self._payload.written(document, digest)}
        if attached.title:
            row[attached.title] = document.title or ""
        if attached.full_text == WORDS:
            row[CONTENT] = document.content.encode()[:MAX_BYTES].decode(errors="ignore")
        return row


def _schema(dimension: int, *, halves: bool, words: bool) -> CollectionSchema:
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=MAX_ID_BYTES)
    schema.add_field("vector", DataType.FLOAT16_VECTOR if halves else DataType.FLOAT_VECTOR, dim=dimension)
    schema.add_field("text", DataType.VARCHAR, max_length=MAX_BYTES)
    schema.add_field("title", DataType.VARCHAR, max_length=MAX_BYTES)
    schema.add_field("metadata", DataType.JSON)
    schema.add_field("digest", DataType.VARCHAR, max_length=64)
    if words:
        schema.add_field(CONTENT, DataType.VARCHAR, max_length=MAX_BYTES, enable_analyzer=True)
        schema.add_field(WORDS, DataType.SPARSE_FLOAT_VECTOR)
        schema.add_function(Function("bm25", FunctionType.BM25, [CONTENT], [WORDS]))
    return schema


def _fields(described: Mapping[str, Any]) -> dict[str, Field]:
    """Return the fields of a collection by name."""
    fields = {}
    for field in described["fields"]:
        element, parameters = field.get("element_type"), field.get("params") or {}
        fields[field["name"]] = Field(
            field["type"].name,
            element.name if element else "",
            bool(field.get("nullable")),
            int(parameters.get("dim", parameters.get("max_length", 0))),
        )
    return fields


def _of_hit(row: Any, id: str) -> tuple[str, dict[str, Any]]:
    """Return the id and the fields of a hit of a search, or of a row of a query."""
    return (str(row.id), row["entity"]) if hasattr(row, "id") else (str(row[id]), row)


def _plain(value: Any) -> Any:
    """Return a value of a row as JSON; Milvus has its own type of sequence for arrays."""
    return value if isinstance(value, (str, int, float, bool, dict, list, type(None))) else list(value)


def quoted(text: str) -> str:
    """Quote a string for an expression, in which no other characters need escaping."""
    return '"' + text.translate({ord("\\"): r"\\", ord('"'): r"\"", ord("\n"): r"\n", ord("\r"): r"\r"}) + '"'


def join_expressions(by: str, parts: Sequence[str]) -> str:
    """Join expressions into a balanced tree, because parsers limit the depth."""
    pieces = sorted(set(parts))
    while len(pieces) > 1:
        pairs = [pieces[start : start + 2] for start in range(0, len(pieces), 2)]
        pieces = [f"({f' {by} '.join(pair)})" if len(pair) > 1 else pair[0] for pair in pairs]
    return pieces[0]


def _nullable(name: str, field: Field, bounds: Bounds[str]) -> Bounds[str]:
    """Account for a field that may be null, which counts as a missing one."""
    if not field.nullable:
        return bounds
    there = f"({name} is not null)"
    both = [join_expressions("and", [there, each]) if isinstance(each, str) else each and there for each in bounds]
    return Bounds(*both)


def _scalar(name: str, field: Field, condition: Exists | Compare) -> Bounds[str]:
    if isinstance(condition, Exists):
        return Bounds(True, True)
    type, comparison, literals = (
        field.element or field.type,
        condition.comparison,
        list(map(_literal, condition.values)),
    )
    if field.type == "ARRAY" and (comparison != "in" or type not in ("VARCHAR", *_INTEGERS)):
        return UNKNOWN
    match type, condition.type:
        case ("VARCHAR", "text") | ("BOOL", "true" | "false") | ("FLOAT" | "DOUBLE", "number"):
            pass
        case (("INT8" | "INT16" | "INT32" | "INT64"), "number"):
            comparison, numbers = whole(comparison, condition.values)
            limit = 2 ** _INTEGERS[type]
            literals = [str(number) for number in numbers if -limit <= number < limit]
            if comparison != "in" and not literals:  # beyond the type, so all match or none
                return Bounds.from_expression((numbers[0] < 0) == (comparison == "gte"))
        case (("VARCHAR" | "BOOL" | "FLOAT" | "DOUBLE" | "INT8" | "INT16" | "INT32" | "INT64"), _):
            return NEVER
        case _:
            return UNKNOWN
    if None in literals:
        return UNKNOWN
    if not literals:
        return NEVER
    listed = ", ".join(map(str, literals))
    if field.type == "ARRAY":
        return Bounds.from_expression(f"(array_contains_any({name}, [{listed}]))")
    if comparison != "in":
        operator = _OPERATORS[comparison]
        met: str | bool = f"({name} {operator} {listed})"
        possible: str | bool = f"({name} {operator[0]}= {listed})"  # because Milvus also rounds the bound of a FLOAT
    elif type in ("FLOAT", "DOUBLE"):
        possible = met = join_expressions("or", [f"({name} == {literal})" for literal in literals])
    else:
        possible = met = f"({name} in [{listed}])"
    return Bounds(possible, False) if type == "FLOAT" else Bounds.from_expression(met)


def _literal(value: Scalar) -> str | None:
    """Return a value as a literal, or None for numbers that releases read differently."""
    match value:
        case str():
            return quoted(value)
        case bool():
            return "true" if value else "false"
        case int() | float() if abs(value) <= _EXACT:
            return repr(value)
        case _:
            return None
