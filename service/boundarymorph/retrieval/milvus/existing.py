"""An index that is a collection of its users' own, which they made and fill in Milvus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput, RetrieverFailed
from boundarymorph.retrieval.catalog import IndexConfiguration
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.milvus.collection import ANSWER_BYTES, TEXTS_AT_A_TIME, Collection
from boundarymorph.retrieval.milvus.connection import Connection
from boundarymorph.retrieval.milvus.searched import SearchedCollection
from boundarymorph.selection.pool import unit_rows


@dataclass(frozen=True, slots=True)
class Existing:
    """A collection that is there, and what its fields are called.

    title: None where there is none; encoder: the name of the one that made its vectors, None where queries come with
    their own.
    """

    collection: str
    id: str
    vector: str
    text: str
    title: str | None
    encoder: str | None

    def open(self, connection: Connection) -> Collection:
        """The collection. Raises RetrieverFailed when it lacks a field, and what `Collection` raises."""
        collection = Collection(connection, self.collection, id=self.id, vector=self.vector)
        named = [self.id, self.vector, self.text, *([self.title] if self.title else [])]
        if missing := [field for field in named if field not in collection.fields]:
            raise RetrieverFailed(
                f"the collection {self.collection!r} in Milvus has no field {missing[0]!r}; say in milvus.collections "
                "what its fields are called"
            )
        return collection


class ExistingIndex(SearchedCollection):
    """An `Index` that is only read. Which candidates there are depends on the index that its vectors have in Milvus."""

    def __init__(self, name: str, info: IndexConfiguration, collection: Collection, described: Existing) -> None:
        super().__init__(name, info, collection)
        self._described = described

    def check(self, document: Document) -> None:
        """Raises InvalidInput."""
        self._refuse()

    def upsert(
        self,
        documents: Sequence[Document],
        embeddings: NDArray[np.floating],
        digests: Sequence[bytes] | None = None,
    ) -> None:
        """Raises InvalidInput."""
        self._refuse()

    def delete(self, ids: Sequence[str]) -> int:
        """Raises InvalidInput."""
        self._refuse()

    def documents(self, ids: Sequence[str]) -> dict[str, Document]:
        text, title = self._described.text, self._described.title
        fields = [text, title] if title else [text]
        found = {
            id: Document(id, row[text] or "", row[title] if title else None)
            for id, row in self._collection.read(ids, fields, TEXTS_AT_A_TIME)
        }
        return {id: found[id] for id in ids if id in found}

    def characters(self, ids: Sequence[str]) -> dict[str, int]:
        return {id: len(document.text) + len(document.title or "") for id, document in self.documents(ids).items()}

    def digests(self, ids: Sequence[str]) -> dict[str, bytes]:
        """None is known of any."""
        return {}

    def _expression(self, filter: Filter) -> str:
        raise InvalidInput(f"the index {self._name!r} is a collection of your own, which takes no filter")

    def _nearest(self, unit: NDArray[np.float32], depth: int, filter: str) -> tuple[list[str], NDArray[np.float32]]:
        vector, dimension = self._described.vector, self._info.dimension
        if 4 * dimension * depth <= ANSWER_BYTES:
            found = self._collection.search(unit, depth, [vector], filter)
            ids, rows = found.ids, [row[vector] for row in found.rows]
        else:
            named = self._collection.search(unit, depth, [], filter).ids
            fetched = {id: row[vector] for id, row in self._collection.vectors(named)}
            ids, rows = list(fetched), list(fetched.values())
        if not ids:
            return [], np.empty((0, dimension), np.float32)
        return ids, unit_rows(np.array(rows, np.float32), ids).astype(np.float32, copy=False)

    def _refuse(self) -> NoReturn:
        raise InvalidInput(f"the index {self._name!r} is a collection of your own; change it in Milvus")
