"""The interface of a retriever, which finds the pool for a query and the documents for ids, and the traces, metrics and
Server-Timing of its calls."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.errors import BoundaryMorphError
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import Filter
from boundarymorph.selection.pool import Pool, unit_rows
from boundarymorph.telemetry import metrics, tracing

if TYPE_CHECKING:  # a gateway uses a remote retriever and does not import encoders
    from boundarymorph.retrieval.encoders import Embeddings


VectorSource = Literal["given", "encoder", "lexical", "index", "none"]
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


@dataclass(frozen=True, eq=False)
class Search:
    """A search in an index for the `depth` documents nearest to a query, or all if there are fewer.

    embedding: (d,), used unchanged instead of encoding the query; required by an index of the users' own vectors.
    filter: only documents whose metadata match it (`filters`). hybrid: fuse the nearest with the best by words.
    documents: how many of the first candidates to return with the pool, as far as they are not long.
    directions: whether the vectors' main directions are enough, if the index has learned them and has words. Scores are
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
    """A pool, and warnings about how it was found.

    vectors: the source of its vectors: the request, the service's encoder, the words, an index, or nowhere. documents:
    those of the pool that came with it, by id; the others are read when they are needed.
    """

    pool: Pool
    warnings: Sequence[str] = ()
    vectors: VectorSource = "index"
    documents: Mapping[str, Document] = field(default_factory=dict)


class Retriever(Protocol):
    """First-stage retrieval over named indexes."""

    async def retrieve(self, index: str, search: Search) -> Retrieved:
        """Return what a search finds, with BM25 as a feature if the index has words.

        If no document matches the filter, the pool is empty and a warning says so.
        Raises UnknownIndex, EmptyIndex, InvalidEmbeddings, or InvalidInput: for a malformed filter, or for a text
        query, hybrid search or query embedding that the index does not support.
        """

    async def documents(self, index: str, ids: Sequence[str], *, texts: bool = True) -> Mapping[str, Document]:
        """Return the documents with these ids as `Index.documents` does: the first of them. Raises UnknownIndex."""

    async def characters(self, index: str, ids: Sequence[str]) -> Mapping[str, int]:
        """Return the characters of title and text together, by id, without unknown ids. Raises UnknownIndex."""

    async def embed_query(self, query: str) -> NDArray[np.float32]:
        """Return a (d,) unit vector. Raises InvalidInput if there is no encoder."""

    async def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        """Return (n, d) unit rows for n texts. Raises InvalidInput if there is no encoder."""

    async def close(self) -> None:
        """Release threads, files and connections; later calls fail."""


def observed(method: Callable[Given, Awaitable[Answer]]) -> Callable[Given, Coroutine[Any, Any, Answer]]:
    """Make each call of a retriever's method a span and an observation; its outcome is ok, the slug of an error, or
    other."""
    name = method.__name__

    @wraps(method)
    async def call(*given: Given.args, **named: Given.kwargs) -> Answer:
        start, outcome = time.perf_counter(), "other"
        try:
            with tracing.span(f"retriever.{name}"):
                answer = await method(*given, **named)
            outcome = "ok"
            return answer
        except BoundaryMorphError as error:
            outcome = error.slug
            raise
        finally:
            seconds = time.perf_counter() - start
            metrics.retriever_seconds.labels(name, outcome).observe(seconds)
            tracing.add(name, seconds)

    return call
