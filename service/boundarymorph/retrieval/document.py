"""Documents, as they are stored, encoded, scored and returned; their retrieval, and the candidates of a request."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import orjson
from numpy.typing import ArrayLike, NDArray

from boundarymorph.errors import InvalidEmbeddings, InvalidInput
from boundarymorph.inference.concurrency import Run
from boundarymorph.notices import Notice
from boundarymorph.reading import counted, has_content
from boundarymorph.retrieval.artifacts import Artifacts
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.lexical_vectors import lexical_vectors
from boundarymorph.retrieval.words import PoolWords
from boundarymorph.selection.pool import Pool, unit_rows

VectorSource = Literal["given", "encoder", "lexical", "index", "none"]
NO_ARTIFACTS = Artifacts()
STOP = 2**24  # bytes of documents after which a read stops
FULL = STOP // 2  # bytes from which a read may have stopped: less, as two sides may measure differently
FEW, MANY = 4, 16  # documents that are read at once, before they are measured: large ones, small ones
WIDEST = 4  # bytes of a character in memory, unless all are ASCII
RANK_CONSTANT = 60.0
NO_TEXT = "."  # encoded in place of a text without content, which some servers refuse
CHARACTERS_PER_TOKEN = 4.0  # for English text with the tokenizers of current language models


@dataclass(frozen=True, slots=True)
class Document:
    """One retrievable unit of text. `id` is unique within an index or a pool; `metadata` is any JSON object."""

    id: str
    text: str
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """The text that the encoder and the cross-encoder read."""
        return f"{self.title}\n{self.text}" if self.title else self.text


def fingerprint(document: Document, embedding: NDArray[np.floating] | None = None) -> bytes:
    """Return 16 bytes that identify a document and any embedding given with it. Raises InvalidInput."""
    content = [document.title, document.text, dict(document.metadata)]
    state = hashlib.blake2b(canonical(document, content), digest_size=16)
    if embedding is not None:
        state.update(np.asarray(embedding, dtype="<f4").tobytes())
    return state.digest()


def canonical(document: Document, value: object) -> bytes:
    """Encode part of a document as JSON with sorted keys. Raises InvalidInput if that is not possible."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise InvalidInput(f"the document {document.id!r} cannot be written as JSON: {error}") from error


Read = Callable[[Sequence[str]], Mapping[str, Document]]


def size_of(document: Document) -> int:
    """Return about how many bytes a document takes in memory, rather too many than too few."""
    text, title = document.text, document.title or ""
    size = len(text) * (1 if text.isascii() else WIDEST) + len(title) * (1 if title.isascii() else WIDEST)
    if not document.metadata:
        return size
    try:
        return size + WIDEST * len(orjson.dumps(dict(document.metadata), default=str, option=orjson.OPT_NON_STR_KEYS))
    except TypeError:  # an integer of more than 64 bits
        return size + WIDEST * len(str(document.metadata))


def size_of_all(documents: Iterable[Document]) -> int:
    return sum(map(size_of, documents))


def first_piece(read: Read, ids: Sequence[str], few: int = FEW, many: int = MANY) -> dict[str, Document]:
    """Return the first of these documents, in order, until they take STOP bytes; few at once, or many small ones."""
    found: dict[str, Document] = {}
    left, size, together = iter(dict.fromkeys(ids)), 0, few
    while size < STOP and (part := list(islice(left, together))):
        there = read(part)
        found |= {id: there[id] for id in part if id in there}
        added = size_of_all(there.values())
        size, together = size + added, many if added * many < STOP else few
    return found


def left_of(ids: Sequence[str], found: Mapping[str, Document]) -> list[str]:
    """Return the ids that a read may have left out: those after the last one that it found, if these are large."""
    if not found or size_of_all(found.values()) < FULL:
        return []
    last = max(place for place, id in enumerate(ids) if id in found)
    return [id for id in ids[last + 1 :] if id not in found]


