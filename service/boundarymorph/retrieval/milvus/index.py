"""An index stored in a collection of Milvus that this service created."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput, LimitExceeded
from boundarymorph.retrieval.catalog import IndexConfiguration
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import Condition
from boundarymorph.retrieval.milvus.collection import (
    ANSWER_BYTES,
    SEARCH_LIMIT,
    TEXTS_AT_A_TIME,
    FoundRows,
    MilvusCollection,
)
from boundarymorph.retrieval.milvus.structures import Structures
from boundarymorph.retrieval.milvus.terms import expression, terms_of
from boundarymorph.retrieval.stores.bounds import Bounds
from boundarymorph.retrieval.stores.table import Found
from boundarymorph.retrieval.stores.times import Kind

MAX_ID_BYTES = 2_048
MAX_TEXT_BYTES = 65_535  # limit of a string in Milvus
MAX_JSON_BYTES = 65_536
MAX_TERMS = 4_096  # elements of an array
MAX_DIGEST_LENGTH = 128
WORDS = "words"  # the field with Milvus's BM25 of CONTENT
CONTENT = "content"
_LONGEST = 4  # bytes of a character in UTF-8
_MARGIN = 20  # nominate 1/_MARGIN more, since half precision rounds the query


class MilvusIndex:
    """A `Writable` table whose documents and vectors are in Milvus. The vectors are float16, as in all indexes.

    If `upsert` fails halfway, some documents may have been written; the whole call can be repeated.
    """

    def __init__(self, info: IndexConfiguration, collection: MilvusCollection, structures: Structures) -> None:
        self._info = info
        self._collection = collection
        self._structures = structures
        self.dimension = info.dimension
        self.words: Literal["none", "order", "bm25"] = "bm25" if WORDS in collection.fields else "none"

    def time(self, path: tuple[str, ...]) -> Kind | None:
        """See `Table.time`: metadata are JSON, which has no times."""
        return None

    @property
    def stale(self) -> bool:
        return self._collection.stale

    def count(self) -> int:
        return self._collection.count()

    def check(self, document: Document) -> None:
        """See `Writable.check`. Milvus limits the length of strings, and the metadata that filters need."""
        _fields(document)

    def upsert(self, documents: Sequence[Document], vectors: NDArray[np.floating], digests: Sequence[bytes]) -> None:
        """See `Writable.upsert`. Also raises what `check` raises."""
        rows = zip(documents, vectors.astype("<f2"), digests, strict=True)
        self._collection.write([self._row(document, halves, digest) for document, halves, digest in rows])

    def delete(self, ids: Sequence[str]) -> int:
        present = [id for id, _ in self._collection.read(ids, [], strong=True)]
        self._collection.delete(present)
        return len(present)

    def delete_matching(self, condition: Condition) -> int:
        return self._collection.delete_matching(expression(condition))

    def documents(self, ids: Sequence[str]) -> dict[str, Document]:
        return {
            id: _document(id, row)
            for id, row in self._collection.read(ids, ["text", "title", "metadata", *self._titled], TEXTS_AT_A_TIME)
        }

    def characters(self, ids: Sequence[str]) -> dict[str, int]:
        return {id: row["characters"] for id, row in self._collection.read(ids, ["characters"])}

    def digests(self, ids: Sequence[str]) -> dict[str, bytes]:
        return {id: bytes.fromhex(row["digest"]) for id, row in self._collection.read(ids, ["digest"], strong=True)}

    def bounds(self, condition: Condition) -> Bounds[str]:
        return Bounds.exactly(expression(condition))

    def best(self, query: str, depth: int, where: Any, among: Sequence[str] | None = None) -> Mapping[str, float]:
        if among is not None:
            return self._collection.word_scores(WORDS, query, among)
        return self._collection.search_words(WORDS, query, depth, "" if where is True else where)

    def search(
        self, query: NDArray[np.float32], depth: int, where: Any, *, vectors: bool = True, documents: bool = False
    ) -> Found:
        """See `Table.search`; the documents are left to `documents`."""
        if self._collection.halves:
            depth += depth // _MARGIN + 16
        whole = 4 * self.dimension * min(depth, SEARCH_LIMIT) <= ANSWER_BYTES
        lengths = ["characters"] if documents else []
        found = self._found(query, depth, [*(["vector"] if whole else []), *lengths], "" if where is True else where)
        read: dict[str, Document] = {}
        for portion in _portions(found) if documents else ():
            read |= self.contents(portion)
        if whole:
            return Found(found.ids, self._collection.matrix(found.rows).astype(np.float16), read, exact=False)
        return self.vectors(found.ids)._replace(documents=read, exact=False)

    def contents(self, ids: Sequence[str]) -> dict[str, Document]:
        """Return documents without metadata, in one answer."""
        fields = ["title", "text", *self._titled]
        return {id: _document(id, row) for id, row in self._collection.read(ids, fields)}

    def vectors(self, ids: Sequence[str]) -> Found:
        fetched = dict(self._collection.vectors(ids))
        return Found(list(fetched), self._collection.matrix(list(fetched.values())).astype(np.float16))

    def _found(self, unit: NDArray[np.float32], depth: int, fields: Sequence[str], filter: str) -> FoundRows:
        kind = self._info.kind
        parameters = self._structures.searching(kind, min(depth, SEARCH_LIMIT))
        found = self._collection.search(unit, depth, fields, filter, **parameters)
        if len(found.ids) < depth and (more := self._structures.exhaustive(kind)):
            return self._collection.search(unit, depth, fields, filter, **{**parameters, **more})
        return found

    @property
    def _titled(self) -> list[str]:
        """The field that tells whether there is a title; collections of earlier releases lack it."""
        return ["titled"] if "titled" in self._collection.fields else []

    def _row(self, document: Document, halves: NDArray[np.float16], digest: bytes) -> dict[str, Any]:
        """Return a document with its vector as a row of Milvus. Raises as `_fields` does."""
        row = {
            **_fields(document),
            "version": 0,  # of a cache that earlier releases had; their collections require it
            "digest": digest.hex(),
            "vector": halves if self._collection.halves else halves.astype(np.float32),
        }
        if self._titled:
            row |= {"title": document.title or "", "titled": document.title is not None}
        if CONTENT in self._collection.fields:
            row[CONTENT] = document.content.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
        return row


def _portions(found: FoundRows) -> Iterator[list[str]]:
    """Yield the ids in groups whose texts have a bounded total size."""
    portion: list[str] = []
    size = 0
    for id, row in zip(found.ids, found.rows, strict=True):
        size += _LONGEST * row["characters"]
        if portion and size > ANSWER_BYTES:
            yield portion
            portion, size = [], _LONGEST * row["characters"]
        portion.append(id)
    yield portion


def _document(id: str, row: Mapping[str, Any]) -> Document:
    return Document(id, row["text"], row["title"] if row.get("titled", True) else None, row.get("metadata", {}))


def _fields(document: Document) -> dict[str, Any]:
    """Return a document as fields of Milvus. Raises InvalidInput, or LimitExceeded if it is too large for Milvus."""
    try:
        metadata = orjson.dumps(dict(document.metadata))
    except TypeError as error:
        raise InvalidInput(f"the metadata of {document.id!r} cannot be written as JSON: {error}") from error
    read = orjson.loads(metadata)
    terms, bounds = terms_of(read)
    for what, size, limit, unit in (
        ("id", len(document.id.encode()), MAX_ID_BYTES, "bytes"),
        ("title", len((document.title or "").encode()), MAX_TEXT_BYTES, "bytes"),
        ("text", len(document.text.encode()), MAX_TEXT_BYTES, "bytes"),
        ("metadata", max(len(metadata), len(orjson.dumps(bounds))), MAX_JSON_BYTES, "bytes as filters need it"),
        ("metadata", len(terms), MAX_TERMS, "distinct fields and values"),
    ):
        if size > limit:
            raise LimitExceeded(
                f"the {what} of {document.id!r} takes {size:,} {unit}, and Milvus allows {limit:,}; divide it"
            )
    return {
        "id": document.id,
        "characters": len(document.text) + len(document.title or ""),
        "title": document.title,
        "text": document.text,
        "metadata": read,
        "terms": terms,
        "bounds": bounds,
    }
