"""Where a request's candidates come from: an index, or the request itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.errors import InvalidEmbeddings
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.retriever import Retrieved, Retriever, Search
from boundarymorph.retrieval.words.lexical import bm25
from boundarymorph.selection.pool import Pool

CHARACTERS_PER_TOKEN = 4.0  # of English text under the tokenizers of today's language models


class Candidates(Protocol):
    """The candidates of one request, whose texts are read only when they are needed.

    texts_at_hand: whether the texts came with the request. Their ids then mean nothing beyond it.
    """

    texts_at_hand: ClassVar[bool]

    async def retrieve(self) -> Retrieved:
        """Embeddings and scores of all candidates, in retrieval order."""

    async def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """The candidates of these ids, by id; those deleted in the meantime are left out."""

    async def lengths(self, ids: Sequence[str]) -> NDArray[np.float64]:
        """(n,) tokens of n candidates, at least 1: as given, else estimated from their characters. NaN for those
        deleted in the meantime."""

    def known_scores(self) -> Mapping[str, float]:
        """Cross-encoder scores that came with the candidates, by id."""

    def given_order(self) -> Pool | None:
        """The candidates in the order of the scores that they came with, without vectors; None without such scores."""


@dataclass(frozen=True, slots=True)
class IndexedCandidates:
    """What a search of an index finds."""

    texts_at_hand: ClassVar[bool] = False
    retriever: Retriever
    index: str
    search: Search

    async def retrieve(self) -> Retrieved:
        return await self.retriever.retrieve(self.index, self.search)

    async def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        return await self.retriever.documents(self.index, ids)

    async def lengths(self, ids: Sequence[str]) -> NDArray[np.float64]:
        characters = await self.retriever.characters(self.index, ids)
        return _tokens(np.array([characters.get(id, np.nan) for id in ids]))

    def known_scores(self) -> Mapping[str, float]:
        return {}

    def given_order(self) -> Pool | None:
        return None


@dataclass(frozen=True)
class GivenCandidates:
    """Documents that came with the request.

    embeddings: (N, d), or one (d,) or None a document; what is missing is encoded here, and so is the query.
    scores: (N,) retrieval scores, by default the inner product with the query. features: further (N,) signals; bm25 is
    computed over the pool where it is not among them and `words` are wanted.
    tokens: (N,) lengths, None where not known. known: cross-encoder scores by id. listed: nothing is encoded, and the
    pool is that of `Pool.listed`.
    """

    texts_at_hand: ClassVar[bool] = True
    retriever: Retriever
    query: str
    given: Sequence[Document]
    embeddings: NDArray[np.floating] | Sequence[ArrayLike | None] | None = None
    query_embedding: ArrayLike | None = None
    scores: ArrayLike | None = None
    features: Mapping[str, ArrayLike] = field(default_factory=dict)
    tokens: Sequence[int | None] | None = None
    known: Mapping[str, float] = field(default_factory=dict)
    words: bool = False
    listed: bool = False

    async def retrieve(self) -> Retrieved:
        ids = [document.id for document in self.given]
        if self.listed:
            return Retrieved(Pool.listed(ids))
        warnings = []
        embeddings = self.embeddings
        if not isinstance(embeddings, np.ndarray):
            embeddings, truncated = await self._complete(embeddings or [None] * len(ids))
            if truncated:
                warnings.append(f"{truncated} documents were cut to the encoder's maximum length to be embedded")
        vector = (
            self.query_embedding if self.query_embedding is not None else await self.retriever.embed_query(self.query)
        )
        features = self.features
        if self.words and "bm25" not in features:
            texts = [document.content for document in self.given]
            features = {**features, "bm25": await asyncio.to_thread(bm25, self.query, texts)}
        pool = await asyncio.to_thread(Pool.of, ids, embeddings, vector, self.scores, features)
        return Retrieved(pool, warnings)

    async def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        return {id: self._by_id[id] for id in ids}

    async def lengths(self, ids: Sequence[str]) -> NDArray[np.float64]:
        estimated = dict(
            zip(self._by_id, _tokens(np.array([len(document.content) for document in self.given])), strict=True)
        )
        given = zip(self._by_id, self.tokens or (), strict=False)
        lengths = estimated | {id: tokens for id, tokens in given if tokens is not None}
        return np.array([lengths[id] for id in ids], dtype=np.float64)

    def known_scores(self) -> Mapping[str, float]:
        return self.known

    def given_order(self) -> Pool | None:
        return None if self.scores is None else Pool.listed([document.id for document in self.given], self.scores)

    @cached_property
    def _by_id(self) -> dict[str, Document]:
        return {document.id: document for document in self.given}

    async def _complete(self, partial: Sequence[ArrayLike | None]) -> tuple[NDArray[np.float32], int]:
        """(N, d) embeddings, those not given encoded, and how many texts were cut for that."""
        missing = [position for position, vector in enumerate(partial) if vector is None]
        rows = await asyncio.to_thread(_rows, partial)
        truncated = 0
        if missing:
            encoded = await self.retriever.embed_documents([self.given[position].content for position in missing])
            rows.update(zip(missing, encoded.vectors, strict=True))
            truncated = encoded.truncated
        if len({row.shape for row in rows.values()}) > 1:
            raise InvalidEmbeddings(
                "the embeddings have different dimensions"
                + (", some given and some of this service's encoder; give all of them or none" if missing else "")
            )
        return await asyncio.to_thread(np.stack, [rows[position] for position in range(len(partial))]), truncated


def _tokens(characters: NDArray[np.integer] | NDArray[np.floating]) -> NDArray[np.float64]:
    return np.maximum(np.ceil(characters / CHARACTERS_PER_TOKEN), 1.0)


def _rows(partial: Sequence[ArrayLike | None]) -> dict[int, NDArray[np.float32]]:
    """The vectors that were given, by position. What float32 cannot hold becomes infinite, which a pool refuses."""
    with np.errstate(over="ignore"):
        return {
            position: np.asarray(vector, dtype=np.float32)
            for position, vector in enumerate(partial)
            if vector is not None
        }
