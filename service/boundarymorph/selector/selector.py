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
from boundarymorph.scoring.scorer import Scorer, Scores, model_changed
from boundarymorph.selection import Observation, Pool, Selection, SelectionSession, StopReason, capacity_of
from boundarymorph.selection.methods import DEFAULT, METHODS

log = logging.getLogger(__name__)
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

RESERVE = 0.01  # seconds before the deadline that are kept for reading the selection
LATE = 0.25  # seconds that reading the selected texts may take when the deadline has come


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

    calls, cached: as of `SelectionResult`; budget: the task's; reused: scores that were known before and take the place
    of as many calls; expected_loss: as of `SelectionSession`; selected: ids, as believed now.
    """

    rounds: int
    calls: int
    cached: int
    budget: int
    reused: int
    expected_loss: float
    selected: Sequence[str]


@dataclass(frozen=True, slots=True, eq=False)
class SelectionResult:
    """What came of it. Of what was deleted while it went on, nothing that was noticed is in the selection.

    history: the scores that were asked for, all of which count against the budget. calls: how many of them the
    cross-encoder computed for this task; cached: how many came from a cache, or from another task that was having the
    same computed. reused: scores that were known before; expected_loss: share of the set's relevance that more calls
    may have brought; documents: by id, as far as they were fetched; truncated: scored pairs that were cut to fit the
    cross-encoder; seconds: by stage, and their total.
    """

    pool: Pool
    selection: Selection
    history: Sequence[Observation]
    rounds: int
    status: Status
    stop_reason: StopReason | Interruption
    expected_loss: float
    calls: int
    cached: int
    reused: int
    documents: Mapping[str, Document]
    truncated: int
    seconds: Mapping[str, float]
    warnings: Sequence[str]


@dataclass(slots=True)
class _Answers:
    """What the scorer's answers to one task add up to."""

    calls: int = 0
    cached: int = 0
    truncated: int = 0
    model: str | None = None

    def add(self, scores: Scores) -> None:
        """Raises ScorerUnavailable where the scores are of another model than those before, which do not compare."""
        self.calls += len(scores.values) - scores.cached
        self.cached += scores.cached
        self.truncated += scores.truncated
        before, self.model = self.model, scores.model or self.model
        if before not in (None, self.model):
            raise model_changed()


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
        answers = _Answers()
        interruption: Interruption | None = None
        remembered: Mapping[bytes, Remembered] | None = None
        known: Mapping[int, float] = {}
        gone: Sequence[int] = ()
        lengths: NDArray[np.float64] | None = None
        with watch.stage("fetch"):
            if task.max_tokens is not None:
                async with self._before(task.deadline):
                    lengths = await task.candidates.lengths(self._retriever, pool.ids)
            try:
                async with self._before(task.deadline):
                    if self._memory is not None and task.reuse:
                        remembered = await self._memory.recall(task.query)
                        known, gone = await self._known(task, pool.ids, remembered, documents)
            except tuple(INTERRUPTIONS) as error:
                warnings.append(_shortfall("scores known from earlier requests were not used", error))
        with watch.stage("select"):
            session, asked = await self._in_thread(_begin, pool, task, lengths, known, gone)
        while asked.size:
            if tell:
                yield await self._in_thread(_progress, session, task, len(known), answers)
            try:
                with watch.stage("fetch"):
                    async with self._before(task.deadline):
                        asked = await self._read(task, session, asked, documents)
                with watch.stage("score"):
                    scores = await self._score(task, [documents[pool.ids[position]] for position in asked], remembered)
                    answers.add(scores)
            except tuple(INTERRUPTIONS) as error:
                interruption = _interruption(error)
                if not task.degrade and interruption != Interruption.DEADLINE:
                    raise
                warnings.append(_shortfall("not all of the budget was spent", error))
                break
            with watch.stage("select"):
                asked = await self._in_thread(_advance, session, asked, scores.values, task.batch_size)
        selection, expected_loss, unread = await self._selection(task, session, documents, watch)
        if unread is not None:
            interruption = interruption or _interruption(unread)
            if not task.degrade and _interruption(unread) != Interruption.DEADLINE:
                raise unread
            warnings.append(_shortfall("not all texts could be read", unread))

        if session.given_up:
            warnings.append(f"{session.given_up} documents were deleted from the index meanwhile and left out")
        if answers.truncated:
            warnings.append(f"{answers.truncated} scored documents were cut to the cross-encoder's maximum length")
        stop_reason = interruption or session.stop_reason
        assert stop_reason is not None
        yield SelectionResult(
            pool,
            selection,
            session.history,
            session.rounds,
            _status(session, interruption),
            stop_reason,
            expected_loss,
            answers.calls,
            answers.cached,
            len(known),
            documents,
            answers.truncated,
            watch.read(),
            warnings,
        )

    async def close(self) -> None:
        """Wait for the threads and release them."""
        await asyncio.to_thread(self._executor.shutdown)

    async def _known(
        self,
        task: SelectionTask,
        ids: Sequence[str],
        remembered: Mapping[bytes, Remembered],
        documents: dict[str, Document],
    ) -> tuple[Mapping[int, float], Sequence[int]]:
        """Scores of earlier tasks by position, of the documents that still read as they did then and bring none; and
        the positions of those that turned out to have been deleted."""
        if not remembered:
            return {}, ()
        positions: Sequence[int] = range(len(ids))
        if not task.candidates.texts_at_hand:  # read only what had one of these texts when it was scored
            hinted = {entry.document for entry in remembered.values()}
            positions = [position for position, id in enumerate(ids) if id in hinted]
        await self._fetch(task, [ids[position] for position in positions], documents)
        gone = [position for position in positions if ids[position] not in documents]
        brought = task.candidates.known_scores().keys()
        return await self._in_thread(_matching, ids, documents, brought, remembered), gone

    async def _read(
        self,
        task: SelectionTask,
        session: SelectionSession,
        positions: NDArray[np.intp],
        documents: dict[str, Document],
    ) -> NDArray[np.intp]:
        """Fetch the documents at these positions and give up those that were deleted; the positions of the others."""
        ids = [session.pool.ids[position] for position in positions]
        await self._fetch(task, ids, documents)
        there = np.array([id in documents for id in ids], dtype=np.bool_)
        session.give_up(positions[~there])
        return positions[there]

    async def _fetch(self, task: SelectionTask, ids: Sequence[str], documents: dict[str, Document]) -> None:
        missing = [identifier for identifier in ids if identifier not in documents]
        if missing:
            documents.update(await task.candidates.documents(self._retriever, missing))

    async def _score(
        self, task: SelectionTask, documents: Sequence[Document], remembered: Mapping[bytes, Remembered] | None
    ) -> Scores:
        deadline = None if task.deadline is None else task.deadline - RESERVE
        if deadline is not None and deadline <= self._clock():
            raise DeadlineExceeded("the deadline came")
        if not documents:
            return Scores(np.empty(0))
        texts = [document.content for document in documents]
        if self._memory is None:
            return await self._scorer.score(task.query, texts, deadline=deadline)
        ids = None if task.candidates.texts_at_hand else [document.id for document in documents]
        return await self._memory.score(task.query, texts, deadline=deadline, documents=ids, recalled=remembered)

    async def _selection(
        self, task: SelectionTask, session: SelectionSession, documents: dict[str, Document], watch: Stopwatch
    ) -> tuple[Selection, float, BoundaryMorphError | None]:
        """The selection, its expected loss, and why its texts could not be read, if they were wanted and could not.

        What turns out to have been deleted makes room for others.
        """
        latest = None if task.deadline is None else max(task.deadline, self._clock() + LATE)
        while True:
            with watch.stage("select"):
                selection, expected_loss = await self._in_thread(_end, session)
            if not task.return_documents:
                return selection, expected_loss, None
            try:
                with watch.stage("fetch"):
                    async with self._before(latest):
                        there = await self._read(task, session, selection.documents, documents)
            except tuple(INTERRUPTIONS) as error:
                return selection, expected_loss, error
            if len(there) == len(selection.documents):
                return selection, expected_loss, None

    @asynccontextmanager
    async def _before(self, deadline: float | None) -> AsyncIterator[None]:
        """Raises DeadlineExceeded when the block takes longer, or the deadline has come before it."""
        seconds = None if deadline is None else deadline - self._clock()
        if seconds is not None and seconds <= 0:
            raise DeadlineExceeded("the deadline came")
        timeout = asyncio.timeout(seconds)
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
        pool, empty, [], 0, Status.COMPLETE, StopReason.NOTHING_TO_DECIDE, 0.0, 0, 0, 0, {}, 0, watch.read(), warnings
    )


