"""Sources of a request's candidates: an index, or the request itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.errors import InvalidEmbeddings
from boundarymorph.inference.concurrency import Run
from boundarymorph.reading import counted, has_content
from boundarymorph.retrieval.document import Document, scores_by_rank
from boundarymorph.retrieval.interfaces import Retrieved, Retriever, Search, VectorSource
from boundarymorph.retrieval.lexical_vectors import lexical_vectors
from boundarymorph.retrieval.words import PoolWords
from boundarymorph.selection.pool import Pool

NO_TEXT = "."  # encoded in place of a text without content, which some servers refuse
CHARACTERS_PER_TOKEN = 4.0  # for English text with the tokenizers of current language models


class Ordered(NamedTuple):
    """Candidates in an order. by: what determines the order, in words."""

    pool: Pool
    by: str


class Candidates(Protocol):
    """The candidates of one request. Their texts are read only when they are needed.

    texts_at_hand: whether the texts came with the request; then their ids have no meaning beyond it. distant: whether
    a read takes so long that documents are better read before they are needed.
    """

    texts_at_hand: ClassVar[bool]

    @property
    def distant(self) -> bool: ...

    async def retrieve(self, run: Run) -> Retrieved:
        """Return all candidates with embeddings and scores, in retrieval order; `run` runs what is slow in threads."""

    async def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Return the candidates with these ids, by id, without those deleted in the meantime: the first of them, as
        `Index.documents` does."""

    async def outlines(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Do the same, for metadata alone."""

    async def lengths(self, ids: Sequence[str]) -> NDArray[np.float64]:
        """Return (n,) lengths of n candidates in tokens, at least 1: given, or estimated from their characters. NaN for
        those deleted in the meantime."""

    def ordered(self) -> Ordered | None:
        """Return the candidates in the order known so far, without vectors; None if no order is known."""


@dataclass(frozen=True, slots=True)
class IndexedCandidates:
    """Candidates found by searching an index. distant: whether each read of documents takes a trip to a server."""

    texts_at_hand: ClassVar[bool] = False
    retriever: Retriever
    index: str
    search: Search
    distant: bool = True

    async def retrieve(self, run: Run) -> Retrieved:
        return await self.retriever.retrieve(self.index, self.search)

    async def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        return await self.retriever.documents(self.index, ids)

    async def outlines(self, ids: Sequence[str]) -> Mapping[str, Document]:
        found = await self.retriever.documents(self.index, ids, texts=False)
        return {id: Document(id, "", None, document.metadata) for id, document in found.items()}

    async def lengths(self, ids: Sequence[str]) -> NDArray[np.float64]:
        characters = await self.retriever.characters(self.index, ids)
        return _tokens(np.array([characters.get(id, np.nan) for id in ids]))

    def ordered(self) -> Ordered | None:
        return None


@dataclass
class GivenCandidates:
    """Documents that came with the request.

    embeddings: (N, d), or one (d,) or None per document; missing ones are encoded here, and so is the query. If there
    are none at all and `vectors` is "lexical", the vectors are made from the words, and nothing is encoded.
    scores: (N,) retrieval scores. Without them, documents that are `ranked` are in retrieval order and get the scores
    of a fused ranking, which are more informative than the order alone (docs/evaluation.md). Others are ordered by
    BM25 with lexical vectors, and by inner product with the query with vectors of another kind.
    features: additional (N,) signals. words: whether to note which documents have which words of the query, and to
    compute bm25 over the pool if it is not among the features.
    tokens: (N,) lengths, None where unknown. listed: whether to make no vectors, and return the pool of `Pool.listed`.
    """

    texts_at_hand: ClassVar[bool] = True
    distant: ClassVar[bool] = False
    retriever: Retriever
    query: str
    given: Sequence[Document]
    embeddings: NDArray[np.floating] | Sequence[ArrayLike | None] | None = None
    query_embedding: ArrayLike | None = None
    scores: ArrayLike | None = None
    features: Mapping[str, ArrayLike] = field(default_factory=dict)
    tokens: Sequence[int | None] | None = None
    words: bool = False
    vectors: Literal["lexical", "encoder"] = "lexical"
    ranked: bool = False
    listed: bool = False

    def __post_init__(self) -> None:
        self._features = dict(self.features)

    async def retrieve(self, run: Run) -> Retrieved:
        ids = [document.id for document in self.given]
        if self.listed:
            return Retrieved(Pool.listed(ids), vectors="none")
        lexical = self.vectors == "lexical" and self.embeddings is None and self.query_embedding is None
        by_words = lexical and self.scores is None and not self.ranked
        features, words, terms = self._features, None, None
        if lexical or self.words:
            words = await run(PoolWords.of, [document.content for document in self.given])
            if (by_words or self.words) and "bm25" not in features:
                features["bm25"] = await run(words.bm25, self.query)  # an answer if there is no time for more
            if self.words:
                terms = await run(words.terms, self.query)
        if lexical and words is not None:
            made = _Vectors(*await run(lexical_vectors, words, self.query), "lexical")
        else:
            made = await self._embedded(run)
        scores = features["bm25"] if by_words else self._order
        pool = await run(Pool.of, ids, made.documents, made.query, scores, features, terms)
        if by_words:  # the scores are BM25, so the inner products become the feature
            pool = replace(pool, features={**pool.features, "similarity": await run(_similarity, pool)})
        return Retrieved(pool, made.warnings, made.source)

    async def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        return {id: self._by_id[id] for id in ids}

    async def outlines(self, ids: Sequence[str]) -> Mapping[str, Document]:
        return await self.documents(ids)

    async def lengths(self, ids: Sequence[str]) -> NDArray[np.float64]:
        estimated = dict(
            zip(self._by_id, _tokens(np.array([len(document.content) for document in self.given])), strict=True)
        )
        given = zip(self._by_id, self.tokens or (), strict=False)
        lengths = estimated | {id: tokens for id, tokens in given if tokens is not None}
        return np.array([lengths[id] for id in ids], dtype=np.float64)

    def ordered(self) -> Ordered | None:
        ids = [document.id for document in self.given]
        if self._order is not None:
            return Ordered(Pool.listed(ids, self._order), "the one given")
        bm25 = self._features.get("bm25")
        return None if bm25 is None else Ordered(Pool.listed(ids, bm25), "that of BM25")

    @cached_property
    def _order(self) -> ArrayLike | None:
        """(N,) scores that express the caller's order; None if there is none."""
        if self.scores is None and self.ranked:
            return scores_by_rank(len(self.given))
        return self.scores

    @cached_property
    def _by_id(self) -> dict[str, Document]:
        return {document.id: document for document in self.given}

    async def _embedded(self, run: Run) -> _Vectors:
        """Return the given vectors, completed by the encoder."""
        source: VectorSource = "given"
        warnings = []
        if isinstance(self.embeddings, np.ndarray):
            embeddings = self.embeddings
        else:
            rows = await run(_rows, self.embeddings or [])
            missing = [position for position in range(len(self.given)) if position not in rows]
            if missing:
                texts = [self.given[position].content for position in missing]
                texts = [text if has_content(text) else NO_TEXT for text in texts]
                encoded = await self.retriever.embed_documents(texts)
                rows.update(zip(missing, encoded.vectors, strict=True))
                if encoded.truncated:
                    cut = counted(encoded.truncated, "document was", "documents were")
                    warnings.append(f"{cut} cut to the encoder's maximum length to be embedded")
            if len({row.shape for row in rows.values()}) > 1:
                raise InvalidEmbeddings(
                    "the embeddings have different dimensions"
                    + (", some given and some of this service's encoder; give all of them or none" if missing else "")
                )
            embeddings = await run(np.stack, [rows[position] for position in range(len(self.given))])
            source = "encoder" if missing else "given"
        query = self.query_embedding
        if query is None:
            query = await self.retriever.embed_query(self.query)
        return _Vectors(embeddings, query, source, warnings)


class _Vectors(NamedTuple):
    """Vectors of the documents and of the query, their source, and warnings."""

    documents: ArrayLike
    query: ArrayLike
    source: VectorSource
    warnings: Sequence[str] = ()


def _similarity(pool: Pool) -> NDArray[np.float64]:
    return (pool.embeddings @ pool.query).astype(np.float64)


def _tokens(characters: NDArray[np.integer] | NDArray[np.floating]) -> NDArray[np.float64]:
    return np.maximum(np.ceil(characters / CHARACTERS_PER_TOKEN), 1.0)


def _rows(partial: Sequence[ArrayLike | None]) -> dict[int, NDArray[np.float32]]:
    """Return the given vectors by position. Values too large for float32 become infinite, and the pool rejects them."""
    with np.errstate(over="ignore"):
        return {
            position: np.asarray(vector, dtype=np.float32)
            for position, vector in enumerate(partial)
            if vector is not None
        }
