"""The retriever: whatever gives a query its pool, and ids their documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.retrieval.document import Document
from boundarymorph.selection.pool import Pool

if TYPE_CHECKING:  # a gateway retrieves elsewhere and loads no encoder
    from boundarymorph.retrieval.encoders import Embeddings


@dataclass(frozen=True, slots=True)
class Retrieved:
    """A pool, and what its user should know about how it came to be."""

    pool: Pool
    warnings: Sequence[str] = ()


class Retriever(Protocol):
    """First-stage retrieval over named indexes."""

    async def retrieve(
        self,
        index: str,
        query: str,
        depth: int,
        query_embedding: ArrayLike | None = None,
        *,
        filter: Mapping[str, Any] | None = None,
        hybrid: bool = False,
    ) -> Retrieved:
        """The `depth` documents nearest to the query, or all when there are fewer, with their BM25 as a feature if the
        index keeps words.

        query_embedding: (d,), used as it is in place of encoding the query; an index of own vectors needs it. filter:
        only documents whose metadata pass it (`filters`); where none does the pool is empty, and a warning says so.
        hybrid: those nearest and the best by words, ranked together.
        Raises UnknownIndex, EmptyIndex, InvalidEmbeddings, or InvalidInput for a malformed filter, and when the index
        cannot take text queries or keeps no words for a hybrid search.
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
