"""Define the selector of a process, which carries out selections."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable

from boundarymorph.caching.scorer import CachingScorer, TaskScores
from boundarymorph.caching.scores import ScoreCache
from boundarymorph.inference.concurrency import FairExecutor
from boundarymorph.inference.models import identity_of
from boundarymorph.retrieval.document import Retriever
from boundarymorph.scoring.rerankers import trust_of
from boundarymorph.scoring.scorer import Scorer
from boundarymorph.selection.pool import Trust
from boundarymorph.selector.observer import Observer
from boundarymorph.selector.queries import parts_of, select_for_all
from boundarymorph.selector.result import Progress, SelectionResult
from boundarymorph.selector.run import SelectionRun
from boundarymorph.selector.shared import SharedState
from boundarymorph.selector.task import SelectionTask
from boundarymorph.telemetry.tracing import Stopwatch


class Selector:
    """Carries out selections: retrieves a pool, lets a session ask and the scorer answer.

    The mathematics runs in `threads` threads of its own, off the event loop. The caller closes retriever, scorer, and
    cache.
    """

    def __init__(
        self,
        retriever: Retriever,
        scorer: Scorer,
        cache: ScoreCache | None = None,
        *,
        trust: Trust | None = None,
        full: int = 1,
        encoder: Callable[[], str | None] = lambda: None,
        threads: int = 2,
        share: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a selector.

        Args:
            retriever: Retrieves candidates.
            scorer: Scores them.
            cache: The cache of scores.
            trust: The trust that is declared for the scorer.
            full: The number of documents that the scorer reads in one pass.
            encoder: Returns the name of the encoder; None if unknown.
            threads: The number of threads.
            share: The share of the threads that one caller may have, as in `Shares`.
            clock: Returns monotonic seconds.
        """
        self.retriever = retriever
        self._scorer = CachingScorer(scorer, cache, clock=clock)
        self.encoder = encoder
        self._clock = clock
        self._shared = SharedState(FairExecutor("selector", threads=threads, share=share), trust, full)

    @property
    def model(self) -> str | None:
        """The full name of the scorer; None while it is unknown."""
        return identity_of(self._scorer.scorer)

    @property
    def trust(self) -> Trust:
        """How far the scorer is trusted, unless a calibration says otherwise."""
        return trust_of(self.model, self._shared.trust)

    async def select(self, task: SelectionTask, watch: Stopwatch | None = None) -> SelectionResult:
        """Carry out one task. A cancelled task makes no further calls.

        It raises the errors of the retriever. It also raises those of the scorer, unless the task accepts an incomplete
        result.

        Args:
            task: The task.
            watch: A running stopwatch, if the task has already taken time.

        Raises:
            DeadlineExceeded: If the deadline passes before there is a pool (with the lengths of its documents if
                `max_tokens` is set).
        """
        async for step in self.steps(task, watch, progress=False):
            last = step
        assert isinstance(last, SelectionResult)
        return last

    async def steps(
        self, task: SelectionTask, watch: Stopwatch | None = None, *, progress: bool = True
    ) -> AsyncGenerator[Progress | SelectionResult, None]:
        """Carry out one task, and yield its progress before each round and finally its result.

        A task with several queries yields no progress.
        """
        observer = Observer(watch or Stopwatch(self._clock))
        self._shared.running += 1
        try:
            if task.queries:
                quiet = [Observer(Stopwatch(self._clock), counts=False) for _ in task.queries]
                runs = [*map(self._run, parts_of(task), quiet)]
                result = await select_for_all(task, runs, observer, self._shared.executor.bind(task.context.caller))
            else:
                run = self._run(task, observer)
                await run.retrieve()
                await run.look_up()
                while run.batch.size:
                    if progress:
                        yield await run.progress()
                    await run.score()
                result = await run.result()
        finally:
            self._shared.running -= 1
        yield result

    def _run(self, task: SelectionTask, observer: Observer) -> SelectionRun:
        context = task.context
        known = TaskScores(self._scorer, task.query, context.tenant, task.relevance.instruction, context.caller)
        candidates = task.source.candidates(self.retriever, context.caller)
        return SelectionRun(task, candidates, known, self._shared, observer, self.encoder())

    async def close(self) -> None:
        """Wait for the threads, and for pending writes to the cache."""
        await self._shared.executor.close()
        await self._scorer.close()