def in_pieces(read: Read, ids: Sequence[str]) -> Iterator[Mapping[str, Document]]:
    """Yield the documents with these ids, in their order, a piece at a time, as `Index.documents` reads them."""
    left = list(ids)
    while left:
        found = read(left)
        yield found
        left = left_of(left, found)


async def in_awaited_pieces(
    read: Callable[[Sequence[str]], Awaitable[Mapping[str, Document]]], ids: Sequence[str]
) -> AsyncIterator[Mapping[str, Document]]:
    left = list(ids)
    while left:
        found = await read(left)
        yield found
        left = left_of(left, found)


@dataclass(frozen=True, eq=False)
class Search:
    """A search for the `depth` documents nearest to a query, or all if there are fewer. embedding: (d,), in place of
    encoding the query. filter: of the metadata (`filters`). hybrid: fuse the nearest with the best by words. documents:
    how many of those likely to be read come with the pool. directions: whether the main directions of the vectors are
    enough, if the index has them and words; scores are those of the whole vectors."""

    query: str
    depth: int
    embedding: ArrayLike | None = None
    filter: Mapping[str, Any] | None = None
    hybrid: bool = False
    documents: int = 0
    directions: bool = False

    @cached_property
    def condition(self) -> Filter | None:
        """The parsed filter. Raises InvalidInput, or LimitExceeded if it is too large."""
        return None if self.filter is None else Filter(self.filter)

    @cached_property
    def unit(self) -> NDArray[np.float32]:
        """The (d,) embedding at unit length. Raises InvalidEmbeddings if it has no direction."""
        assert self.embedding is not None
        vector: NDArray[np.float32] = unit_rows(np.reshape(self.embedding, (1, -1)), ["the query"])[0].astype("f4")
        return vector


@dataclass(frozen=True, slots=True)
class Retrieved:
    """A pool, and warnings about how it was found. vectors: their source. documents: those that came with it, by id.
    halves: of which `unit_from_halves` made the vectors, None if not known."""

    pool: Pool
    warnings: Sequence[Notice] = ()
    vectors: VectorSource = "index"
    documents: Mapping[str, Document] = field(default_factory=dict)
    artifacts: Artifacts = NO_ARTIFACTS
    halves: NDArray[np.float16] | None = None


class Retriever(Protocol):
    async def retrieve(self, index: str, search: Search) -> Retrieved:
        """Return what a search finds, with BM25 as a feature if the index has words; with a warning if that is nothing.
        Raises UnknownIndex, EmptyIndex, InvalidEmbeddings, or InvalidInput for what the index does not support."""

    async def documents(self, index: str, ids: Sequence[str], *, texts: bool = True) -> Mapping[str, Document]:
        """See `Index.documents`. Raises UnknownIndex."""

    async def characters(self, index: str, ids: Sequence[str]) -> Mapping[str, int]:
        """See `Index.characters`. Raises UnknownIndex."""

    async def embed_query(self, query: str) -> NDArray[np.float32]:
        """Return a (d,) unit vector. Raises InvalidInput if there is no encoder."""

    async def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        """Return (n, d) unit rows for n texts. Raises InvalidInput if there is no encoder."""

    async def close(self) -> None:
        """Release threads, files and connections; later calls fail."""


def scores_by_rank(count: int) -> NDArray[np.float64]:
    """Return (count,) scores for a ranking known only by its order: those of fusing it with no other."""
    return np.asarray(1.0 / (RANK_CONSTANT + np.arange(1, count + 1, dtype=np.float64)))


class Ordered(NamedTuple):
    """Candidates in an order, and what determines it, in words."""

    pool: Pool
    by: str


