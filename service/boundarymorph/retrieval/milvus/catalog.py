"""The indexes stored in Milvus."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import orjson
from pymilvus import CollectionSchema, DataType, Function, FunctionType, MilvusClient

from boundarymorph.calibration.belongings import Belongings
from boundarymorph.errors import (
    CorruptIndex,
    InvalidInput,
    RetrieverUnavailable,
    UnknownIndex,
)
from boundarymorph.retrieval.catalog import (
    NAME,
    Catalog,
    Index,
    IndexConfiguration,
    IndexDescription,
    UnreadableIndex,
    check_name,
    check_same,
    listed,
    unknown,
)
from boundarymorph.retrieval.milvus.collection import Consistency, MilvusCollection
from boundarymorph.retrieval.milvus.connection import MilvusConnection
from boundarymorph.retrieval.milvus.index import (
    CONTENT,
    MAX_DIGEST_LENGTH,
    MAX_ID_BYTES,
    MAX_TERMS,
    MAX_TEXT_BYTES,
    WORDS,
    MilvusIndex,
)
from boundarymorph.retrieval.milvus.structures import KINDS, Structures
from boundarymorph.retrieval.stores.index import StoreIndex

PROPERTY = "boundarymorph.index"
DIMENSIONS = range(2, 32_769)
_ESCAPED = {"_": "__", ".": "_d", "-": "_h"}
_PLAIN = {escaped: plain for plain, escaped in _ESCAPED.items()}


class MilvusCatalog(Catalog):
    """A `Catalog` of the collections whose names begin with `prefix`.

    The configuration of an index is stored in its collection, so any number of processes may share a Milvus. Also
    raises RetrieverUnavailable and RetrieverFailed.
    """

    def __init__(
        self,
        connection: MilvusConnection,
        *,
        prefix: str,
        structures: Structures | None = None,
        consistency: Consistency = "strong",
        half_precision: bool = True,
        schema_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        directory: Path = Path(".belongings"),
    ) -> None:
        """structures: parameters of the kinds of index. half_precision: for the vectors of new indexes, if the server
        supports it. schema_seconds: how long an index in use is not described again, unless a call to it fails.
        directory: for what belongs to the indexes besides their documents; need not exist.
        """
        self._connection = connection
        self._directory = directory
        self._prefix = prefix
        self._structures = structures or Structures()
        self._consistency = consistency
        self._half_precision = half_precision
        self._schema_seconds = schema_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, _InUse] = {}

    def check(self) -> None:
        self._connection.call("list_collections")

    def exists(self, name: str) -> bool:
        check_name(name)
        return bool(self._connection.call("has_collection", self._collection_of(name)))

    def ensure(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> bool:
        """See `Catalog.ensure`. Completes the work of an interrupted call."""
        check_name(name)
        if kind is not None and kind not in KINDS:
            raise InvalidInput(f"an index in Milvus has the kind {', '.join(KINDS[:-1])} or {KINDS[-1]}, not {kind!r}")
        if dimension not in DIMENSIONS:
            raise InvalidInput(f"Milvus supports {DIMENSIONS[0]} to {DIMENSIONS[-1]:,} dimensions, not {dimension}")
        ours = None if self.exists(name) else self._build(name, encoder, dimension, kind or "flat", lexical)
        collection, info = self._describe(name)
        check_same(name, info, encoder=encoder, dimension=dimension, kind=kind)
        self._index(collection, info.kind)
        return info.created == ours  # Milvus reports success to two processes that create the same collection

    def get(self, name: str) -> Index:
        """See `Catalog.get`. An index deleted elsewhere a moment ago may still be returned; its calls then fail."""
        check_name(name)
        with self._lock:
            known = self._open.get(name)
        if known is not None and not known.opened.table.stale and self._clock() < known.until:
            return known.opened
        return self._opened(name)

    def describe(self, name: str) -> IndexDescription:
        """Return a summary of an index; none of its bytes are on this machine."""
        index = self._opened(name)
        return index.info.described(name, index.count())

    def list(self) -> Sequence[IndexDescription | UnreadableIndex]:
        return listed(sorted(self._names()), self.describe)

    def delete(self, name: str) -> None:
        if not self.exists(name):
            raise unknown(name)
        self._connection.call("drop_collection", self._collection_of(name))
        with self._lock:
            self._open.pop(name, None)
        for belongings in self._directory.glob(f"{name}@*"):  # what stays is never that of a later index
            shutil.rmtree(belongings, ignore_errors=True)

    def belongings(self, name: str) -> Belongings:
        """See `Catalog.belongings`. An index of the same name that was created later has others."""
        created = quote(self.get(name).info.created, safe="")
        return Belongings(self._directory / f"{name}@{created}", name, within_index=False)

    def all_belongings(self) -> Iterator[Belongings]:
        for name in sorted({folder.name.partition("@")[0] for folder in self._directory.glob("*@*")}):
            with suppress(UnknownIndex):
                yield self.belongings(name)

    def close(self) -> None:
        self._connection.close()

    def _names(self) -> Sequence[str]:
        """Return the names of this service's indexes."""
        found = []
        for collection in self._connection.call("list_collections"):
            rest = collection.removeprefix(self._prefix)
            name = re.sub("_[_dh]", lambda escaped: _PLAIN[escaped[0]], rest)
            if NAME.fullmatch(name) and collection == self._collection_of(name):
                found.append(name)
        return found

    def _collection_of(self, name: str) -> str:
        return self._prefix + "".join(_ESCAPED.get(letter, letter) for letter in name)

    def _opened(self, name: str) -> StoreIndex:
        """Return the index in its present state in Milvus."""
        try:
            collection, info = self._describe(name)
        except UnknownIndex:
            with self._lock:
                self._open.pop(name, None)
            raise
        with self._lock:
            known = self._open.get(name)
            same = known.opened if known is not None and known.opened.info == info else None
            if same is None or same.table.stale:
                same = StoreIndex(name, info, MilvusIndex(info, collection, self._structures), "Milvus")
            self._open[name] = _InUse(same, self._clock() + self._schema_seconds)
            return same

    def _describe(self, name: str) -> tuple[MilvusCollection, IndexConfiguration]:
        check_name(name)
        try:
            collection = MilvusCollection(self._connection, self._collection_of(name), consistency=self._consistency)
        except UnknownIndex as error:
            raise unknown(name) from error
        try:
            stored = orjson.loads(collection.properties[PROPERTY])
            return collection, IndexConfiguration(
                stored["encoder"],
                collection.dimension,
                stored["created"],
                stored["kind"],
                lexical=stored.get("lexical", False),
            )
        except (KeyError, TypeError, orjson.JSONDecodeError) as error:
            raise CorruptIndex(
                f"the collection {collection.name!r} in Milvus was not created by this release; choose another "
                "milvus.prefix, or search it as it is by --store milvus://..."
            ) from error

    def _build(self, name: str, encoder: str | None, dimension: int, kind: str, lexical: bool) -> str:
        """Create the collection unless another process was faster; return its creation time if it is this one's."""
        created = datetime.now(UTC).isoformat()
        description = {"encoder": encoder, "created": created, "kind": kind, "lexical": lexical}
        server = self._connection.server()
        halves = self._half_precision and server.half_precision
        try:
            self._connection.call(
                "create_collection",
                self._collection_of(name),
                schema=_schema(dimension, halves=halves, full_text=lexical and server.full_text),
                consistency_level="Strong",
                properties={PROPERTY: orjson.dumps(description).decode()},
            )
        except RetrieverUnavailable:
            if not self.exists(name):
                raise
        return created

    def _index(self, collection: MilvusCollection, kind: str) -> None:
        """Index the fields of a new collection, the vectors last, so that their index implies the others."""
        if self._connection.call("list_indexes", collection.name, field_name="vector"):
            return
        wanted = MilvusClient.prepare_index_params()
        if self._connection.server().array_index:
            wanted.add_index("terms", index_type="INVERTED")
        if WORDS in collection.fields:
            wanted.add_index(WORDS, index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
        wanted.add_index("vector", **self._structures.index(kind))
        self._connection.call("create_index", collection.name, wanted, sync=False)  # nothing to index yet


class _InUse(NamedTuple):
    """An index in use, and when to describe it again."""

    opened: StoreIndex
    until: float


def _schema(dimension: int, *, halves: bool, full_text: bool) -> CollectionSchema:
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=MAX_ID_BYTES)
    schema.add_field("version", DataType.INT64)
    schema.add_field("digest", DataType.VARCHAR, max_length=MAX_DIGEST_LENGTH)
    schema.add_field("characters", DataType.INT64)
    schema.add_field("title", DataType.VARCHAR, max_length=MAX_TEXT_BYTES)
    schema.add_field("titled", DataType.BOOL)
    schema.add_field("text", DataType.VARCHAR, max_length=MAX_TEXT_BYTES)
    schema.add_field("metadata", DataType.JSON)
    schema.add_field("terms", DataType.ARRAY, element_type=DataType.INT64, max_capacity=MAX_TERMS)
    schema.add_field("bounds", DataType.JSON)
    schema.add_field("vector", DataType.FLOAT16_VECTOR if halves else DataType.FLOAT_VECTOR, dim=dimension)
    if full_text:
        schema.add_field(CONTENT, DataType.VARCHAR, max_length=MAX_TEXT_BYTES, enable_analyzer=True)
        schema.add_field(WORDS, DataType.SPARSE_FLOAT_VECTOR)
        schema.add_function(Function("bm25", FunctionType.BM25, [CONTENT], [WORDS]))
    return schema
