"""A read-only index over an existing collection, which users created and fill in Milvus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput, RetrieverFailed
from boundarymorph.retrieval.catalog import IndexConfiguration
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.milvus.collection import (
    ANSWER_BYTES,
    SEARCH_LIMIT,
    TEXTS_AT_A_TIME,
    Collection,
    Consistency,
)
from boundarymorph.retrieval.milvus.connection import Connection
from boundarymorph.retrieval.milvus.native import Native
from boundarymorph.retrieval.milvus.searched import Nominated, SearchedCollection
from boundarymorph.retrieval.milvus.structures import Parameters
from boundarymorph.selection.pool import unit_rows

DYNAMIC = "$meta"  # holds the fields of a document that are not in the schema
MOST_SIFTED = 4 * SEARCH_LIMIT  # documents whose metadata are read in one search


@dataclass(frozen=True, slots=True)
class Existing:
    """An existing collection, and the names of its fields.

    title: None if there is none; metadata: None for all other fields except vectors; encoder: the name of the one that
    made its vectors, None if queries bring their own; words: whether to compute BM25 over the texts of pools; search:
    search parameters of its index, such as nprobe.
    """

    collection: str
    id: str
    vector: str
    text: str
    title: str | None
    encoder: str | None
    metadata: Sequence[str] | None = None
    words: bool = True
    search: Parameters = field(default_factory=dict)

    def open(self, connection: Connection, consistency: Consistency = "strong") -> Collection:
        """Open the collection. Raises RetrieverFailed if it lacks a field, and the errors of `Collection`."""
        collection = Collection(connection, self.collection, id=self.id, vector=self.vector, consistency=consistency)
        named = [self.id, self.vector, self.text, *([self.title] if self.title else [])]
        if not collection.dynamic:
            named += self.metadata or []
        if missing := [field for field in named if field not in collection.fields]:
            raise RetrieverFailed(
                f"the collection {self.collection!r} in Milvus has no field {missing[0]!r}; set the names of its "
                "fields in milvus.collections"
            )
        return collection

    def is_metadata(self, collection: Collection, name: str) -> bool:
        """Whether a field, in the schema or not, belongs to the metadata."""
        if self.metadata is not None:
            return name in self.metadata
        described = collection.fields.get(name)
        if described is None:
            return True
        return name not in (self.id, self.vector, self.text, self.title) and not described.type.endswith("_VECTOR")


class ExistingIndex(SearchedCollection):
    """A read-only `Index`. The recall of its candidates depends on the index of the vectors in Milvus."""

    def __init__(
        self, name: str, info: IndexConfiguration, collection: Collection, described: Existing, *, lite: bool = False
    ) -> None:
        super().__init__(name, info, collection)
        self._described = described
        self._native = Native(collection.fields, self._is_metadata, dynamic=collection.dynamic, lite=lite)
        read = [name for name in collection.fields if self._is_metadata(name)]
        beyond = [name for name in described.metadata or [DYNAMIC] if name not in collection.fields]
        self._metadata = [*read, *(beyond if collection.dynamic else [])]

    def check(self, document: Document) -> None:
        """Raise InvalidInput: the index is read-only."""
        self._refuse()

    def upsert(
        self,
        documents: Sequence[Document],
        embeddings: NDArray[np.floating],
        digests: Sequence[bytes] | None = None,
    ) -> None:
        """Raise InvalidInput: the index is read-only."""
        self._refuse()

    def delete(self, ids: Sequence[str]) -> int:
        """Raise InvalidInput: the index is read-only."""
        self._refuse()

    def delete_matching(self, filter: Filter) -> int:
        """Raise InvalidInput: the index is read-only."""
        self._refuse()

    def documents(self, ids: Sequence[str]) -> dict[str, Document]:
        text, title = self._described.text, self._described.title
        fields = [text, *([title] if title else []), *self._metadata]
        found = {
            id: Document(id, row[text] or "", row[title] if title else None, self._metadata_of(row))
            for id, row in self._collection.read(ids, fields, TEXTS_AT_A_TIME)
        }
        return {id: found[id] for id in ids if id in found}

    def characters(self, ids: Sequence[str]) -> dict[str, int]:
        return {id: len(document.text) + len(document.title or "") for id, document in self.documents(ids).items()}

    def digests(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return nothing: there are no fingerprints."""
        return {}

    @property
    def _words_field(self) -> str | None:
        return None

    def _expression(self, filter: Filter | None) -> str:
        raise AssertionError("a collection of one's own has no words of ours")

    def _is_metadata(self, name: str) -> bool:
        return self._described.is_metadata(self._collection, name)

    def _metadata_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metadata of a row as JSON; fields that are null are left out."""
        return {
            name: _plain(value)
            for name, value in row.items()
            if self._is_metadata(name) and (value is not None or name not in self._collection.fields)
        }

    def _nearest(self, unit: NDArray[np.float32], depth: int, filter: Filter | None) -> Nominated:
        if filter is None:
            return self._searched(unit, depth, "")
        bounds = self._native.bounds(filter.condition)
        if bounds.possible is False:
            return Nominated([], np.empty((0, self._info.dimension), np.float32))
        expression = "" if bounds.possible is True else bounds.possible
        if bounds.possible == bounds.certain:
            return self._searched(unit, depth, expression)
        return self._sifted(unit, depth, expression, filter)

    def _searched(self, unit: NDArray[np.float32], depth: int, expression: str) -> Nominated:
        """Return the nearest that match an expression."""
        if 4 * self._info.dimension * min(depth, SEARCH_LIMIT) <= ANSWER_BYTES:
            found = self._collection.search(unit, depth, [self._described.vector], expression, **self._described.search)
            return self._nominated(found.ids, found.rows)
        named = self._collection.search(unit, depth, [], expression, **self._described.search).ids
        return self._fetched(named)

    def _sifted(self, unit: NDArray[np.float32], depth: int, expression: str, filter: Filter) -> Nominated:
        """Return the nearest that match a filter, from those that match a broader expression."""
        wanted = depth
        while True:
            found = self._collection.search(unit, wanted, self._metadata, expression, **self._described.search)
            passing = [
                id for id, row in zip(found.ids, found.rows, strict=True) if filter.matches(self._metadata_of(row))
            ]
            if len(passing) >= depth or len(found.ids) < wanted:
                return self._fetched(passing)
            if wanted >= MOST_SIFTED:
                said = f"Milvus cannot express the filter; it was looked for among the {wanted:,} nearest documents"
                return self._fetched(passing)._replace(warnings=[said])
            wanted = min(4 * wanted, max(wanted, MOST_SIFTED))

    def _fetched(self, ids: Sequence[str]) -> Nominated:
        fetched = dict(self._collection.vectors(ids))
        return self._nominated(list(fetched), list(fetched.values()))

    def _nominated(self, ids: Sequence[str], rows: Sequence[dict[str, Any]]) -> Nominated:
        matrix = self._collection.matrix(rows)
        return Nominated(ids, unit_rows(matrix, ids).astype(np.float32, copy=False) if ids else matrix)

    def _contents(self, ids: Sequence[str], lengths: Mapping[str, int]) -> list[str]:
        text, title = self._described.text, self._described.title
        found = {
            id: Document(id, row[text] or "", row[title] if title else None).content
            for id, row in self._collection.read(ids, [text, *([title] if title else [])], TEXTS_AT_A_TIME)
        }
        return [found.get(id, "") for id in ids]

    def _unit_rows(self, ids: Sequence[str]) -> Mapping[str, NDArray[np.float32]]:
        fetched = self._fetched(ids)
        return dict(zip(fetched.ids, fetched.vectors, strict=True))

    def _refuse(self) -> NoReturn:
        raise InvalidInput(f"the index {self._name!r} is a collection of your own; change it in Milvus")


def _plain(value: Any) -> Any:
    """Return a value of a row as JSON; Milvus has its own type of sequence for arrays."""
    return value if isinstance(value, (str, int, float, bool, dict, list, type(None))) else list(value)
