"""A cheap encoder, whose vectors have the text as their seed, and readers of indexes."""

from collections.abc import AsyncIterable, Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.retrieval.document import Search
from boundarymorph.retrieval.encoders import Embeddings, Encoder
from boundarymorph.retrieval.interfaces import Index
from boundarymorph.retrieval.local.catalog import LocalIndex
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.vectors import TrainingPolicy
from boundarymorph.retrieval.ranking import FusedRanking
from boundarymorph.retrieval.uploads import BadLine, IngestReport, ParsedDocument, ingest_batches
from boundarymorph.selection import Pool


def vector_of(text: str, dimension: int = 32) -> NDArray[np.float32]:
    seed = int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
    vector = np.random.default_rng(seed).standard_normal(dimension)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def nearest(index: Index, query: ArrayLike, depth: int) -> Pool:
    """Return the documents of an index that are nearest to a vector."""
    return index.retrieve(Search("", depth, query)).pool


async def ingest(
    index: Index,
    encoder: Encoder | None,
    entries: AsyncIterable[ParsedDocument | BadLine],
    *,
    on_progress: Callable[[IngestReport], None] = lambda report: None,
    **options: Any,
) -> IngestReport:
    """Write a whole upload; `on_progress` is called after each batch."""
    report = IngestReport()
    async for report in ingest_batches(index, encoder, entries, **options):
        on_progress(report)
    return report


class Words:
    """The words of a store, as searches read them through an index."""

    def __init__(self, store: DocumentStore, policy: TrainingPolicy | None = None) -> None:
        self.index = LocalIndex("words", store.path, policy=policy)
        self.index.page_rows = store.page_rows

    def best(self, query: str, depth: int) -> FusedRanking:
        with self.index._up_to_date() as view:
            assert view.words is not None
            rows, scores = view.words.best(query, depth, view.rows.alive)
            return FusedRanking([view.rows.ids[row] for row in rows.tolist()], scores)

    def bm25(self, query: str, ids: Sequence[str]) -> NDArray[np.float64]:
        with self.index._up_to_date() as view:
            assert view.words is not None
            rows = {view.rows.ids[row]: row for row in np.flatnonzero(view.rows.alive)}
            return view.words.scores(query, np.array([rows[id] for id in ids], np.int64))


class SeededEncoder:
    """An `Encoder` that draws a text's vector from a generator with the text as its seed.

    It keeps the texts, and counts those of over 100 characters as truncated.
    """

    name = "seeded"
    dimension = 32

    def __init__(self) -> None:
        self.encoded: list[str] = []

    async def check(self) -> None:
        await self.encode_query("probe")

    async def encode_query(self, text: str, caller: str = "") -> NDArray[np.float32]:
        return vector_of(text)

    async def encode_documents(self, texts: Sequence[str], caller: str = "") -> Embeddings:
        self.encoded += texts
        vectors = np.array([vector_of(text) for text in texts], dtype=np.float32).reshape(-1, self.dimension)
        return Embeddings(vectors, truncated=sum(len(text) > 100 for text in texts))

    async def close(self) -> None:
        pass
