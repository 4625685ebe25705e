"""Define documents as they are stored, encoded, scored and returned, and their retrieval."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, takewhile
from typing import Any, Literal, Protocol

import numpy as np
import orjson
from numpy.typing import ArrayLike, NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.notices import Notice
from boundarymorph.retrieval.artifacts import Artifacts
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.filters import Filter
from boundarymorph.selection.pool import Pool, unit_rows

VectorSource = Literal["given", "encoder", "lexical", "index", "none"]
NO_ARTIFACTS = Artifacts()
STOP = 2**24  # bytes of documents after which a read stops
FULL = STOP // 2  # bytes from which a read may have stopped: fewer, because two sides may measure differently
FEW, MANY = 4, 16  # documents to read at once before their sizes are measured: large ones, small ones
WIDEST = 4  # bytes of a character in memory, unless all are ASCII


@dataclass(frozen=True, slots=True)
class Document:
    """One retrievable unit of text.

    Attributes:
        id: Unique within an index or a pool.
        text: The text.
        title: The title, if any.
        metadata: Any JSON object.
    """

    id: str
    text: str
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """The text that the encoder and the cross-encoder read."""
        return f"{self.title}\n{self.text}" if self.title else self.text


def fingerprint(document: Document, embedding: NDArray[np.floating] | None = None) -> bytes:
    """Return 16 bytes that identify a document and any embedding given with it.

    Raises:
        InvalidInput: If it cannot be encoded.
    """
    content = [document.title, document.text, dict(document.metadata)]
    state = hashlib.blake2b(canonical(document, content), digest_size=16)
    if embedding is not None:
        state.update(np.asarray(embedding, dtype="<f4").tobytes())
    return state.digest()


def canonical(document: Document, value: object) -> bytes:
    """Encode part of a document as JSON with sorted keys.

    Raises:
        InvalidInput: If that is not possible.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise InvalidInput(f"the document {document.id!r} cannot be written as JSON: {error}") from error


Reader = Callable[[Sequence[str]], Mapping[str, Document]]


def size_of(document: Document) -> int:
    """Return an estimate, rather too high than too low, of a document's bytes in memory."""
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


def first_piece(read: Reader, ids: Sequence[str], few: int = FEW, many: int = MANY) -> dict[str, Document]:
    """Return the first of these documents, in order, until they take STOP bytes.

    They are read `few` at once, or `many` if the documents before were small.
    """
    found: dict[str, Document] = {}
    left, size, together = iter(dict.fromkeys(ids)), 0, few
    while size < STOP and (part := list(islice(left, together))):
        there = read(part)
        found |= {id: there[id] for id in part if id in there}
        added = size_of_all(there.values())
        size, together = size + added, many if added * many < STOP else few
    return found


def unread_ids(ids: Sequence[str], found: Mapping[str, Document]) -> list[str]:
    """Return the ids that a read may have left out.

    They are those after the last one that it found, if the documents are large.
    """
    left = list(takewhile(lambda id: id not in found, reversed(ids)))
    return left[::-1] if left and found and size_of_all(found.values()) >= FULL else []


def in_pieces(read: Reader, ids: Sequence[str]) -> Iterator[Mapping[str, Document]]:
    """Yield the documents with these ids, in order, a piece at a time.

    Each piece is read as by `Index.documents`.
    """
    left = list(ids)
    while left:
        found = read(left)
        yield found
        left = unread_ids(left, found)


async def in_awaited_pieces(
    read: Callable[[Sequence[str]], Awaitable[Mapping[str, Document]]], ids: Sequence[str]
) -> AsyncIterator[Mapping[str, Document]]:
    """Yield pieces as `in_pieces` does, with `Retriever.documents`."""
    left = list(ids)
    while left:
        found = await read(left)
        yield found
        left = unread_ids(left, found)


@dataclass(frozen=True, eq=False)
class Search:
    """A search for the `depth` documents nearest to a query, or all if there are fewer.

    Attributes:
        embedding: (d,), instead of encoding the query.
        filter: A filter of the metadata (`filters`).
        hybrid: Whether to fuse the nearest with the best by words.
        documents: How many documents that are likely to be read come with the pool.
        directions: Whether the main directions of the vectors suffice, if the index has them and words. Scores are
            those of the whole vectors.
    """

    query: str
    depth: int
    embedding: ArrayLike | None = None
    filter: Mapping[str, Any] | None = None
    hybrid: bool = False
    documents: int = 0
    directions: bool = False

    @cached_property
    def condition(self) -> Filter | None:
        """The parsed filter.

        Raises InvalidInput, or LimitExceeded if it is too large.
        """
        return None if self.filter is None else Filter(self.filter)

    @cached_property
    def unit(self) -> NDArray[np.float32]:
        """The (d,) embedding at unit length. Raises InvalidEmbeddings if it has no direction."""
        assert self.embedding is not None
        vector: NDArray[np.float32] = unit_rows(np.reshape(self.embedding, (1, -1)), ["the query"])[0].astype("f4")
        return vector


@dataclass(frozen=True, slots=True)
class Retrieval:
    """A pool, and warnings about its retrieval.

    Attributes:
        vectors: The source of the vectors.
        documents: The documents that came with it, by id.
        artifacts: The artifacts of the index.
        halves: The rows from which `unit_from_halves` made the vectors; None if not known.
    """

    pool: Pool
    warnings: Sequence[Notice] = ()
    vectors: VectorSource = "index"
    documents: Mapping[str, Document] = field(default_factory=dict)
    artifacts: Artifacts = NO_ARTIFACTS
    halves: NDArray[np.float16] | None = None


class Retriever(Protocol):
    """First-stage retrieval over named indexes.

    `caller` names the caller that the work is for; "" is the service itself.
    """

    async def retrieve(self, index: str, search: Search, *, caller: str = "") -> Retrieval:
        """Return the candidates of a search, with a warning if there are none.

        BM25 is a feature if the index has words.

        Raises:
            UnknownIndex: If there is no such index.
            EmptyIndex: If it has no documents.
            InvalidEmbeddings: If the query's vector does not fit.
            InvalidInput: If the index does not support the search.
        """

    async def documents(
        self, index: str, ids: Sequence[str], *, texts: bool = True, caller: str = ""
    ) -> Mapping[str, Document]:
        """Return documents as `Index.documents` does. Raises UnknownIndex."""

    async def characters(self, index: str, ids: Sequence[str], *, caller: str = "") -> Mapping[str, int]:
        """Return lengths as `Index.characters` does. Raises UnknownIndex."""

    async def embed_query(self, query: str, *, caller: str = "") -> NDArray[np.float32]:
        """Return a (d,) unit vector. Raises InvalidInput if there is no encoder."""

    async def embed_documents(self, texts: Sequence[str], *, caller: str = "") -> Embeddings:
        """Return (n, d) unit rows for n texts. Raises InvalidInput if there is no encoder."""

    async def close(self) -> None:
        """Release threads, files, and connections; later calls fail."""
