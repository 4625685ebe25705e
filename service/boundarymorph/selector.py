"""The hall: one request's way through retriever, session and scorer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar, TypeVarTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.caching.keys import digest
from boundarymorph.caching.scores import Remembered, RememberingScorer
from boundarymorph.errors import (
    BoundaryMorphError,
    DeadlineExceeded,
    Overloaded,
    RetrieverFailed,
    RetrieverUnavailable,
    ScorerFailed,
    ScorerUnavailable,
    StorageUnavailable,
)
from boundarymorph.retrieval.candidates import Candidates
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.retriever import Retriever
from boundarymorph.scoring.scorer import Scorer, model_changed
from boundarymorph.selection import Observation, Pool, Selection, SelectionSession, StopReason, capacity_of
from boundarymorph.selection.methods import DEFAULT, METHODS

log = logging.getLogger(__name__)
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

RESERVE = 0.01  # seconds before the deadline that are kept for reading the selection
LATE = 0.25  # seconds that reading the selected texts may take when the deadline has come
GONE = 0.0  # what a session is told of a document that was deleted between retrieval and scoring


@dataclass(frozen=True, slots=True)
class SelectionTask:
    """What is wanted: the best documents for a query at no more than `budget` calls, `batch_size` of them a round.

    k: documents to return, or None for as many as fit into max_tokens. settle: stop when no more than this share of
    the set's relevance is expected to be lost by it. method: a name in `methods.METHODS`. deadline: the moment, on
    `time.monotonic()`, when the set is wanted as it is then. degrade: whether it is wanted too when the scorer fails.
    reuse: whether scores known from earlier tasks are evidence that takes the place of calls.
    """

    query: str
    candidates: Candidates
    budget: int
    k: int | None
    max_tokens: int | None = None
    batch_size: int = 1
    settle: float | None = None
    method: str = DEFAULT
    return_documents: bool = False
    deadline: float | None = None
    degrade: bool = True
    reuse: bool = True


class Status(StrEnum):
    """How much of what was wanted an answer is: all; what there was time or a scorer for; the retriever's ranking."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    RETRIEVAL_ONLY = "retrieval_only"


class Interruption(StrEnum):
    """Why it ended before the session had its way."""

    DEADLINE = "deadline"
    OVERLOADED = "overloaded"
    RETRIEVER_UNAVAILABLE = "retriever_unavailable"
    RETRIEVER_FAILED = "retriever_failed"
    SCORER_UNAVAILABLE = "scorer_unavailable"
    SCORER_FAILED = "scorer_failed"


INTERRUPTIONS: dict[type[BoundaryMorphError], Interruption] = {
    DeadlineExceeded: Interruption.DEADLINE,
    Overloaded: Interruption.OVERLOADED,
    RetrieverUnavailable: Interruption.RETRIEVER_UNAVAILABLE,
    StorageUnavailable: Interruption.RETRIEVER_UNAVAILABLE,
    RetrieverFailed: Interruption.RETRIEVER_FAILED,
    ScorerUnavailable: Interruption.SCORER_UNAVAILABLE,
    ScorerFailed: Interruption.SCORER_FAILED,
}


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a task stands before a round.

    budget: the task's; reused: scores that were known before and take the place of as many calls; expected_loss: as of
    `SelectionSession`; selected: ids, as believed now.
    """

    rounds: int
    calls: int
    budget: int
    reused: int
    expected_loss: float
    selected: Sequence[str]


@dataclass(frozen=True, slots=True, eq=False)
class SelectionResult:
    """What came of it. What was deleted while it went on is in neither the selection nor the history.

    reused: scores that were known before; expected_loss: share of the set's relevance that more calls may have brought;
    documents: by id, as far as they were fetched; truncated: scored pairs that were cut to fit the cross-encoder;
    seconds: by stage, and their total.
    """

    pool: Pool
    selection: Selection
    history: Sequence[Observation]
    rounds: int
    status: Status
    stop_reason: StopReason | Interruption
    expected_loss: float
    reused: int
    documents: Mapping[str, Document]
    truncated: int
    seconds: Mapping[str, float]
    warnings: Sequence[str]


class Stopwatch:
    """Seconds by stage."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add what the block takes to a stage."""
        start = self._clock()
        try:
            yield
        finally:
            self._stages[name] = self._stages.get(name, 0.0) + self._clock() - start

    def read(self) -> dict[str, float]:
        """Every stage so far, and the total since the beginning."""
        return {**self._stages, "total": self._clock() - self._start}


