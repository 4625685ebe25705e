"""The retriever: whatever gives a query its pool, and ids their documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import Filter
from boundarymorph.selection.pool import Pool, unit_rows

if TYPE_CHECKING:  # a gateway retrieves elsewhere and loads no encoder
    from boundarymorph.retrieval.encoders import Embeddings


VectorSource = Literal["given", "encoder", "lexical", "index", "none"]


@dataclass(frozen=True, eq=False)
class Search:
    """What is looked for in an index: the `depth` documents nearest to a query, or all when there are fewer.

    embedding: (d,), used as it is in place of encoding the query; an index of own vectors needs it. filter: only
    documents whose metadata pass it (`filters`). hybrid: those nearest and the best by words, ranked together.
    """

    query: str
    depth: int
    embedding: ArrayLike | None = None
    filter: Mapping[str, Any] | None = None
    hybrid: bool = False

    @cached_property
    def condition(self) -> Filter | None:
        """The filter, checked. Raises InvalidInput, and LimitExceeded for one too large."""
        return None if self.filter is None else Filter(self.filter)

    @cached_property
    def unit(self) -> NDArray[np.float32]:
        """The (d,) embedding at unit length. Raises InvalidEmbeddings for one without a direction."""
        assert self.embedding is not None
        vector: NDArray[np.float32] = unit_rows(np.reshape(self.embedding, (1, -1)), ["the query"])[0].astype("f4")
        return vector


@dataclass(frozen=True, slots=True)
class Retrieved:
    """A pool, and what its user should know about how it came to be.

    vectors: where those of its documents are from: the request, the service's encoder, the words, an index or nowhere.
    """

    pool: Pool
    warnings: Sequence[str] = ()
    vectors: VectorSource = "index"


class Retriever(Protocol):
    """First-stage retrieval over named indexes."""

    async def retrieve(self, index: str, search: Search) -> Retrieved:
        """What a search finds, with BM25 as a feature if the index keeps words.

        Where no document passes its filter the pool is empty, and a warning says so.
        Raises UnknownIndex, EmptyIndex, InvalidEmbeddings, or InvalidInput for a malformed filter, when the index
        cannot take text queries, keeps no words for a hybrid search, or has no vectors for a query embedding.
        """

    async def documents(self, index: str, ids: Sequence[str]) -> Mapping[str, Document]:
        """The documents of these ids, by id; unknown ones are left out. Raises UnknownIndex."""

    async def characters(self, index: str, ids: Sequence[str]) -> Mapping[str, int]:
        """How long title and text of these ids are together, by id; unknown ones are left out. Raises UnknownIndex."""

    async def embed_query(self, query: str) -> NDArray[np.float32]:
        """(d,) unit vector. Raises InvalidInput without an encoder."""

    async def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        """(n, d) unit rows for n texts. Raises InvalidInput without an encoder."""

    async def close(self) -> None:
        """Release threads, files and connections; calls after this fail."""
