"""Retrieval from the indexes of a catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.inference.executors import BoundedExecutor
from boundarymorph.retrieval.catalog import WORDS, Catalog, Index
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.encoders import Embeddings, Encoder
from boundarymorph.retrieval.mismatches import mismatches
from boundarymorph.retrieval.retriever import Retrieved, Search

BLOCK = 64  # documents read at a time
CHARACTERS = 2**19  # of documents that come with a pool; those of one block may be more


class IndexRetriever:
    """A `Retriever` over the indexes of a catalog. Searches run in its own threads; with `threads` of them running and
    `waiting` more waiting, further ones raise Overloaded.

    The caller closes the catalog and the encoder. encoder: None if every index has its users' own vectors.
    """

    def __init__(
        self, catalog: Catalog, encoder: Encoder | None, *, threads: int = 4, waiting: int = 512, share: float = 1.0
    ) -> None:
        """share: of the threads and places that one caller gets, as in `Shares`."""
        self._catalog = catalog
        self._encoder = encoder
        self._executor = BoundedExecutor("search", threads=threads, waiting=waiting, share=share)

    async def retrieve(self, index: str, search: Search) -> Retrieved:
        search.condition  # noqa: B018  reject a malformed filter before anything else
        found = await self._executor.run(self._catalog.get, index)
        if search.embedding is None and found.info.kind != WORDS:
            self._refuse_other_encoder(found)
            search = replace(search, embedding=await self.embed_query(search.query))
            self._refuse_other_encoder(found)  # its servers may have changed their model in the meantime
        retrieved = await self._executor.run(_found, found, search)
        if search.condition is None or len(retrieved.pool) or found.info.kind == WORDS:
            return retrieved
        reasons = await self._executor.run(mismatches, found, search)
        return replace(retrieved, warnings=(*retrieved.warnings, "no document passes the filter", *reasons))

    async def documents(self, index: str, ids: Sequence[str]) -> Mapping[str, Document]:
        found = await self._executor.run(self._catalog.get, index)
        return await self._executor.run(found.documents, ids)

    async def characters(self, index: str, ids: Sequence[str]) -> Mapping[str, int]:
        found = await self._executor.run(self._catalog.get, index)
        return await self._executor.run(found.characters, ids)

    async def embed_query(self, query: str) -> NDArray[np.float32]:
        return await self._required_encoder().encode_query(query)

    async def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        return await self._required_encoder().encode_documents(texts)

    async def close(self) -> None:
        await self._executor.close()

    def _required_encoder(self) -> Encoder:
        if self._encoder is None:
            raise InvalidInput("this service runs without an encoder; send embeddings instead of texts")
        return self._encoder

    def _refuse_other_encoder(self, index: Index) -> None:
        built_with = index.info.encoder
        if built_with is None:
            raise InvalidInput(f"the index {index.name!r} holds its users' own vectors; send a query_embedding")
        running = self._encoder.name if self._encoder else None
        if built_with != running:
            raise InvalidInput(
                f"the index {index.name!r} was built with the encoder {built_with!r} and this service runs "
                f"{'no encoder' if running is None else repr(running)}; send a query_embedding or rebuild the index"
            )


def _found(index: Index, search: Search) -> Retrieved:
    """Return what a search finds with the first documents, up to a number and a length in all."""
    retrieved = index.retrieve(search)
    documents: dict[str, Document] = {}
    ids, characters = retrieved.pool.ids[: search.documents], 0
    while ids and characters < CHARACTERS:
        read = index.documents(ids[:BLOCK])
        characters += sum(len(document.content) for document in read.values())
        documents |= read
        ids = ids[BLOCK:]
    return replace(retrieved, documents=documents) if documents else retrieved