class Selector:
    """Retrieves a pool, lets a session ask and the scorer answer, and reads the selection.

    The mathematics runs in `threads` of its own, off the event loop. Retriever and scorer stay their owner's to close.
    """

    def __init__(
        self,
        retriever: Retriever,
        scorer: Scorer,
        *,
        threads: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._retriever = retriever
        self._scorer = scorer
        self._memory = scorer if isinstance(scorer, RememberingScorer) else None
        self._clock = clock
        self._executor: Executor = ThreadPoolExecutor(threads, thread_name_prefix="selector")

    async def select(self, task: SelectionTask, watch: Stopwatch | None = None) -> SelectionResult:
        """Carry out one task. A cancelled task asks for nothing more.

        watch: runs already, where the task took time before it came here.
        Raises what the retriever raises and DeadlineExceeded before there is a pool, with the lengths of its documents
        where max_tokens is set, and what the scorer raises unless the task is content with less.
        """
        *_, result = [step async for step in self.steps(task, watch, tell=False)]
        assert isinstance(result, SelectionResult)
        return result

    async def steps(
        self, task: SelectionTask, watch: Stopwatch | None = None, *, tell: bool = True
    ) -> AsyncIterator[Progress | SelectionResult]:
        """As `select`, telling before each round where it stands; the result comes last."""
        watch = watch or Stopwatch(self._clock)
        with watch.stage("retrieve"):
            async with self._before(task.deadline):
                retrieved = await task.candidates.retrieve(self._retriever, task.query)
        pool, warnings = retrieved.pool, list(retrieved.warnings)
        if not len(pool):
            yield _nothing(pool, warnings, watch)
            return

        documents: dict[str, Document] = {}
        gone: set[int] = set()
        truncated = 0
        models: set[str] = set()
        interruption: Interruption | None = None
        remembered: Mapping[bytes, Remembered] | None = None
        known: Mapping[int, float] = {}
        lengths: NDArray[np.float64] | None = None
        with watch.stage("fetch"):
            if task.max_tokens is not None:
                async with self._before(task.deadline):
                    lengths = await task.candidates.lengths(self._retriever, pool.ids)
            try:
                async with self._before(task.deadline):
                    if self._memory is not None and task.reuse:
                        remembered = await self._memory.recall(task.query)
                        known = await self._known(task, pool, remembered, documents)
            except tuple(INTERRUPTIONS) as error:
                warnings.append(_shortfall("scores known from earlier requests were not used", error))
        with watch.stage("select"):
            session, asked = await self._in_thread(_begin, pool, task, lengths, known)
        while asked.size:
            if tell:
                yield await self._in_thread(_progress, session, task, len(known))
            try:
                with watch.stage("fetch"):
                    async with self._before(task.deadline):
                        await self._fetch(task, [pool.ids[position] for position in asked], documents)
                    gone.update(position for position in asked.tolist() if pool.ids[position] not in documents)
                with watch.stage("score"):
                    wanted = [documents.get(pool.ids[position]) for position in asked]
                    scores, cut = await self._score(task, wanted, remembered, models)
                    truncated += cut
            except tuple(INTERRUPTIONS) as error:
                interruption = _interruption(error)
                if not task.degrade and interruption != Interruption.DEADLINE:
                    raise
                warnings.append(_shortfall("not all of the budget was spent", error))
                break
            with watch.stage("select"):
                asked = await self._in_thread(_advance, session, asked, scores, task.batch_size)
        with watch.stage("select"):
            selection, expected_loss = await self._in_thread(_end, session)
            selection = _without(selection, gone)
        if task.return_documents:
            latest = None if task.deadline is None else max(task.deadline, self._clock() + LATE)
            try:
                with watch.stage("fetch"):
                    async with self._before(latest):
                        await self._fetch(task, [pool.ids[position] for position in selection.documents], documents)
            except tuple(INTERRUPTIONS) as error:
                new = _interruption(error)
                if not task.degrade and new != Interruption.DEADLINE:
                    raise
                interruption = interruption or new
                warnings.append(_shortfall("not all texts could be read", error))

        if gone:
            warnings.append(f"{len(gone)} documents were deleted from the index meanwhile and left out")
        if truncated:
            warnings.append(f"{truncated} documents were cut to the cross-encoder's maximum length to be scored")
        stop_reason = interruption or session.stop_reason
        assert stop_reason is not None
        yield SelectionResult(
            pool,
            selection,
            [observation for observation in session.history if observation.document not in gone],
            session.rounds,
            _status(session, interruption),
            stop_reason,
            expected_loss,
            len(known),
            documents,
            truncated,
            watch.read(),
            warnings,
        )

    async def close(self) -> None:
        """Wait for the threads and release them."""
        await asyncio.to_thread(self._executor.shutdown)

    async def _known(
        self, task: SelectionTask, pool: Pool, remembered: Mapping[bytes, Remembered], documents: dict[str, Document]
    ) -> dict[int, float]:
        """Scores of earlier tasks by position, of the documents that still read as they did then and bring none."""
        hinted = {entry.document for entry in remembered.values()} - task.candidates.known_scores().keys()
        candidates = [id for id in pool.ids if id in hinted]
        await self._fetch(task, candidates, documents)
        positions = {id: position for position, id in enumerate(pool.ids)}
        digests = {id: digest(documents[id].content) for id in candidates if id in documents}
        return {positions[id]: remembered[text].score for id, text in digests.items() if text in remembered}

    async def _fetch(self, task: SelectionTask, ids: Sequence[str], documents: dict[str, Document]) -> None:
        missing = [identifier for identifier in ids if identifier not in documents]
        if missing:
            documents.update(await task.candidates.documents(self._retriever, missing))

    async def _score(
        self,
        task: SelectionTask,
        documents: Sequence[Document | None],
        remembered: Mapping[bytes, Remembered] | None,
        models: set[str],
    ) -> tuple[NDArray[np.float64], int]:
        values = np.full(len(documents), GONE)
        present = [position for position, document in enumerate(documents) if document is not None]
        if not present:
            return values, 0
        texts = [document.content for document in documents if document is not None]
        deadline = None if task.deadline is None else task.deadline - RESERVE
        if deadline is not None and deadline <= self._clock():
            raise DeadlineExceeded("the deadline came")
        if self._memory is None:
            scores = await self._scorer.score(task.query, texts, deadline=deadline)
        else:
            ids = [document.id for document in documents if document is not None]
            scores = await self._memory.score(task.query, texts, deadline=deadline, documents=ids, recalled=remembered)
        if scores.model is not None:
            models.add(scores.model)
        if len(models) > 1:  # whose scores do not compare
            raise model_changed()
        values[present] = scores.values
        return values, scores.truncated

    @asynccontextmanager
    async def _before(self, deadline: float | None) -> AsyncIterator[None]:
        """Raises DeadlineExceeded when the block takes longer."""
        timeout = asyncio.timeout(None if deadline is None else deadline - self._clock())
        try:
            async with timeout:
                yield
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise DeadlineExceeded("the deadline came") from error

    async def _in_thread(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)


def _nothing(pool: Pool, warnings: Sequence[str], watch: Stopwatch) -> SelectionResult:
    """The result for an empty pool: an empty set."""
    empty = Selection(np.empty(0, np.intp), np.empty(0), np.empty(0), np.empty(0, np.bool_))
    return SelectionResult(
        pool, empty, [], 0, Status.COMPLETE, StopReason.NOTHING_TO_DECIDE, 0.0, 0, {}, 0, watch.read(), warnings
    )


def _begin(
    pool: Pool, task: SelectionTask, lengths: NDArray[np.float64] | None, reused: Mapping[int, float]
) -> tuple[SelectionSession, NDArray[np.intp]]:
    known = task.candidates.known_scores()
    session = SelectionSession(
        pool,
        budget=max(0, task.budget - len(reused)),
        k=capacity_of(k=task.k, lengths=lengths, max_tokens=task.max_tokens),
        config=METHODS[task.method],
        known={**reused, **{position: known[id] for position, id in enumerate(pool.ids) if id in known}},
        settle=task.settle,
    )
    return session, session.ask(task.batch_size)


def _advance(
    session: SelectionSession, asked: NDArray[np.intp], scores: NDArray[np.float64], batch_size: int
) -> NDArray[np.intp]:
    session.tell(asked, scores)
    return session.ask(batch_size)


def _progress(session: SelectionSession, task: SelectionTask, reused: int) -> Progress:
    selected = [session.pool.ids[position] for position in session.selection().documents]
    return Progress(session.rounds, session.spent, task.budget, reused, _expected_loss(session), selected)


def _end(session: SelectionSession) -> tuple[Selection, float]:
    return session.selection(), _expected_loss(session)


def _expected_loss(session: SelectionSession) -> float:
    """At most 1: before the first scores, next to nothing may be believed relevant, and any loss is many times that."""
    return min(1.0, session.expected_loss())


def _shortfall(what: str, error: BoundaryMorphError) -> str:
    """A warning for the caller. The log gets what the caller may not read."""
    if error.public != str(error):
        log.warning("%s: %s", what, error)
    return f"{what}: {error.public}"


def _interruption(error: Exception) -> Interruption:
    return next(INTERRUPTIONS[kind] for kind in type(error).__mro__ if kind in INTERRUPTIONS)


def _status(session: SelectionSession, interruption: Interruption | None) -> Status:
    if interruption is None:
        return Status.COMPLETE
    return Status.PARTIAL if session.belief.scored.any() else Status.RETRIEVAL_ONLY


def _without(selection: Selection, gone: Set[int]) -> Selection:
    if not gone:
        return selection
    kept = ~np.isin(selection.documents, list(gone))
    return Selection(selection.documents[kept], selection.relevance[kept], selection.std[kept], selection.scored[kept])
