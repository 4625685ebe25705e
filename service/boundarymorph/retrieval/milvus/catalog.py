"""The indexes that are in Milvus."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import orjson
from pymilvus import CollectionSchema, DataType, MilvusClient

from boundarymorph.errors import (
    CorruptIndex,
    InvalidInput,
    RetrieverFailed,
    RetrieverUnavailable,
    UnknownIndex,
)
from boundarymorph.retrieval.catalog import NAME, Index, IndexConfiguration, IndexInfo, check_name, check_same, unknown
from boundarymorph.retrieval.milvus.collection import Collection
from boundarymorph.retrieval.milvus.connection import Connection
from boundarymorph.retrieval.milvus.existing import Existing, ExistingIndex
from boundarymorph.retrieval.milvus.index import (
    MAX_DIGEST_LENGTH,
    MAX_ID_BYTES,
    MAX_TERMS,
    MAX_TEXT_BYTES,
    MilvusIndex,
)
from boundarymorph.retrieval.milvus.vectors import VectorCache

PROPERTY = "boundarymorph.index"
STRUCTURES = {"flat": ("FLAT", {}), "hnsw": ("HNSW", {"M": 32, "efConstruction": 360})}
DIMENSIONS = range(2, 32_769)
_ESCAPED = {"_": "__", ".": "_d", "-": "_h"}
_PLAIN = {escaped: plain for plain, escaped in _ESCAPED.items()}
_log = logging.getLogger(__name__)


class MilvusCatalog:
    """A `Catalog` of the collections whose names begin with `prefix`, and of existing ones of others by given names.

    What an index is, is a property of its collection, so that any number of processes may share a Milvus. Raises
    RetrieverUnavailable and RetrieverFailed besides what a `Catalog` raises.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        prefix: str,
        make_cache: Callable[[int], VectorCache] | None = None,
        existing: Mapping[str, Existing] | None = None,
    ) -> None:
        """make_cache: where the vectors of an index of so many dimensions are kept, None to have them from Milvus."""
        self._connection = connection
        self._prefix = prefix
        self._make_cache = make_cache
        self._existing = existing or {}
        self._lock = threading.Lock()
        self._open: dict[str, MilvusIndex] = {}

    def check(self) -> None:
        self._connection.call("list_collections")

    def exists(self, name: str) -> bool:
        check_name(name)
        return name in self._existing or bool(self._connection.call("has_collection", self._collection_of(name)))

    def ensure(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> bool:
        """As `Catalog.ensure`. What an interrupted call of it left undone is done by the next. No words are kept."""
        check_name(name)
        if kind is not None and kind not in STRUCTURES:
            raise InvalidInput(f"in Milvus an index is of the kind {' or '.join(STRUCTURES)}, not {kind!r}")
        if dimension not in DIMENSIONS:
            raise InvalidInput(f"Milvus takes {DIMENSIONS[0]} to {DIMENSIONS[-1]:,} dimensions, not {dimension}")
        ours = None if self.exists(name) else self._build(name, encoder, dimension, kind or "flat")
        collection, info = self._describe(name)
        check_same(name, info, encoder=encoder, dimension=dimension, kind=kind)
        if name not in self._existing:
            self._index(collection, info.kind)
        return info.created == ours  # Milvus answers two that make the same collection alike

    def create(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> Index:
        """As `Catalog.create`."""
        self.ensure(name, encoder=encoder, dimension=dimension, kind=kind, lexical=lexical)
        return self.get(name)

    def get(self, name: str) -> Index:
        collection, info = self._describe(name)
        if (existing := self._existing.get(name)) is not None:
            return ExistingIndex(name, info, collection, existing)
        with self._lock:
            if (index := self._open.get(name)) is not None and index.info == info:
                return index
            cache = None if self._make_cache is None else self._make_cache(info.dimension)
            self._open[name] = index = MilvusIndex(name, info, collection, cache)
            return index

    def describe(self, name: str) -> IndexInfo:
        """An index at a glance; of its bytes none are on this machine."""
        index = self.get(name)
        info = index.info
        return IndexInfo(name, index.count(), info.dimension, info.encoder, info.created, 0, info.kind)

    def list(self) -> Sequence[IndexInfo]:
        listed = []
        for name in sorted({*self._names(), *self._existing}):
            try:
                listed.append(self.describe(name))
            except UnknownIndex:
                continue
            except (CorruptIndex, RetrieverFailed) as error:
                _log.warning("index left out of the list: %s", error)
        return listed

    def delete(self, name: str) -> None:
        """As `Catalog.delete`. Raises InvalidInput for a collection that this service did not make."""
        if name in self._existing:
            raise InvalidInput(f"the index {name!r} is a collection of your own; delete it in Milvus")
        if not self.exists(name):
            raise unknown(name)
        self._connection.call("drop_collection", self._collection_of(name))
        with self._lock:
            self._open.pop(name, None)

    def close(self) -> None:
        self._connection.close()

    def _names(self) -> Sequence[str]:
        """The indexes that there are of this service."""
        found = []
        for collection in self._connection.call("list_collections"):
            rest = collection.removeprefix(self._prefix)
            name = re.sub("_[_dh]", lambda escaped: _PLAIN[escaped[0]], rest)
            if NAME.fullmatch(name) and collection == self._collection_of(name):
                found.append(name)
        return found

    def _collection_of(self, name: str) -> str:
        return self._prefix + "".join(_ESCAPED.get(letter, letter) for letter in name)

    def _describe(self, name: str) -> tuple[Collection, IndexConfiguration]:
        check_name(name)
        existing = self._existing.get(name)
        try:
            if existing is not None:
                collection = existing.open(self._connection)
                return collection, IndexConfiguration(existing.encoder, collection.dimension, "", lexical=False)
            collection = Collection(self._connection, self._collection_of(name))
        except UnknownIndex as error:
            raise unknown(name) from error
        try:
            stored = orjson.loads(collection.properties[PROPERTY])
            return collection, IndexConfiguration(
                stored["encoder"], collection.dimension, stored["created"], stored["kind"], lexical=False
            )
        except (KeyError, TypeError, orjson.JSONDecodeError) as error:
            raise CorruptIndex(
                f"the collection {collection.name!r} in Milvus was not made by this release; choose another "
                "milvus.prefix, or name it in milvus.collections"
            ) from error

    def _build(self, name: str, encoder: str | None, dimension: int, kind: str) -> str:
        """Make the collection, unless another process is there first; when it was created if it is this one."""
        created = datetime.now(UTC).isoformat()
        description = {"encoder": encoder, "created": created, "kind": kind}
        try:
            self._connection.call(
                "create_collection",
                self._collection_of(name),
                schema=_schema(dimension),
                consistency_level="Strong",
                properties={PROPERTY: orjson.dumps(description).decode()},
            )
        except RetrieverUnavailable:
            if not self.exists(name):
                raise
        return created

    def _index(self, collection: Collection, kind: str) -> None:
        if not self._connection.call("list_indexes", collection.name):
            structure, parameters = STRUCTURES[kind]
            wanted = MilvusClient.prepare_index_params()
            wanted.add_index("vector", index_type=structure, metric_type="COSINE", params=parameters)
            self._connection.call("create_index", collection.name, wanted, sync=False)  # of nothing yet


def _schema(dimension: int) -> CollectionSchema:
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=MAX_ID_BYTES)
    schema.add_field("version", DataType.INT64)
    schema.add_field("digest", DataType.VARCHAR, max_length=MAX_DIGEST_LENGTH)
    schema.add_field("characters", DataType.INT64)
    schema.add_field("title", DataType.VARCHAR, max_length=MAX_TEXT_BYTES, nullable=True)
    schema.add_field("text", DataType.VARCHAR, max_length=MAX_TEXT_BYTES)
    schema.add_field("metadata", DataType.JSON)
    schema.add_field("terms", DataType.ARRAY, element_type=DataType.INT64, max_capacity=MAX_TERMS)
    schema.add_field("bounds", DataType.JSON)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimension)
    return schema
