"""An index that is a collection of Milvus, made by this service."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput, LimitExceeded
from boundarymorph.retrieval.catalog import IndexConfiguration
from boundarymorph.retrieval.document import Document, fingerprint
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.halves import unit_from_halves
from boundarymorph.retrieval.milvus.collection import ANSWER_BYTES, TEXTS_AT_A_TIME, Collection
from boundarymorph.retrieval.milvus.searched import SearchedCollection
from boundarymorph.retrieval.milvus.terms import expression, terms_of
from boundarymorph.retrieval.milvus.vectors import VectorCache
from boundarymorph.retrieval.vectors import unit_embeddings

MAX_ID_BYTES = 2_048
MAX_TEXT_BYTES = 65_535  # of a string in Milvus
MAX_JSON_BYTES = 65_536
MAX_TERMS = 4_096  # elements of an array
MAX_DIGEST_LENGTH = 128
_LARGEST_BEAM = 32_768


class MilvusIndex(SearchedCollection):
    """An `Index` whose documents, vectors included, are in Milvus; these are float16, as everywhere."""

    def __init__(
        self, name: str, info: IndexConfiguration, collection: Collection, cache: VectorCache | None = None
    ) -> None:
        """cache: where vectors are kept, so that Milvus sends only their versions."""
        super().__init__(name, info, collection)
        self._cache = cache

    def check(self, document: Document) -> None:
        """As `Index.check`. Milvus bounds the length of strings, and of what filters need of the metadata."""
        _fields(document)

    def upsert(
        self,
        documents: Sequence[Document],
        embeddings: NDArray[np.floating],
        digests: Sequence[bytes] | None = None,
    ) -> None:
        """As `Index.upsert`; raises what `check` does, too.

        Where it fails halfway a part may have been written, and all of it can be sent again.
        """
        if not documents:
            return
        vectors = unit_embeddings(documents, embeddings, self._info.dimension)
        if digests is None:
            digests = [fingerprint(document, row) for document, row in zip(documents, embeddings, strict=True)]
        rows = {
            document.id: _row(document, halves, digest)
            for document, halves, digest in zip(documents, vectors.astype("<f2"), digests, strict=True)
        }
        self._collection.write(list(rows.values()))

    def delete(self, ids: Sequence[str]) -> int:
        present = [id for id, _ in self._collection.read(ids, [])]
        self._collection.delete(present)
        return len(present)

    def documents(self, ids: Sequence[str]) -> dict[str, Document]:
        found = {
            id: Document(id, row["text"], row["title"], row["metadata"])
            for id, row in self._collection.read(ids, ["text", "title", "metadata"], TEXTS_AT_A_TIME)
        }
        return {id: found[id] for id in ids if id in found}

    def characters(self, ids: Sequence[str]) -> dict[str, int]:
        return {id: row["characters"] for id, row in self._collection.read(ids, ["characters"])}

    def digests(self, ids: Sequence[str]) -> dict[str, bytes]:
        return {id: bytes.fromhex(row["digest"]) for id, row in self._collection.read(ids, ["digest"])}

    def _expression(self, filter: Filter) -> str:
        return expression(filter)

    def _nearest(self, unit: NDArray[np.float32], depth: int, filter: str) -> tuple[list[str], NDArray[np.float32]]:
        parameters = {"ef": min(2 * depth, _LARGEST_BEAM)} if self._info.kind == "hnsw" else {}
        whole = self._cache is None and 4 * self._info.dimension * depth <= ANSWER_BYTES
        found = self._collection.search(unit, depth, ["vector" if whole else "version"], filter, **parameters)
        if whole:
            return found.ids, unit_from_halves(_halves([row["vector"] for row in found.rows], self._info.dimension))
        versions = np.array([row["version"] for row in found.rows], np.int64)
        present, halves = self._by_version(found.ids, versions)
        return [id for id, there in zip(found.ids, present, strict=True) if there], unit_from_halves(halves[present])

    def _by_version(
        self, ids: Sequence[str], versions: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float16]]:
        """(n,) which of n documents are still there, and (n, d) vectors of those: kept ones, and the others fetched."""
        halves = np.zeros((len(ids), self._info.dimension), np.float16)
        present = np.zeros(len(ids), np.bool_)
        if self._cache is not None:
            present, kept = self._cache.find(ids, versions)
            halves[present] = kept
        missing = {ids[row]: row for row in np.flatnonzero(~present).tolist()}
        fetched = dict(self._collection.vectors(missing, ["version"]))
        rows = [missing[id] for id in fetched]
        halves[rows] = _halves([row["vector"] for row in fetched.values()], self._info.dimension)
        present[rows] = True
        if self._cache is not None:
            read = np.array([row["version"] for row in fetched.values()], np.int64)
            self._cache.keep(list(fetched), read, halves[rows])
        return present, halves


def _halves(rows: Sequence[Sequence[float]], dimension: int) -> NDArray[np.float16]:
    return np.array(rows, np.float32).reshape(-1, dimension).astype(np.float16)


def _row(document: Document, halves: NDArray[np.float16], digest: bytes) -> dict[str, Any]:
    """A document with its vector as it is in Milvus. Raises as `_fields` does."""
    return {
        **_fields(document),
        "version": int.from_bytes(blake2b(halves.tobytes(), digest_size=8).digest(), signed=True),
        "digest": digest.hex(),
        "vector": halves.astype(np.float32),
    }


def _fields(document: Document) -> dict[str, Any]:
    """A document as it is in Milvus. Raises InvalidInput, or LimitExceeded for what Milvus does not hold."""
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
                f"the {what} of {document.id!r} takes {size:,} {unit}, and Milvus at most {limit:,}; divide it"
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