def _begin(
    pool: Pool,
    task: SelectionTask,
    lengths: NDArray[np.float64] | None,
    reused: Mapping[int, float],
    gone: Sequence[int],
) -> tuple[SelectionSession, NDArray[np.intp]]:
    known = task.candidates.known_scores()
    if lengths is not None:
        gone = [*gone, *np.flatnonzero(np.isnan(lengths)).tolist()]
        lengths = np.nan_to_num(lengths, nan=1.0)
    session = SelectionSession(
        pool,
        budget=max(0, task.budget - len(reused)),
        k=capacity_of(k=task.k, lengths=lengths, max_tokens=task.max_tokens),
        config=METHODS[task.method],
        known={**reused, **{position: known[id] for position, id in enumerate(pool.ids) if id in known}},
        settle=task.settle,
    )
    session.give_up(gone)
    return session, session.ask(task.batch_size)


def _advance(
    session: SelectionSession, asked: NDArray[np.intp], scores: NDArray[np.float64], batch_size: int
) -> NDArray[np.intp]:
    session.tell(asked, scores)
    return session.ask(batch_size)


def _matching(
    ids: Sequence[str],
    documents: Mapping[str, Document],
    brought: Set[str],
    remembered: Mapping[bytes, Remembered],
) -> dict[int, float]:
    """Remembered scores by position, of the documents with a text that was scored, less those that bring a score."""
    digests = {
        position: digest(documents[id].content)
        for position, id in enumerate(ids)
        if id in documents and id not in brought
    }
    return {position: remembered[text].score for position, text in digests.items() if text in remembered}


def _progress(session: SelectionSession, task: SelectionTask, reused: int, answers: _Answers) -> Progress:
    selected = [session.pool.ids[position] for position in session.selection().documents]
    loss = _expected_loss(session)
    return Progress(session.rounds, answers.calls, answers.cached, task.budget, reused, loss, selected)


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
