"""Retrieve from the indexes of a catalog."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.inference.concurrency import FairExecutor
from boundarymorph.notices import Notice
from boundarymorph.retrieval.document import NO_ARTIFACTS, Document, Retrieval, Search
from boundarymorph.retrieval.encoders import Embeddings, Encoder
from boundarymorph.retrieval.filters import AllOf, AnyOf, Compare, Condition, Filter, Not
from boundarymorph.retrieval.interfaces import WORDS, Catalog, Index, IndexConfiguration, instrument
from boundarymorph.retrieval.stores.index import StoreIndex
from boundarymorph.selection.pool import Pool
from boundarymorph.settings import SERVICE

ALIKE = 0.6  # cosine of one text's vectors by one model, with any metadata before it; of others it is about 0
BLOCK = 64  # documents read at a time
MOST_CHECKS = 5  # searches for a document with the type, each for a single result
ANY_VALUE: dict[str, object] = {"text": {"gte": ""}, "number": {"gte": -sys.float_info.max}}
LISTED = 3 / 4  # share of the documents with a pool that are its first; the others are the best by words
CHARACTERS = 2**19  # characters of documents that come with a pool; a single block may have more
UNREADABLE_ARTIFACTS = Notice(
    "unreadable-artifacts", "the calibration and the default 'distinct' of the index cannot be read, and were not used"
)
NOTHING_PASSES = Notice("no-document-passes-filter", "no document passes the filter")
OWN_VECTOR = "send a query_embedding, with each of several queries alone"


class IndexRetriever:
    """A `Retriever` over the indexes of a catalog, with threads of its own.

    The caller closes catalog and encoder.
    """

    def __init__(self, catalog: Catalog, encoder: Encoder | None, *, threads: int = 4, share: float = 1.0) -> None:
        """Start the threads.

        Args:
            catalog: The indexes.
            encoder: None if every index has its users' own vectors.
            threads: The number of threads.
            share: The part of them that one caller may use (`Shares`).
        """
        self._catalog = catalog
        self._encoder = encoder
        self._probed: set[tuple[str, IndexConfiguration, str]] = set()
        self._executor = FairExecutor("search", threads=threads, share=share)

    @instrument
    async def retrieve(self, index: str, search: Search, *, caller: str = "") -> Retrieval:
        search.condition  # noqa: B018  reject a malformed filter before anything else
        found: Index | None = None
        if search.embedding is None:
            found = await self._executor.run(self._catalog.get, index, caller, caller=caller)
            if found.info.kind != WORDS:
                self._refuse_other_encoder(found)
                search = replace(search, embedding=await self._required_encoder().encode_query(search.query, caller))
                self._refuse_other_encoder(found)  # its servers may have changed their model meanwhile
                if isinstance(found, StoreIndex):
                    await self._probe(found, caller)
        return await self._executor.run(self._searched, found, index, search, caller, caller=caller)

    @instrument
    async def documents(
        self, index: str, ids: Sequence[str], *, texts: bool = True, caller: str = ""
    ) -> Mapping[str, Document]:
        return await self._executor.run(
            lambda: self._catalog.get(index, caller).documents(ids, texts=texts), caller=caller
        )

    @instrument
    async def characters(self, index: str, ids: Sequence[str], *, caller: str = "") -> Mapping[str, int]:
        return await self._executor.run(lambda: self._catalog.get(index, caller).characters(ids), caller=caller)

    @instrument
    async def embed_query(self, query: str, *, caller: str = "") -> NDArray[np.float32]:
        return await self._required_encoder().encode_query(query, caller)

    @instrument
    async def embed_documents(self, texts: Sequence[str], *, caller: str = "") -> Embeddings:
        return await self._required_encoder().encode_documents(texts, caller)

    async def close(self) -> None:
        await self._executor.close()

    def _searched(self, found: Index | None, name: str, search: Search, caller: str) -> Retrieval:
        """Return the candidates of a search, with a warning if there are none.

        `found` is the index, if it was looked up before.
        """
        found = self._catalog.get(name, caller) if found is None else found
        artifacts = self._catalog.artifacts(name).read_if_sound()
        retrieved = _found(found, search)
        warnings = [*retrieved.warnings, *([UNREADABLE_ARTIFACTS] if artifacts is None else [])]
        if search.condition is not None and not len(retrieved.pool) and found.info.kind != WORDS:
            warnings += [NOTHING_PASSES, *_mismatches(found, search, search.condition)]
        return replace(retrieved, artifacts=artifacts or NO_ARTIFACTS, warnings=warnings)

    async def _probe(self, index: StoreIndex, caller: str) -> None:
        """Check once per index that the encoder makes the vector that the store has of a document.

        Raises:
            InvalidInput: If it makes another.
        """
        encoder = self._required_encoder()
        probed = (index.name, index.info, encoder.name)
        if probed in self._probed or (sample := await self._executor.run(index.sample, caller=caller)) is None:
            return
        document, vector = sample
        own = (await encoder.encode_documents([document.content], caller)).vectors[0]
        if own.shape != vector.shape:
            raise InvalidInput(
                f"the vectors of the index {index.name!r} have {vector.size} dimensions, and those of the encoder "
                f"{encoder.name!r} have {own.size}; {OWN_VECTOR}"
            )
        if (alike := float(own @ vector)) < ALIKE:
            raise InvalidInput(
                f"the vectors of the index {index.name!r} were not made by the encoder {encoder.name!r}: it gives the "
                f"document {document.id!r} a vector of cosine {alike:.2f} to the one there; {OWN_VECTOR}"
            )
        self._probed.add(probed)

    def _required_encoder(self) -> Encoder:
        if self._encoder is None:
            raise InvalidInput("this service runs without an encoder; send embeddings instead of texts")
        return self._encoder

    def _refuse_other_encoder(self, index: Index) -> None:
        built_with = index.info.encoder
        if built_with is None:
            raise InvalidInput(f"the index {index.name!r} holds its users' own vectors; {OWN_VECTOR}")
        if built_with == SERVICE:
            self._required_encoder()
            return
        running = self._encoder.name if self._encoder else None
        if built_with != running:
            raise InvalidInput(
                f"the index {index.name!r} was built with the encoder {built_with!r} and this service runs "
                f"{'no encoder' if running is None else repr(running)}; {OWN_VECTOR}, or rebuild the index"
            )


def _found(index: Index, search: Search) -> Retrieval:
    retrieved = index.retrieve(search)
    documents = dict(retrieved.documents)
    ids = [id for id in _likely(retrieved.pool, search.documents) if id not in documents]
    characters = 0
    while ids and characters < CHARACTERS:
        read = index.documents(ids[:BLOCK])
        characters += sum(len(document.content) for document in read.values())
        documents |= read
        ids = ids[BLOCK:]
    return replace(retrieved, documents=documents) if documents else retrieved


def _likely(pool: Pool, count: int) -> list[str]:
    """Return the ids of the first of a pool and, with BM25, of the best by it among the others."""
    words = pool.features.get("bm25")
    if words is None:
        return list(pool.ids[:count])
    listed = round(LISTED * count)
    best = listed + np.argsort(-words[listed:], kind="stable")[: count - listed]
    return [*pool.ids[:listed], *(pool.ids[place] for place in best.tolist())]


def _mismatches(index: Index, search: Search, filter: Filter) -> list[Notice]:
    """Return warnings for filtered fields that have no value of the compared type.

    The types are string and number.
    """
    compared = sorted({(".".join(part.path), part.type) for part in _comparisons(filter.condition)})
    warnings = []
    for field, type in [pair for pair in compared if pair[1] in ANY_VALUE][:MOST_CHECKS]:
        if not len(index.retrieve(Search("", 1, search.embedding, {field: ANY_VALUE[type]})).pool):
            noun = "string" if type == "text" else "number"
            said = f"the filter compares {field!r} with a {noun}, and no document has a {noun} there"
            warnings.append(Notice("filter-type-mismatch", said))
    return warnings


def _comparisons(condition: Condition) -> Iterator[Compare]:
    match condition:
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from _comparisons(part)
        case Not(part):
            yield from _comparisons(part)
        case Compare():
            yield condition
