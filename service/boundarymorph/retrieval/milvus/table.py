"""An existing collection, which users created and fill in Milvus, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import Condition
from boundarymorph.retrieval.milvus.collection import (
    ANSWER_BYTES,
    SEARCH_LIMIT,
    TEXTS_AT_A_TIME,
    Consistency,
    MilvusCollection,
)
from boundarymorph.retrieval.milvus.connection import MilvusConnection
from boundarymorph.retrieval.milvus.native import Native
from boundarymorph.retrieval.stores.bounds import Bounds, bounds
from boundarymorph.retrieval.stores.table import Found, Payload, Table, check_columns, guessed
from boundarymorph.retrieval.stores.times import Kind, in_one_form
from boundarymorph.settings import Attached, StoreSettings

DYNAMIC = "$meta"  # holds the fields of a document that are not in the schema


class MilvusStore:
    """A `Store`: the collections of a Milvus."""

    name = "Milvus"

    def __init__(self, connection: MilvusConnection, consistency: Consistency = "strong") -> None:
        self._connection = connection
        self._consistency = consistency

    @classmethod
    def connect(cls, chosen: StoreSettings) -> MilvusStore:
        """Return the store at milvus://HOST:PORT or milvus:///PATH.db. Raises InvalidConfiguration."""
        address = chosen.url.get_secret_value().removeprefix("milvus://")
        token = chosen.api_key.get_secret_value() if chosen.api_key else None
        url = address if address.endswith(".db") else f"http://{address}"
        return cls(MilvusConnection(url, token=token, timeout=chosen.timeout_seconds))

    def tables(self) -> Mapping[str, Attached]:
        found = {}
        for name in self._connection.call("list_collections"):
            fields = MilvusCollection(self._connection, name).fields
            columns = {field: "vector" if of.type.endswith("FLOAT_VECTOR") else "" for field, of in fields.items()}
            if (attached := guessed(name, columns)) is not None:
                found[name] = attached
        return found

    def open(self, attached: Attached) -> MilvusTable:
        collection = MilvusCollection(
            self._connection, attached.table, id=attached.id, vector=attached.vector, consistency=self._consistency
        )
        needed = attached.model_copy(update={"metadata": None}) if collection.dynamic else attached
        check_columns(needed, collection.fields, "Milvus", "collection", "field")
        return MilvusTable(collection, attached, lite=self._connection.server().lite)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class MilvusTable(Table):
    """A `Table`. The recall of its candidates depends on the index of the vectors in Milvus."""

    def __init__(self, collection: MilvusCollection, attached: Attached, *, lite: bool = False) -> None:
        self._collection = collection
        self._attached = attached
        self.dimension = collection.dimension
        vectors = [name for name, field in collection.fields.items() if field.type.endswith("_VECTOR")]
        self._payload = Payload(attached, [attached.id, *vectors], whole=False)
        self._native = Native(collection.fields, self._payload.is_metadata, dynamic=collection.dynamic, lite=lite)
        read = [name for name in collection.fields if self._payload.is_metadata(name)]
        beyond = [name for name in attached.metadata or [DYNAMIC] if name not in collection.fields]
        metadata = [*read, *(beyond if collection.dynamic else [])]
        self._fields = [attached.text, *([attached.title] if attached.title else []), *metadata]

    @property
    def stale(self) -> bool:
        return self._collection.stale

    def count(self) -> int:
        return self._collection.count()

    def bounds(self, condition: Condition) -> Bounds[str]:
        return bounds(condition, self._native)

    def time(self, path: tuple[str, ...]) -> Kind | None:
        field = self._collection.fields.get(path[0]) if len(path) == 1 else None
        return "timestamp" if field is not None and field.type == "TIMESTAMPTZ" else None

    def search(
        self, query: NDArray[np.float32], depth: int, where: Any, *, vectors: bool = True, documents: bool = False
    ) -> Found:
        filter = "" if where is True else where
        together = vectors and 4 * self.dimension * min(depth, SEARCH_LIMIT) <= ANSWER_BYTES
        fields = [*([self._attached.vector] if together else []), *(self._fields if documents and not vectors else [])]
        found = self._collection.search(query, depth, fields, filter, **self._attached.search)
        if not vectors:
            rows = zip(found.ids, found.rows, strict=True)
            return Found(found.ids, None, {id: self._document(id, row) for id, row in rows} if documents else {})
        if not together:
            return self.vectors(found.ids)._replace(exact=False)
        return Found(found.ids, self._collection.matrix(found.rows), exact=False)

    def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        return {id: self._document(id, row) for id, row in self._read(ids)}

    def vectors(self, ids: Sequence[str]) -> Found:
        fetched = dict(self._collection.vectors(ids))
        return Found(list(fetched), self._collection.matrix(list(fetched.values())))

    def _read(self, ids: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        return self._collection.read(ids, self._fields, TEXTS_AT_A_TIME)

    def _document(self, id: str, row: Mapping[str, Any]) -> Document:
        """Return a row as a document; fields that are null are left out of its metadata."""
        fields = self._collection.fields
        given = {name: _plain(value) for name, value in row.items() if value is not None or name not in fields}
        given |= {name: in_one_form(value) for name, value in given.items() if self.time((name,)) is not None}
        return self._payload.document(id, given)


def _plain(value: Any) -> Any:
    """Return a value of a row as JSON; Milvus has its own type of sequence for arrays."""
    return value if isinstance(value, (str, int, float, bool, dict, list, type(None))) else list(value)
