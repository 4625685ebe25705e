"""Find the candidates of a request, and read their vectors, texts, and lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.errors import InvalidEmbeddings
from boundarymorph.inference.concurrency import Run
from boundarymorph.notices import Notice
from boundarymorph.reading import has_content, quantity
from boundarymorph.retrieval.document import Document, Retrieval, Retriever, Search, VectorSource
from boundarymorph.retrieval.lexical_vectors import lexical_vectors
from boundarymorph.retrieval.passages import Cut, Passages, divide
from boundarymorph.retrieval.words import PoolWords
from boundarymorph.selection.pool import Pool

RANK_CONSTANT = 60.0
NO_TEXT = "."  # replaces a text without content, which some servers refuse to encode
CHARACTERS_PER_TOKEN = 4.0  # characters per token of English text with the tokenizers of current language models


def scores_by_rank(count: int) -> NDArray[np.float64]:
    """Return (count,) scores for a ranking without scores, as if it were fused with no other."""
    return np.asarray(1.0 / (RANK_CONSTANT + np.arange(1, count + 1, dtype=np.float64)))


class KnownOrder(NamedTuple):
    """Candidates in an order, and the name of that order in warnings."""

    pool: Pool
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class IndexSource:
    """A search in an index.

    Attributes:
        index: The name of the index.
        search: The query, its vector, and filter.
        distant: Whether each read of documents is a request to a server.
        defaults: Which artifacts of the index apply to the selection.
    """

    index: str
    search: Search
    distant: bool = True
    defaults: frozenset[Literal["calibration", "distinct"]] = frozenset()

    @property
    def query(self) -> str:
        return self.search.query

    def candidates(self, retriever: Retriever, caller: str = "") -> Candidates:
        """Return its candidates, which the retriever finds."""
        return IndexedCandidates(retriever, self, caller)


@dataclass(frozen=True, slots=True, eq=False)
class PoolSource:
    """Documents that came with the request.

    Attributes:
        query: The query that they should answer.
        documents: The N documents.
        embeddings: (N, d), or one (d,) or None per document; missing ones are encoded, and so is the query. If there
            are none at all and `vectors` is "lexical", the vectors are made from the words.
        query_embedding: (d,).
        scores: (N,) retrieval scores. Without them, `ranked` documents get the scores of a fused ranking, since these
            say more than ranks (docs/results.md). Other documents are ordered by BM25 if their vectors are lexical, and
            by inner product with the query if not.
        features: Additional (N,) signals.
        tokens: (N,) lengths, None where unknown.
        words: Whether to compute which documents have which words of the query, and BM25 if it is not given.
        vectors: What makes missing vectors.
        ranked: Whether the documents are in the order of a retriever.
        without_vectors: Whether to make no vectors.
        cut: How long documents become passages; None if all stay whole. It needs `embeddings` of None.
    """

    query: str
    documents: Sequence[Document]
    embeddings: NDArray[np.floating] | Sequence[ArrayLike | None] | None = None
    query_embedding: ArrayLike | None = None
    scores: ArrayLike | None = None
    features: Mapping[str, ArrayLike] = field(default_factory=dict)
    tokens: Sequence[int | None] | None = None
    words: bool = False
    vectors: Literal["lexical", "encoder"] = "lexical"
    ranked: bool = False
    without_vectors: bool = False
    cut: Cut | None = None

    def candidates(self, retriever: Retriever, caller: str = "") -> Candidates:
        """Return its candidates; the retriever embeds documents without a vector."""
        return GivenCandidates(retriever, self, caller)


Source = IndexSource | PoolSource


@dataclass(frozen=True, slots=True)
class IndexedCandidates:
    """Candidates found by searching an index, whose texts are read when they are needed.

    Attributes:
        texts_at_hand: Whether the texts came with the request, so that ids have no meaning beyond it.
        passages: The passages of long documents.
    """

    texts_at_hand: ClassVar[bool] = False
    passages: ClassVar[Passages] = Passages()
    retriever: Retriever
    source: IndexSource
    caller: str = ""

    @property
    def distant(self) -> bool:
        """Whether each read is a request to a server."""
        return self.source.distant

    async def retrieve(self, run: Run) -> Retrieval:
        """Return all candidates with embeddings and scores, in retrieval order.

        `run` runs slow functions in threads.
        """
        return await self.retriever.retrieve(self.source.index, self.source.search, caller=self.caller)

    async def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Return the first of the candidates with these ids, as `Index.documents` does."""
        return await self.retriever.documents(self.source.index, ids, caller=self.caller)

    async def outlines(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Return the candidates as `documents` does, for metadata alone."""
        found = await self.retriever.documents(self.source.index, ids, texts=False, caller=self.caller)
        return {id: Document(id, "", None, document.metadata) for id, document in found.items()}

    async def lengths(self, ids: Sequence[str]) -> NDArray[np.float64]:
        """Return (n,) lengths of n candidates in tokens, at least 1; NaN for deleted ones.

        They are given or estimated.
        """
        characters = await self.retriever.characters(self.source.index, ids, caller=self.caller)
        return _tokens(np.array([characters.get(id, np.nan) for id in ids]))

    def ordered(self) -> KnownOrder | None:
        """Return the candidates in the known order, without vectors, or None without an order."""
        return None


@dataclass
class GivenCandidates:
    """Documents that came with the request, with the methods of `IndexedCandidates`."""

    texts_at_hand: ClassVar[bool] = True
    distant: ClassVar[bool] = False
    retriever: Retriever
    source: PoolSource
    caller: str = ""

    def __post_init__(self) -> None:
        self._features = dict(self.source.features)
        self.passages = Passages()

    async def retrieve(self, run: Run) -> Retrieval:
        warnings = [] if self.source.cut is None else await run(self._divide, self.source.cut)
        source, features = self.source, self._features
        ids = [document.id for document in source.documents]
        if source.without_vectors:
            return Retrieval(Pool.from_ids(ids), vectors="none")
        lexical = source.vectors == "lexical" and source.embeddings is None and source.query_embedding is None
        by_words = lexical and source.scores is None and not source.ranked
        words, terms = None, None
        if lexical or source.words:
            words = await run(PoolWords.from_texts, [document.content for document in source.documents])
            if (by_words or source.words) and "bm25" not in features:
                features["bm25"] = await run(words.bm25, source.query)  # an order in case there is no time for more
            if source.words:
                terms = await run(words.terms, source.query)
        vectors, query, made_by = await self._vectors(run, words if lexical else None, warnings)
        scores = features["bm25"] if by_words else self._order
        pool = await run(Pool.from_embeddings, ids, vectors, query, scores, features, terms)
        if by_words:  # the scores are BM25, so the inner products become the feature
            similarity = await run(lambda: (pool.embeddings @ pool.query).astype(np.float64))
            pool = replace(pool, features={**pool.features, "similarity": similarity})
        return Retrieval(pool, warnings, made_by)

    def _divide(self, cut: Cut) -> list[Notice]:
        """Replace long documents by their passages, and return warnings."""
        source = self.source
        found = divide(source.documents, source.query, cut)
        if found is None:
            return []
        parents = found.parents
        scores = scores_by_rank(len(source.documents)) if source.scores is None and source.ranked else source.scores
        self._features = {name: np.asarray(of)[parents] for name, of in self._features.items() if name != "bm25"}
        self.passages = found.passages
        self.source = replace(
            source,
            documents=found.candidates,
            scores=None if scores is None else np.asarray(scores)[parents],
            tokens=None if source.tokens is None else [source.tokens[place] for place in parents],
        )
        if not found.left_out:
            return []
        said = (
            f"{quantity(found.left_out, 'passage was', 'passages were')} left out of long documents, as "
            "others have more words of the query (limits.document_passages, limits.passages)"
        )
        return [Notice("passages-left-out", said)]

    async def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        return {id: self._by_id[id] for id in ids}

    async def outlines(self, ids: Sequence[str]) -> Mapping[str, Document]:
        return await self.documents(ids)

    async def lengths(self, ids: Sequence[str]) -> NDArray[np.float64]:
        tokens = _tokens(np.array([len(document.content) for document in self.source.documents])).tolist()
        for place, given in enumerate(self.source.tokens or ()):
            if given is not None:
                tokens[place] = given
        lengths = dict(zip(self._by_id, tokens, strict=True))
        return np.array([lengths[id] for id in ids], dtype=np.float64)

    def ordered(self) -> KnownOrder | None:
        ids = [document.id for document in self.source.documents]
        if self._order is not None:
            return KnownOrder(Pool.from_ids(ids, self._order), "the one given")
        bm25 = self._features.get("bm25")
        return None if bm25 is None else KnownOrder(Pool.from_ids(ids, bm25), "BM25's")

    @cached_property
    def _order(self) -> ArrayLike | None:
        """Return (N,) scores that express the caller's order, or None if the caller gave no order."""
        if self.source.scores is None and self.source.ranked:
            return scores_by_rank(len(self.source.documents))
        return self.source.scores

    @cached_property
    def _by_id(self) -> dict[str, Document]:
        return {document.id: document for document in self.source.documents}

    async def _vectors(
        self, run: Run, words: PoolWords | None, warnings: list[Notice]
    ) -> tuple[ArrayLike, ArrayLike, VectorSource]:
        """Return the vectors of documents and query, and their source. It adds to the warnings.

        They are made from these words. Without words, the encoder makes those that are not given.
        """
        if words is not None:
            return *await run(lexical_vectors, words, self.source.query), "lexical"
        given, query = self.source.embeddings, self.source.query_embedding
        made_by: VectorSource = "given"
        if isinstance(given, np.ndarray):
            vectors = given
        else:
            vectors, made_by = await self._complete(run, given or [], warnings)
        if query is None:
            query = await self.retriever.embed_query(self.source.query, caller=self.caller)
        return vectors, query, made_by

    async def _complete(
        self, run: Run, given: Sequence[ArrayLike | None], warnings: list[Notice]
    ) -> tuple[NDArray[np.floating], VectorSource]:
        """Return the given vectors of documents, completed by the encoder, and their source."""
        documents = self.source.documents
        rows = await run(_rows, given)
        missing = [position for position in range(len(documents)) if position not in rows]
        if missing:
            texts = [documents[position].content for position in missing]
            texts = [text if has_content(text) else NO_TEXT for text in texts]
            encoded = await self.retriever.embed_documents(texts, caller=self.caller)
            rows.update(zip(missing, encoded.vectors, strict=True))
            if encoded.truncated:
                cut = quantity(encoded.truncated, "document was", "documents were")
                said = f"{cut} cut to the encoder's maximum length to be embedded"
                warnings.append(Notice("embedding-truncated", said))
        if len({row.shape for row in rows.values()}) > 1:
            raise InvalidEmbeddings(
                "the embeddings have different dimensions"
                + (", some given and some of this service's encoder; give all of them or none" if missing else "")
            )
        vectors = await run(np.stack, [rows[position] for position in range(len(documents))])
        return vectors, "encoder" if missing else "given"


Candidates = IndexedCandidates | GivenCandidates


def _tokens(characters: NDArray[np.integer] | NDArray[np.floating]) -> NDArray[np.float64]:
    return np.maximum(np.ceil(characters / CHARACTERS_PER_TOKEN), 1.0)


def _rows(partial: Sequence[ArrayLike | None]) -> dict[int, NDArray[np.float32]]:
    """Return the given vectors by position.

    Values that are too large for float32 become infinite, and the pool rejects them.
    """
    with np.errstate(over="ignore"):
        return {row: np.asarray(vector, np.float32) for row, vector in enumerate(partial) if vector is not None}
