"""The selector and the retriever as they are, with what traces, metrics and Server-Timing are to know of them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.retriever import Retrieved, Retriever, Search
from boundarymorph.selector.selector import Progress, SelectionResult, SelectionTask, Selector, Stopwatch
from boundarymorph.telemetry import metrics, timing, tracing

if TYPE_CHECKING:  # a gateway loads no encoder
    from boundarymorph.retrieval.encoders import Embeddings


class ObservedSelector(Selector):
    """A `Selector` whose stages are spans and whose last reading of the watch is told to the request."""

    async def steps(
        self, task: SelectionTask, watch: Stopwatch | None = None, *, tell: bool = True
    ) -> AsyncIterator[Progress | SelectionResult]:
        async for step in super().steps(task, _ObservedStopwatch(watch or Stopwatch()), tell=tell):
            if isinstance(step, SelectionResult) and task.budget:
                metrics.budget_used.observe(step.calls / task.budget)
            yield step


class _ObservedStopwatch(Stopwatch):
    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        with tracing.span(name), self._watch.stage(name):
            yield

    def read(self) -> dict[str, float]:
        seconds = self._watch.read()
        timing.tell(seconds)
        return seconds


class ObservedRetriever(Retriever):
    """Whatever retriever, each call of it a span and an observation."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    async def retrieve(self, index: str, search: Search) -> Retrieved:
        with _call("retrieve"):
            return await self._retriever.retrieve(index, search)

    async def documents(self, index: str, ids: Sequence[str]) -> Mapping[str, Document]:
        with _call("documents"):
            return await self._retriever.documents(index, ids)

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
    """A call of the retriever; it ends ok, with the slug of an error, or otherwise."""
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
