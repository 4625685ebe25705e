"""Run one selection: retriever, session, and scorer, in the order of a request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boundarymorph.caching.scorer import TaskScores
from boundarymorph.errors import BoundaryMorphError, DeadlineExceeded
from boundarymorph.inference.concurrency import Arguments, Result, Run, run_on_loop
from boundarymorph.notices import TEXTS_LEFT_OUT, Notice, Slug
from boundarymorph.retrieval.candidates import Candidates
from boundarymorph.retrieval.document import VectorSource
from boundarymorph.scoring.rerankers import trust_of
from boundarymorph.selection import BaseSession, Outlook, Pool, Selection, StopReason
from boundarymorph.selection.outlook import ENOUGH
from boundarymorph.selection.pool import footprint
from boundarymorph.selector import remarks
from boundarymorph.selector.composition import SetLimits, add_artifacts, boosts_of, limits_of, rounds_of, session_of
from boundarymorph.selector.documents import AnswerTooLarge, Documents, Grouping, are_long, texts_of
from boundarymorph.selector.failures import Failures
from boundarymorph.selector.finish import append_blank, in_given_order, unused_limits
from boundarymorph.selector.observer import Observer
from boundarymorph.selector.result import INTERRUPTING, Explanation, Progress, SelectionResult
from boundarymorph.selector.scores import HARMFUL, SPARED, CalibratedScores
from boundarymorph.selector.shared import SharedState
from boundarymorph.selector.task import SelectionTask

# With at most this many candidates, numbers in vectors and scores, a step of a session takes one to three milliseconds.
SMALL_POOL, FEW_NUMBERS, FEW_SCORES = 1_000, 2**19, 50
FEW_RUNNING = 4  # with more selections than this, such steps take turns by caller, in threads
AHEAD = 64  # documents that are read in advance because they are likely to be asked for soon
NOTHING = np.empty(0, dtype=np.intp)
EMPTY = Selection(NOTHING, np.empty(0), np.empty(0), np.empty(0, np.bool_))

# The states of a run. Each call is possible in one state only, and leads to another:
#
#     new ── retrieve ──> retrieved ── look_up ──> chosen ⟲ progress, score ── result ──> done
#
# In any other state it raises RuntimeError. In `chosen` there is a batch of documents to score, empty once the budget
# is spent, nothing is left to decide, or deadline, retriever or scorer ended the run. `result` may be called earlier.
State: TypeAlias = Literal["new", "retrieved", "chosen", "done"]
Call: TypeAlias = Literal["retrieve", "look_up", "progress", "score", "result"]
CALLS: dict[Call, tuple[State, State]] = {
    "retrieve": ("new", "retrieved"),
    "look_up": ("retrieved", "chosen"),
    "progress": ("chosen", "chosen"),
    "score": ("chosen", "chosen"),
    "result": ("chosen", "done"),
}


class SelectionRun:
    """A task in progress; long work runs in threads of the executor.

    Attributes:
        batch: Positions in the pool of the documents to score next; empty before `look_up`.
    """

    def __init__(
        self,
        task: SelectionTask,
        candidates: Candidates,
        scores: TaskScores,
        shared: SharedState,
        observer: Observer,
        encoder: str | None = None,
    ) -> None:
        self._task, self._candidates, self.scores = task, candidates, scores
        self._k, self._budget = task.aim.k, task.spending.budget
        self._shared, self._observer, self._encoder = shared, observer, encoder
        self._warnings: list[Notice] = []
        self._failures = Failures(task.context, shared, observer, self._warnings)
        self._in_thread: Run = shared.executor.bind(task.context.caller)
        self._short = False  # whether steps of the session take a few milliseconds
        self.state: State = "new"
        self.pool: Pool
        self.documents: Documents
        self.batch = NOTHING
        self.vectors: VectorSource = "none"
        self.session: BaseSession | None = None
        self.calibrated = CalibratedScores(trust=trust_of(scores.model, shared.trust))
        self.ungraded = 0
        self.texts_fit = True  # whether the texts fit into the answer
        self._rounds: int | None = None  # the number of rounds in all; None for rounds that grow
        self._full = 1 if task.spending.rounds != "auto" else shared.full
        self._proposals: Selection | None = None
        self._first: Selection | None = None  # as in `Explanation`
        self._sets: dict[int, NDArray[np.intp]] = {}
        self.boosts: NDArray[np.float64] | None = None  # (N,), if the task has any
        self._blank = self._excluded = NOTHING  # documents read without content; documents that the task excludes

    def _enter(self, call: Call) -> None:
        before, after = CALLS[call]
        if self.state != before:
            raise RuntimeError(f"{call} is called in the state {before!r}; this run is in {self.state!r}")
        if call in ("progress", "score") and not self.batch.size:
            raise RuntimeError(f"{call} needs a batch, and this run has nothing left to score")
        self.state = after

    async def retrieve(self) -> None:
        """Get the pool or, if that fails, use the order that is known by then.

        It raises the errors of the retriever and DeadlineExceeded, unless there is such an order and the task accepts
        it.
        """
        self._enter("retrieve")
        try:
            with self._observer.stage("retrieve"):
                async with self._task.context.deadline.enforced():
                    retrieved = await self._candidates.retrieve(self._in_thread)
        except INTERRUPTING as error:
            self._failures.refuse_overload(error, scored=False)
            ordered = self._candidates.ordered()
            if ordered is None:
                raise
            self._interrupt("nothing-scored", f"nothing was scored, and the order is {ordered.name}", error)
            self.pool, documents = ordered.pool, None
        else:
            self.pool, self.vectors, documents = retrieved.pool, retrieved.vectors, retrieved.documents
            self._warnings += retrieved.warnings
            self._task = add_artifacts(self._task, retrieved.artifacts)
        if self._task.spending.goal != "scores":
            self._task.context.memory.charge(
                footprint(self.pool, self._task.spending.budget + len(self._task.spending.known))
            )
        run = (
            self._in_thread if self._candidates.texts_at_hand and are_long((documents or {}).values()) else run_on_loop
        )
        self.documents = await run(
            Documents, self.pool, self._candidates, self._in_thread, documents, self._task.context.memory
        )
        if self._task.aim.excluded_ids:
            ids = map(self._candidates.passages.document_id, self.pool.ids)
            self._excluded = np.flatnonzero([id in self._task.aim.excluded_ids for id in ids])

    async def look_up(self, k: int | None = None) -> None:
        """Reuse scores of earlier tasks, and choose the first batch, empty for an empty pool.

        With `max_tokens`, `distinct` or boosts it reads all candidates, and raises the retriever's errors and
        DeadlineExceeded.

        Args:
            k: The number of documents that calls are spent on, if it differs from the task's.
        """
        self._enter("look_up")
        task = self._task
        if k is not None:
            self._k = k
        if not len(self.pool) or self._failures.interruption is not None:
            return
        deleted = NOTHING
        with self._observer.stage("fetch"):
            async with task.context.deadline.enforced():
                limits = await self._limits()
                self.boosts, unread = await boosts_of(task, self.documents)
            self._warnings += unread
            try:
                async with task.context.deadline.enforced():
                    deleted = await self._read_ahead()
            except INTERRUPTING as error:
                self._failures.warn("known-scores-not-used", "scores known from earlier requests were not used", error)
        scores = task.spending.budget + len(self.scores.reused) + len(task.spending.known)
        small = len(self.pool) <= SMALL_POOL and self.pool.embeddings.size <= FEW_NUMBERS and scores <= FEW_SCORES
        self._short = small and not task.aim.diversity
        with self._observer.stage("select"):
            self.session, self.batch = await self._step(self._begin, limits, deleted)

    async def _step(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        """Run a step of the session in a thread.

        A short step runs in the event loop, after other tasks, if few selections run.
        """
        if self._short and self._shared.running <= FEW_RUNNING:
            await asyncio.sleep(0)
            return function(*args)
        return await self._in_thread(function, *args)

    @property
    def grouping(self) -> Grouping | None:
        """The task's limit on groups or, from `retrieve` on, the default of its index."""
        return self._task.aim.distinct

    async def _limits(self) -> SetLimits:
        """Read the limits of the set."""
        limits = await limits_of(self._task.aim, self._k, self._candidates, self.documents, self.pool.ids)
        self._warnings += limits.warnings
        return limits

    async def _read_ahead(self) -> NDArray[np.intp]:
        """Read the documents that came with the request, and those scored for earlier tasks.

        Scores of unchanged texts are reused. It returns the positions of deleted documents.
        """
        hinted = await self.scores.look_up() if self._task.spending.reuse else set()
        wanted = np.arange(len(self.pool))
        if not self._candidates.texts_at_hand:  # read only documents that had one of these texts when scored
            wanted = np.flatnonzero([id in hinted for id in self.pool.ids])
        positions = await self.documents.read(wanted)
        if hinted:
            brought, texts = self._task.spending.known.keys(), self.documents.texts.tolist()
            settled = {texts[position] for position, id in enumerate(self.pool.ids) if id in brought}
            first = {texts[position]: position for position in reversed(positions.tolist())}
            unsettled = np.array([position for text, position in first.items() if text not in settled], dtype=np.intp)
            there = zip(unsettled.tolist(), self.documents.get(unsettled), strict=True)
            found = {position: document for position, document in there if document is not None}
            self.scores.reused = await self._in_thread(self.scores.reusable, found)
        return self.documents.deleted(positions)

    def _begin(self, limits: SetLimits, deleted: NDArray[np.intp]) -> tuple[BaseSession, NDArray[np.intp]]:
        """Make the session and the first batch."""
        models = self.scores.model, self._encoder
        self.calibrated, said = CalibratedScores.of(self._task, self.vectors, *models, self._shared.trust)
        self._warnings += said
        if self.calibrated.harmful and self._budget and not self._task.ranks_all:
            explicit = self._task.spending.explicit
            self._warnings.append(HARMFUL if explicit else SPARED)
            self._budget = self._budget if explicit else 0
        self._blank = self.documents.without_content(np.arange(len(self.pool)))
        known, brought, blank = dict(self.scores.reused), self._task.spending.known, set(self._blank.tolist())
        if brought:
            known |= {place: brought[id] for place, id in enumerate(self.pool.ids) if id in brought}
        known = {place: score for place, score in known.items() if place not in blank}
        replacing = len((self.scores.reused.keys() & known.keys()) - set(self._excluded.tolist()))
        budget = max(0, self._budget - replacing)
        session = session_of(self._task, self.pool, self.calibrated, known, budget, limits.limit, self.boosts)
        if self.documents.copies:
            session.same_texts(self.documents.texts.copy())
        session.give_up(np.concatenate([deleted, limits.deleted, self._excluded, self._blank]))
        self._rounds = rounds_of(self._task, self._budget, self._full)
        return session, self._ask(session)

    def _ask(self, session: BaseSession) -> NDArray[np.intp]:
        """Return the next batch, with no more documents than are likely to be scored in time."""
        most = self._shared.pace.limit(len(self.pool), self._seconds)
        batch = session.ask_round(self._rounds, most, self._full)
        if self._task.report.explain_pool:
            if self._first is None:
                self._first = self.calibrated.read(session.ranking())
            self._sets[session.rounds] = session.selection().documents
        return batch

    @property
    def _seconds(self) -> float:
        """The seconds until scores are useless; infinite if only a complete result is accepted."""
        deadline = self._task.context.deadline.of_scores
        return deadline.at - deadline.clock() if self._task.context.accepts != "complete" else math.inf

    async def progress(self) -> Progress:
        self._enter("progress")
        session, scores = self.session, self.scores
        assert session is not None
        selection, outlook = await self._step(self._believed, session)
        return Progress(
            rounds=session.rounds,
            calls=scores.calls,
            cached=scores.cached,
            budget=self._budget,
            reused=len(scores.reused),
            outlook=outlook,
            pool=self.pool,
            selected=selection.documents,
            passages=self._candidates.passages,
            history=self.calibrated.history([seen for seen in session.history if seen.round == session.rounds]),
            tokens=scores.tokens,
        )

    async def score(self) -> None:
        """Have the batch scored and choose the next one, which is empty after an interruption.

        It raises the errors of retriever and scorer, unless the task accepts an incomplete result.
        """
        self._enter("score")
        session = self.session
        assert session is not None
        try:
            with self._observer.stage("fetch"):
                async with self._task.context.deadline.enforced():
                    await self.read_for(session, self.batch, ahead=True)
            with self._observer.stage("score"):
                asked, scores = await self._score(session.asked)
        except INTERRUPTING as error:
            self.batch = NOTHING
            if self._scored:
                self._interrupt("budget-not-spent", "a part of the budget was not spent", error)
            else:
                self._interrupt("nothing-scored", "nothing was scored", error)
            return
        with self._observer.stage("select"):
            self.batch = await self._step(self._advance, session, asked, scores)
        if self.scores.failure is not None:
            self.batch = NOTHING
            self._interrupt("budget-not-spent", "a part of the budget was not spent", self.scores.failure)

    async def read_for(
        self, session: BaseSession, positions: NDArray[np.intp], *, ahead: bool = False, answer: bool = False
    ) -> bool:
        """Read documents, and update the session by their texts.

        The session gives up deleted documents and those without content, and shares the scores of copies.

        Args:
            session: The session.
            positions: The documents to read.
            ahead: Whether to read documents in advance too, if any are read from a remote source.
            answer: As in `Documents.read`.

        Returns:
            Whether the session changed.
        """
        documents = self.documents
        before = session.given_up, documents.copies
        likely = partial(session.shortlist, AHEAD) if ahead and self._candidates.distant else None
        copies = ahead or bool(session.scored.any())  # copies matter if there are scores to share
        read = await documents.read(positions, likely, copies=copies, answer=answer)
        self._blank = np.union1d(self._blank, documents.without_content(read))
        session.give_up(np.union1d(documents.deleted(read), self._blank))
        if documents.copies > before[1]:
            await self._step(session.same_texts, documents.texts.copy())
        return before != (session.given_up, documents.copies)

    async def _score(self, positions: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Score the first of these positions that are likely to be scored in time.

        It returns them and their scores.
        """
        deadline, pace = self._task.context.deadline.of_scores, self._shared.pace
        deadline.remaining()
        if not positions.size:
            return positions, np.empty(0)
        texts = texts_of(self.documents.get(positions))
        positions = positions[: pace.count_fitting(texts, self._seconds)]
        texts = texts[: len(positions)]
        ids = None if self._candidates.texts_at_hand else [self.pool.ids[position] for position in positions]
        begin, calls = deadline.clock(), self.scores.calls
        try:
            scores = await self.scores.score(texts, documents=ids, deadline=deadline.moment)
        except DeadlineExceeded:
            pace.record_timeout(texts, deadline.clock() - begin)
            raise
        late = isinstance(self.scores.failure, DeadlineExceeded)
        if late or self.scores.calls - calls == len(texts):
            (pace.record_timeout if late else pace.record)(texts, deadline.clock() - begin)
        return positions, scores

    def _advance(self, session: BaseSession, asked: NDArray[np.intp], scores: NDArray[np.float64]) -> NDArray[np.intp]:
        """Condition on scores, NaN for documents without a score, and return the next batch."""
        there = ~np.isnan(scores)
        session.tell(asked[there], self.calibrated.add(asked[there], scores[there]))
        if self.scores.failure is None:
            session.leave_unscored(asked[~there])
            self.ungraded += int(np.count_nonzero(~there))
        return self._ask(session)

    async def result(self) -> SelectionResult:
        """Return the current selection, with its texts if the task asks for them.

        It raises the same errors as `score`.
        """
        self._enter("result")
        task, session, scores = self._task, self.session, self.scores
        selection, outlook, stop_reason = EMPTY, Outlook(0.0, {}, answerable=0.0), None
        if session is not None:
            selection, outlook = await self._selection(session)
            stop_reason = session.stop_reason
            self._warnings += await self._reasons(session, selection)
        elif self._failures.interruption is not None:
            selection = await self._as_given()
            outlook = Outlook(float(len(selection.documents) < len(self.pool)), {})  # without scores
        self._warnings += self._remarks()
        result = SelectionResult(
            task=task,
            budget=self._budget,
            pool=self.pool,
            selection=self._candidates.passages.best(selection, self.pool.ids),
            passages=self._candidates.passages,
            history=self.calibrated.history(session.history) if session else (),
            rounds=session.rounds if session else 0,
            status=self._failures.status(scored=self._scored),
            stop_reason=self._failures.interruption or stop_reason or StopReason.NOTHING_TO_DECIDE,
            outlook=outlook,
            calls=scores.calls,
            cached=scores.cached,
            reused=len(scores.reused),
            documents=self.documents.read_so_far,
            truncated=scores.truncated,
            seconds=self._observer.seconds(),
            warnings=self._warnings,
            vectors=self.vectors,
            explained=await self._explained(),
            tokens=scores.tokens,
            scorer_requests=scores.requests,
            calibration=self.calibrated.created,
            human=self.calibrated.human,
            model=scores.model,
            trust=self.calibrated.trust,
            scores=self.calibrated.original_scores(self.documents.texts),
            proposals=self._proposals,
            spans=scores.spans,
            has_texts=self._task.report.return_documents and self.texts_fit,
        )
        self._observer.record(result, task, scores.model)
        return result

    async def _explained(self) -> Explanation | None:
        """Return how the set came about, if the task asks for it and anything was believed."""
        if self.session is None or self._first is None:
            return None
        ranking = self.calibrated.read(await self._step(self.session.ranking))
        return Explanation(self._first, ranking, self._sets)

    async def _selection(self, session: BaseSession) -> tuple[Selection, Outlook]:
        """Return the selection and its outlook.

        Documents that turn out to be deleted are replaced by others.
        """
        changed = True
        while changed:
            with self._observer.stage("select"):
                selection, outlook = await self._step(self._believed, session)
                if self._task.aim.target is not None:
                    self._proposals = await self._step(session.proposals, self._task.report.proposals)
            if not self._task.report.return_documents:
                break
            proposed = NOTHING if self._proposals is None else self._proposals.documents
            changed = await self.read_texts(np.union1d(selection.documents, proposed))
        blank = np.setdiff1d(self._blank, self._excluded)
        return append_blank(self.calibrated.read(selection), blank, self._task, self._k), outlook

    def _believed(self, session: BaseSession) -> tuple[Selection, Outlook]:
        least = ENOUGH if self._task.aim.min_relevance is None else self._task.aim.min_relevance
        outlook = session.outlook(self.calibrated.threshold(least))
        return session.ranking() if self._task.ranks_all else session.selection(), outlook

    async def read_texts(self, positions: NDArray[np.intp]) -> bool:
        """Read texts for an answer, and return whether the selection may have changed."""
        try:
            with self._observer.stage("fetch"), self._fitting():
                async with self._task.context.deadline.of_texts.enforced():
                    if self.session is not None:
                        return await self.read_for(self.session, positions, answer=True)
                    await self.documents.read(positions, answer=True)
        except INTERRUPTING as error:
            self._interrupt("texts-not-read", "not all texts could be read", error)
        return False

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Leave texts out of the answer, or refuse, if the block reads more than fits into it."""
        try:
            yield
        except AnswerTooLarge:
            if not self._task.report.optional_texts:
                raise
            self.texts_fit = False
            self._warnings.append(TEXTS_LEFT_OUT)

    async def _as_given(self) -> Selection:
        """Return the first documents in the order of the pool, up to the limit."""
        self._warnings += unused_limits(self._task)
        self._blank = self.documents.without_content(np.arange(len(self.pool)))
        selection = in_given_order(self._task, await self._limits(), self.documents.texts, self._blank, self._excluded)
        if self._task.report.return_documents:
            with self._fitting():
                await self.documents.read(selection.documents, answer=True)
        return selection

    @property
    def _scored(self) -> bool:
        """Whether any document is scored."""
        return self.session is not None and bool(self.session.scored.any())

    def _interrupt(self, slug: Slug, shortfall: str, error: BoundaryMorphError) -> None:
        self._failures.interrupt(slug, shortfall, error, scored=self._scored)

    async def _reasons(self, session: BaseSession, selection: Selection) -> list[Notice]:
        """Say why the set is empty, and why no call was made."""
        task, found = self._task, list[Notice]()
        if not selection.documents.size:
            ranking = self.calibrated.read(await self._step(session.ranking))
            scored = bool(ranking.scored.any())
            found += remarks.min_relevance_notices(task.aim.min_relevance, ranking.relevance, scored)
        if (
            self._failures.interruption is None
            and self._budget
            and not (session.history or self.ungraded or self.scores.reused)
        ):
            found.append(remarks.no_call_notice(session.stop_reason, len(selection.documents)))
        return found

    def _remarks(self) -> list[Notice]:
        """Return the warnings about documents, scores, and the script of the query."""
        left_out = 0 if self.session is None else self.session.given_up
        encoder = self._encoder if self.vectors in ("index", "encoder") else None
        return [
            *remarks.document_notices(
                blank=len(np.setdiff1d(self._blank, self._excluded)),
                deleted=left_out - len(np.union1d(self._excluded, self._blank)) if left_out else 0,
                scores=self.calibrated.scores.values(),
                unanswered=self.ungraded,
                truncated=self.scores.truncated,
            ),
            *remarks.script_notices(self._task.query, self.scores.model, encoder),
        ]
