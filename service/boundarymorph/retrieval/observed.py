"""Traces, metrics and Server-Timing of the retriever."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.retriever import Retrieved, Retriever, Search
from boundarymorph.telemetry import metrics, timing, tracing

if TYPE_CHECKING:  # a gateway does not import encoders
    from boundarymorph.retrieval.encoders import Embeddings


class ObservedRetriever(Retriever):
    """Wraps any retriever; each call becomes a span and an observation."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    async def retrieve(self, index: str, search: Search) -> Retrieved:
        with _call("retrieve"):
            return await self._retriever.retrieve(index, search)

    async def documents(self, index: str, ids: Sequence[str], *, texts: bool = True) -> Mapping[str, Document]:
        with _call("documents"):
            return await self._retriever.documents(index, ids, texts=texts)

    async def characters(self, index: str, ids: Sequence[str]) -> Mapping[str, int]:
        with _call("characters"):
            return await self._retriever.characters(index, ids)

    async def embed_query(self, query: str) -> NDArray[np.float32]:
        with _call("embed_query"):
            return await self._retriever.embed_query(query)

    async def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        with _call("embed_documents"):
            return await self._retriever.embed_documents(texts)

    async def close(self) -> None:
        await self._retriever.close()


@contextmanager
def _call(name: str) -> Iterator[None]:
    """Observe a call of the retriever; its outcome is ok, the slug of an error, or failed."""
    start, outcome = time.perf_counter(), "other"
    try:
        with tracing.span(f"retriever.{name}"):
            yield
        outcome = "ok"
    except BoundaryMorphError as error:
        outcome = error.slug
        raise
    finally:
        seconds = time.perf_counter() - start
        metrics.retriever_seconds.labels(name, outcome).observe(seconds)
        timing.add(name, seconds)
