"""Selections of a process: each is one run through retriever, session and scorer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

from boundarymorph.caching.known import KnownScores
from boundarymorph.caching.scores import ScoreCache
from boundarymorph.retrieval.retriever import Retriever
from boundarymorph.scoring.scorer import Scorer
from boundarymorph.selector.observer import Observer
from boundarymorph.selector.pace import Pace
from boundarymorph.selector.result import Progress, SelectionResult
from boundarymorph.selector.run import SelectionRun
from boundarymorph.selector.task import SelectionTask
from boundarymorph.telemetry.timing import Stopwatch


class Selector:
    """Retrieves a pool, lets a session ask and the scorer answer, and reads the selection.

    The mathematics runs in `threads` of its own, off the event loop. The caller closes retriever, scorer and cache.
    """

    def __init__(
        self,
        retriever: Retriever,
        scorer: Scorer,
        cache: ScoreCache | None = None,
        *,
        identity: Callable[[], str | None] | None = None,
        threads: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """cache: of scores; identity: what they are kept under there, as of `KnownScores`."""
        self._retriever = retriever
        self._known = KnownScores(scorer, cache, identity=identity, clock=clock)
        self._pace = Pace()
        self._running = 0
        self._clock = clock
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="selector")

    async def select(self, task: SelectionTask, watch: Stopwatch | None = None) -> SelectionResult:
        """Carry out one task. A cancelled task asks for nothing more.

        watch: runs already, where the task took time before it came here.
        Raises what the retriever raises and DeadlineExceeded before there is a pool, with the lengths of its documents
        where max_tokens is set, and what the scorer raises unless the task is content with less.
        """
        *_, result = [step async for step in self.steps(task, watch, progress=False)]
        assert isinstance(result, SelectionResult)
        return result

    async def steps(
        self, task: SelectionTask, watch: Stopwatch | None = None, *, progress: bool = True
    ) -> AsyncIterator[Progress | SelectionResult]:
        """As `select`, with the progress before each round; the result comes last."""
        observer = Observer(watch or Stopwatch(self._clock))
        candidates = task.candidates(self._retriever)
        run = SelectionRun(
            task,
            candidates,
            self._known.of_task(task.query, task.caller),
            self._pace,
            lambda: self._running,
            observer,
            self._executor,
        )
        self._running += 1
        try:
            await run.retrieve()
            await run.recall()
            while run.batch.size:
                if progress:
                    yield await run.progress()
                await run.score()
            result = await run.result()
        finally:
            self._running -= 1
        yield result

    async def close(self) -> None:
        """Wait for the threads, and for scores that are being written to the cache."""
        await asyncio.to_thread(self._executor.shutdown)
        await self._known.close()
