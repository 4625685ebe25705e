"""The selector of a process, which carries out selections, and audits: a selection of the past is made again and scored
to the end, for what it would have lost at each look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boundarymorph.caching.known import KnownScores, ScoreCache
from boundarymorph.inference.concurrency import BoundedExecutor, Deadline
from boundarymorph.memory.memory import LOOKS
from boundarymorph.retrieval.document import Retriever
from boundarymorph.scoring.costs import Trips
from boundarymorph.scoring.scorer import Scorer
from boundarymorph.selection import SelectionSession
from boundarymorph.selection.promise import Audit, Look
from boundarymorph.selector.documents import Room, texts_of
from boundarymorph.selector.queries import QueriesRun, parts_of
from boundarymorph.selector.run import SelectionRun, Shared
from boundarymorph.selector.task import Observer, Progress, SelectionResult, SelectionTask, kind_of
from boundarymorph.telemetry.tracing import Stopwatch

PIECE = 16  # documents that an audit scores at a time, after which a caller's work goes first
Idle = Callable[[int], Awaitable[None]]  # waits until so many scores take nobody's time


@dataclass(frozen=True, slots=True)
class Made:
    """An audit. believed: the expected loss at the last look."""

    audit: Audit
    believed: float


def task_of_audit(task: SelectionTask, budget: int, deadline: Deadline, room: Room) -> SelectionTask:
    """Return the task of an audit, which makes as many calls as a selection that stops by itself may, and reuses
    nothing. room: for its texts."""
    return replace(
        task,
        budget=budget,
        settle=0.0,
        promise=None,
        goal="set",
        deadline=deadline,
        accepts="complete",
        reuse=False,
        return_documents=False,
        explain_pool=False,
        room=room,
    )


class Selector:
    """Carries out selections: retrieves a pool, lets a session ask and the scorer answer, and reads the selection.

    The mathematics runs in `threads` threads of its own, off the event loop. The caller closes retriever, scorer and
    cache.
    """

    def __init__(
        self,
        retriever: Retriever,
        scorer: Scorer,
        cache: ScoreCache | None = None,
        *,
        trips: Trips | None = None,
        encoder: Callable[[], str | None] = lambda: None,
        threads: int = 2,
        share: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """cache: of scores; trips: to the scorer, by default cheap ones; encoder: the encoder's name, None where it is
        not known; share: of the threads that one caller gets, as in `Shares`."""
        self.retriever = retriever
        self._known = KnownScores(scorer, cache, trips=trips, clock=clock)
        self._unknown = KnownScores(scorer, None, trips=trips, clock=clock)  # for audits, which leave nothing behind
        self.encoder = encoder
        self._clock = clock
        self._shared = Shared(BoundedExecutor("selector", threads=threads, share=share))

    async def select(self, task: SelectionTask, watch: Stopwatch | None = None) -> SelectionResult:
        """Carry out one task. A cancelled task makes no further calls.

        watch: pass a running one if the task has already taken time.
        Raises what the retriever raises, and DeadlineExceeded, before there is a pool (with the lengths of its
        documents if max_tokens is set), and what the scorer raises unless the task accepts an incomplete result.
        """
        *_, result = [step async for step in self.steps(task, watch, progress=False)]
        assert isinstance(result, SelectionResult)
        return result

    async def steps(
        self, task: SelectionTask, watch: Stopwatch | None = None, *, progress: bool = True
    ) -> AsyncGenerator[Progress | SelectionResult, None]:
        """As `select`, but yield the progress before each round, and finally the result."""
        observer = Observer(watch or Stopwatch(self._clock))
        run: SelectionRun | QueriesRun
        if task.queries:
            quiet = [Observer(Stopwatch(self._clock), counts=False) for _ in task.queries]
            run = QueriesRun(task, [*map(self._run, parts_of(task), quiet)], observer, self._shared.executor.run)
        else:
            run = self._run(task, observer)
        self._shared.running += 1
        try:
            await run.retrieve()
            await run.recall()
            while run.batch.size:
                if progress:
                    yield await run.progress()
                await run.score()
            result = await run.result()
        finally:
            self._shared.running -= 1
        yield result

    async def audit(self, task: SelectionTask, most: int, idle: Idle) -> Made | None:
        """Carry out a `task_of_audit` and record it in its memory. most: candidates of a pool that is scored to the
        end. idle: awaited before scores are.

        Returns None for a larger pool, if nothing is to be decided, where scores cost money, and if a document gets no
        score. Raises what retriever and scorer raise.
        """
        run = self._run(task, Observer(Stopwatch(self._clock), counts=False), self._unknown)
        made, model = await _audit(run, task, most, idle), run.scores.model
        if made is not None and task.memory is not None and model is not None:
            await task.memory.record_audit(model, run.made_by, kind_of(task), made.audit)
        return made

    def _run(self, task: SelectionTask, observer: Observer, scores: KnownScores | None = None) -> SelectionRun:
        known = (scores or self._known).of_task(task.query, task.caller, task.tenant, task.instruction)
        return SelectionRun(task, task.candidates(self.retriever), known, self._shared, observer, self.encoder())

    async def close(self) -> None:
        """Wait for the threads, and for pending writes to the cache."""
        await self._shared.executor.close()
        await self._known.close()


async def _audit(run: SelectionRun, task: SelectionTask, most: int, idle: Idle) -> Made | None:
    scores = run.scores
    await run.retrieve()
    if len(run.pool) > most or scores.bill is not None or scores.trips.price:
        return None
    await run.recall()
    session, looks = run.session, list[tuple[int, float, float, NDArray[np.intp]]]()
    if not isinstance(session, SelectionSession) or run.calibrated.told:
        return None
    while run.batch.size:
        await idle(len(run.batch))
        await run.score()
        loss = min(1.0, session.expected_loss())
        looks.append((session.spent, session.settles_at, loss, session.selection().documents))
    known = {seen.document: seen.score for seen in session.history}
    rest = np.setdiff1d(np.arange(len(run.pool)), list(known))
    for start in range(0, len(rest), PIECE):
        part = await _readable(run, rest[start : start + PIECE])
        await idle(len(part))
        texts = texts_of(run.documents.at(part))
        if len(part):
            values = await scores.score(texts, deadline=task.deadline.moment)
            known |= dict(zip(part.tolist(), values.tolist(), strict=True))
    if not looks or not np.isfinite(list(known.values())).all():
        return None
    real = await asyncio.to_thread(session.real_losses, known, [chosen for *_, chosen in looks])
    found = [Look(calls, believed, loss) for (calls, believed, *_), loss in zip(looks, real, strict=True)]
    return Made(Audit(tuple(found[-LOOKS:])), looks[-1][2])


async def _readable(run: SelectionRun, positions: NDArray[np.intp]) -> NDArray[np.intp]:
    """Read documents, and return the positions of those that are there and have something to read."""
    await run.documents.read(positions, copies=False)
    gone = np.union1d(run.documents.deleted(positions), run.documents.without_content(positions))
    return np.setdiff1d(positions, gone)
