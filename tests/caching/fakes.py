"""A scorer, an encoder, and a cache that wait at gates."""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.caching.scorer import CachingScorer, TaskScores
from boundarymorph.caching.scores import CachedScore, MemoryScoreCache
from boundarymorph.errors import DeadlineExceeded
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.scoring.scorer import Scores
from tests.fakes.scorer import SeededScorer
from tests.retrieval.fakes import SeededEncoder

Result = TypeVar("Result")


@dataclass(frozen=True)
class ScoresWithHits(Scores):
    """The scores of a call, and how many of them were cached."""

    cached: int = 0


class Gate:
    """A gate that lets calls through until `shut`, after which they wait for `open`."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def wait(self, deadline: float | None = None) -> None:
        seconds = None if deadline is None else deadline - time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                await self._open.wait()
        except TimeoutError as error:
            raise DeadlineExceeded("too late") from error


class GatedScorer(SeededScorer):
    """A `SeededScorer` behind a gate.

    Attributes:
        deadlines: The deadlines of its calls.
        failures: Errors to raise first, in order.
        punctual: Whether a call ends at its deadline.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.deadlines: list[float | None] = []
        self.failures: list[Exception] = []
        self.punctual = True

    async def score(self, query: str, texts: Sequence[str], *, deadline: float | None = None, **_: Any) -> Scores:
        self.deadlines.append(deadline)
        scores = await super().score(query, texts, deadline=deadline)
        failure = self.failures.pop(0) if self.failures else None
        await self.gate.wait(deadline if self.punctual else None)
        if failure is not None:
            raise failure
        return scores


class GatedEncoder(SeededEncoder):
    """A `SeededEncoder` behind a gate; `queries` are those it has received."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.queries: list[str] = []

    async def encode_query(self, text: str, caller: str = "") -> NDArray[np.float32]:
        self.queries.append(text)
        await self.gate.wait()
        return await super().encode_query(text)

    async def encode_documents(self, texts: Sequence[str], caller: str = "") -> Embeddings:
        embeddings = await super().encode_documents(texts)
        await self.gate.wait()
        return embeddings


class StandaloneScorer(CachingScorer):
    """A caching scorer as a `Scorer`, which makes a task for each call."""

    name = "known"
    takes_instruction = False
    max_length = None

    async def check(self) -> None:
        await self.scorer.check()

    async def score(
        self,
        query: str,
        texts: Sequence[str],
        *,
        deadline: float | None = None,
        instruction: str | None = None,
        documents: Sequence[str] | None = None,
    ) -> ScoresWithHits:
        task = TaskScores(self, query)
        values = await task.score(texts, documents=documents, deadline=deadline)
        assert task.calls + task.cached == len(texts)
        return ScoresWithHits(values, task.truncated, cached=task.cached)


class SlowScoreCache(MemoryScoreCache):
    """A cache whose writes wait at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    async def write(self, model: str, query: str, scores: Mapping[bytes, CachedScore]) -> None:
        await self.gate.wait()
        await super().write(model, query, scores)


async def let_others_run(count: int = 20) -> None:
    """Let the other tasks of the event loop run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def start_call(call: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
    """Start a call, and let it proceed until it waits."""
    task = asyncio.create_task(call)
    await let_others_run()
    return task