@dataclass(frozen=True, slots=True)
class IndexedCandidates:
    """Candidates of an index, whose texts are read when needed. texts_at_hand: whether they came with the request, so
    that ids have no meaning beyond it. distant: whether reads are requests to a server."""

    texts_at_hand: ClassVar[bool] = False
    retriever: Retriever
    index: str
    search: Search
    distant: bool = True

    async def retrieve(self, run: Run) -> Retrieved:
        """Return all candidates with embeddings and scores, in retrieval order; `run` runs what is slow in threads."""
        return await self.retriever.retrieve(self.index, self.search)

    async def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Return the first of the candidates with these ids, as `Index.documents` does."""
        return await self.retriever.documents(self.index, ids)

    async def outlines(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Do the same, for metadata alone."""
        found = await self.retriever.documents(self.index, ids, texts=False)
        return {id: Document(id, "", None, document.metadata) for id, document in found.items()}

    async def lengths(self, ids: Sequence[str]) -> NDArray[np.float64]:
        """Return (n,) lengths of n candidates in tokens, given or estimated, at least 1; NaN for those deleted."""
        characters = await self.retriever.characters(self.index, ids)
        return _tokens(np.array([characters.get(id, np.nan) for id in ids]))

    def ordered(self) -> Ordered | None:
        """Return the candidates in the order known so far, without vectors; None if no order is known."""
        return None


@dataclass
class GivenCandidates:
    """Documents that came with the request, with the methods of `IndexedCandidates`.

    embeddings: (N, d), or one (d,) or None per document; missing ones are encoded, and so is the query. If there are
    none and `vectors` is "lexical", they are made from the words.
    scores: (N,) of retrieval. Without them, `ranked` documents get those of a fused ranking, which say more than ranks
    (docs/evaluation.md); others are ordered by BM25 if their vectors are lexical, else by inner product.
    features: (N,) signals. words: whether to compute which documents have which words of the query, and bm25 if no
    feature. tokens: (N,) lengths, None where unknown. listed: whether to make no vectors.
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
        made: tuple[ArrayLike, ArrayLike, VectorSource, list[Notice]]
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
            made = (*await run(lexical_vectors, words, self.query), "lexical", [])
        else:
            made = await self._embedded(run)
        documents, query, source, warnings = made
        scores = features["bm25"] if by_words else self._order
        pool = await run(Pool.of, ids, documents, query, scores, features, terms)
        if by_words:  # the scores are BM25, so the inner products become the feature
            similarity = await run(lambda: (pool.embeddings @ pool.query).astype(np.float64))
            pool = replace(pool, features={**pool.features, "similarity": similarity})
        return Retrieved(pool, warnings, source)

    async def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        return {id: self._by_id[id] for id in ids}

    async def outlines(self, ids: Sequence[str]) -> Mapping[str, Document]:
        return await self.documents(ids)

    async def lengths(self, ids: Sequence[str]) -> NDArray[np.float64]:
        tokens = _tokens(np.array([len(document.content) for document in self.given])).tolist()
        for place, given in enumerate(self.tokens or ()):
            if given is not None:
                tokens[place] = given
        lengths = dict(zip(self._by_id, tokens, strict=True))
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

    async def _embedded(self, run: Run) -> tuple[ArrayLike, ArrayLike, VectorSource, list[Notice]]:
        """Return the given vectors of documents and query, completed by the encoder, their source, and warnings."""
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
                    said = f"{cut} cut to the encoder's maximum length to be embedded"
                    warnings.append(Notice("embedding-truncated", said))
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
        return embeddings, query, source, warnings


Candidates = IndexedCandidates | GivenCandidates


def _tokens(characters: NDArray[np.integer] | NDArray[np.floating]) -> NDArray[np.float64]:
    return np.maximum(np.ceil(characters / CHARACTERS_PER_TOKEN), 1.0)


def _rows(partial: Sequence[ArrayLike | None]) -> dict[int, NDArray[np.float32]]:
    """Return the given vectors by position. Values too large for float32 become infinite, and the pool rejects them."""
    with np.errstate(over="ignore"):
        return {row: np.asarray(vector, np.float32) for row, vector in enumerate(partial) if vector is not None}
