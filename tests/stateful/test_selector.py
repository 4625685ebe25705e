"""Test selections with failing and hanging parts and lost documents, in virtual time."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar, get_args

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from boundarymorph.caching.scores import MemoryScoreCache
from boundarymorph.errors import (
    DeadlineExceeded,
    Overloaded,
    RetrieverFailed,
    RetrieverUnavailable,
    ScorerFailed,
    ScorerUnavailable,
)
from boundarymorph.inference.concurrency import LATE, Deadline
from boundarymorph.retrieval.candidates import IndexSource, PoolSource, Source
from boundarymorph.retrieval.document import Document, Retrieval, Search
from boundarymorph.scoring.scorer import Scores
from boundarymorph.selection import Pool, StopReason
from boundarymorph.selection.methods import METHODS
from boundarymorph.selector.result import Interruption, Progress, SelectionResult
from boundarymorph.selector.selector import Selector
from boundarymorph.selector.task import (
    Acceptance,
    Aim,
    Context,
    Goal,
    Relevance,
    Report,
    Rounds,
    SelectionTask,
    Spending,
)
from tests.clocks import VirtualLoop
from tests.fakes.scorer import SeededScorer, score_of
from tests.retrieval.fakes import vector_of
from tests.selector.fakes import FakeRetriever, own_pool
from tests.stateful.profile import draws

Result = TypeVar("Result")
HANGS = 1_000.0
QUERIES = ("one", "two")
IDS = [f"d{number}" for number in range(12)]
LATENCIES = st.sampled_from([0.0, 0.0, 0.0, 0.1, 1.0, HANGS])
RETRIEVER_TROUBLE = (Overloaded("busy"), RetrieverUnavailable("away"), RetrieverFailed("broken"))
SCORER_TROUBLE = (Overloaded("busy"), ScorerUnavailable("away"), ScorerFailed("broken"))


class SelectorLoop(VirtualLoop):
    """An event loop that runs the work of threads at once."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, function: Callable[..., Result], *args: Any
    ) -> asyncio.Future[Result]:
        done: asyncio.Future[Result] = self.create_future()
        outcome = function(*args)

        def finish() -> None:
            if not done.cancelled():
                done.set_result(outcome)

        self.call_soon(finish)
        return done


class ScriptedRetriever(FakeRetriever):
    """An index with a script for its calls: seconds, an error, or ids to delete first."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.script: list[float | Exception | set[str]] = []
        self.missed: set[str] = set()
        self.running = 0

    async def _act(self) -> None:
        self.running += 1
        try:
            action = self.script.pop() if self.script else 0.0
            if isinstance(action, Exception):
                raise action
            if isinstance(action, set):
                self.texts = {id: text for id, text in self.texts.items() if id not in action}
            else:
                await asyncio.sleep(action)
        finally:
            self.running -= 1

    async def retrieve(self, index: str, search: Search, *, caller: str = "") -> Retrieval:
        await self._act()
        ids = sorted(self.texts)
        return Retrieval(Pool.from_embeddings(ids, np.array([vector_of(id) for id in ids]), vector_of(search.query)))

    async def documents(
        self, index: str, ids: Sequence[str], *, texts: bool = True, caller: str = ""
    ) -> Mapping[str, Document]:
        await self._act()
        self.missed |= set(ids) - self.texts.keys()
        return {id: Document(id, self.texts[id]) for id in ids if id in self.texts}


class ScriptedScorer(SeededScorer):
    """A scorer that counts its scores, with seconds or errors for its calls in a script."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[float | Exception] = []
        self.scored = 0
        self.running = 0

    async def score(self, query: str, texts: Sequence[str], *, deadline: float | None = None, **_: Any) -> Scores:
        self.running += 1
        try:
            action = self.script.pop() if self.script else 0.0
            if isinstance(action, Exception):
                raise action
            async with asyncio.timeout_at(deadline):
                await asyncio.sleep(action)
        except TimeoutError as error:
            raise DeadlineExceeded("late") from error
        finally:
            self.running -= 1
        self.scored += len(texts)
        return await super().score(query, texts)


class SelectorMachine(RuleBasedStateMachine):
    """Change the index or select in each step.

    The model is the documents, and the calls that the scripted parts have received.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = SelectorLoop()
        self.retriever, self.scorer = ScriptedRetriever(), ScriptedScorer()
        self.retriever.texts = {id: f"text of {id}" for id in IDS}
        cache = MemoryScoreCache(clock=self.loop.time)
        self.selector = Selector(self.retriever, self.scorer, cache, clock=self.loop.time)

    def teardown(self) -> None:
        self.run(self.selector.close())
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        async def alone() -> Result:
            try:
                return await work
            finally:
                await asyncio.sleep(0.01)  # scores are written to the cache after the request
                assert asyncio.all_tasks() == {asyncio.current_task()}
                assert self.retriever.running == self.scorer.running == 0

        return self.loop.run_until_complete(alone())

    @rule(ids=st.sets(st.sampled_from(IDS), min_size=1, max_size=8), version=st.integers(0, 2))
    def upload(self, ids: set[str], version: int) -> None:
        """Upload documents, some with equal texts."""
        self.retriever.texts |= {id: f"text {int(id[1:]) // (version + 1)}" for id in ids}

    @rule(
        data=st.data(),
        query=st.sampled_from(QUERIES),
        own=st.booleans(),
        budget=st.integers(0, 14),
        k=st.integers(1, 9),
        rounds=st.integers(1, 14) | st.just("auto"),
        method=st.sampled_from(sorted(METHODS)),
        seconds=st.none() | st.floats(0.05, 5),
        return_documents=st.booleans(),
        reuse=st.booleans(),
        goal=st.sampled_from(["set", "order"]),
        accepts=st.sampled_from(get_args(Acceptance)),
    )
    def select(
        self,
        data: st.DataObject,
        query: str,
        own: bool,
        budget: int,
        k: int,
        rounds: Rounds,
        method: str,
        seconds: float | None,
        return_documents: bool,
        reuse: bool,
        goal: Goal,
        accepts: Acceptance,
    ) -> None:
        if not self.retriever.texts:
            return
        source: Source = IndexSource("index", Search(query, len(IDS)))
        known: dict[str, float] = {}
        if own:
            source, known = self._own_pool(query, data)
        deadline = Deadline(math.inf if seconds is None else self.loop.now + seconds, self.loop.time)
        task = SelectionTask(
            source,
            Aim(k),
            Spending(budget, goal=goal, rounds=rounds, reuse=reuse, known=known),
            Relevance(method),
            Report(return_documents),
            Context(deadline=deadline, accepts=accepts),
        )
        quick = st.sampled_from([0.0, 0.1]) if seconds is None else LATENCIES
        deletions = st.sets(st.sampled_from(IDS), max_size=6)
        retrieving = data.draw(st.sampled_from([quick, quick | deletions, quick | st.sampled_from(RETRIEVER_TROUBLE)]))
        scoring = data.draw(st.sampled_from([quick, quick | st.sampled_from(SCORER_TROUBLE)]))
        self.retriever.script = data.draw(st.lists(retrieving, max_size=6))
        self.scorer.script = data.draw(st.lists(scoring, max_size=4))
        self.retriever.missed.clear()
        texts, scored, began = dict(self.retriever.texts), self.scorer.scored, self.loop.now
        leaves = data.draw(st.none() | st.none() | st.floats(0.01, 3), label="leaves after")
        steps: list[Progress | SelectionResult] = []
        error = self.run(self._carry_out(task, steps, leaves))
        if isinstance(error, asyncio.CancelledError):
            return
        assert seconds is None or self.loop.now - began <= seconds + LATE + 0.011
        if error is not None:
            refused = isinstance(error, Overloaded) and accepts == "scored"
            assert accepts == "complete" or not steps or refused, repr(error)
            assert isinstance(error, DeadlineExceeded | RETRIEVER_ERRORS if not steps else tuple(TROUBLE))
            return
        *before, result = steps
        assert isinstance(result, SelectionResult)
        self._check(task, result, texts, len(known))
        assert result.calls == self.scorer.scored - scored
        for step in before:
            assert isinstance(step, Progress)
            assert step.calls + step.cached <= max(0, budget - step.reused)
            assert len(step.selected) == len(set(step.selected)) <= k

    def _own_pool(self, query: str, data: st.DataObject) -> tuple[PoolSource, dict[str, float]]:
        """Return a pool with the same texts under other ids, and the scores that a caller knows."""
        documents = [Document(f"own {id}", text) for id, text in sorted(self.retriever.texts.items())]
        brought = data.draw(st.sets(st.sampled_from([document.id for document in documents]), max_size=2))
        known = {document.id: score_of(query, document.text) for document in documents if document.id in brought}
        return own_pool(documents, query), known

    async def _carry_out(
        self, task: SelectionTask, steps: list[Progress | SelectionResult], leaves: float | None
    ) -> BaseException | None:
        """Append all steps of a task, and return the error that ended it.

        If `leaves` is given, the caller leaves after as many seconds.
        """

        async def follow() -> None:
            async for step in self.selector.steps(task):
                steps.append(step)

        running = asyncio.ensure_future(follow())
        await asyncio.wait({running}, timeout=leaves)
        left = not running.done()
        running.cancel()
        await asyncio.wait({running})
        if left:
            scored = self.scorer.scored
            await asyncio.sleep(2 * HANGS)
            assert self.scorer.scored == scored
            return asyncio.CancelledError()
        return running.exception()

    def _check(self, task: SelectionTask, result: SelectionResult, texts: Mapping[str, str], brought: int) -> None:
        selection, ids = result.selection, result.pool.ids
        chosen = [ids[position] for position in selection.documents]
        missed = self.retriever.missed & set(ids)
        assert not missed & set(chosen)
        assert len(chosen) == len(set(chosen)) == min(task.aim.k or 0, len(ids) - len(missed))
        complete = result.stop_reason in StopReason
        assert complete == (result.stop_reason not in Interruption)
        known = brought + result.reused
        assert result.status == ("complete" if complete else "partial" if known or result.history else "retrieval_only")
        assert result.calls + result.cached == len(result.history) <= max(0, task.spending.budget - result.reused)
        if result.stop_reason == StopReason.BUDGET:
            assert len(result.history) == max(0, task.spending.budget - result.reused)
        assert complete or (task.context.accepts != "complete" and result.warnings)
        if task.spending.budget and len(ids) and not result.history:
            assert result.warnings or result.reused
        if not task.spending.reuse:
            assert result.reused == 0
        text_of = {id: texts[id.removeprefix("own ")] for id in ids}
        for id, relevance, std, scored in zip(
            chosen, selection.relevance.tolist(), selection.std.tolist(), selection.scored.tolist(), strict=True
        ):
            assert not scored or (relevance, std) == (score_of(task.query, text_of[id]), 0)
        if task.report.return_documents and complete:
            assert {id: result.documents[id].text for id in chosen} == {id: text_of[id] for id in chosen}


RETRIEVER_ERRORS = Overloaded | RetrieverUnavailable | RetrieverFailed
TROUBLE = {DeadlineExceeded, *(type(error) for error in (*RETRIEVER_TROUBLE, *SCORER_TROUBLE))}

TestSelector = SelectorMachine.TestCase
TestSelector.settings = draws(16, 8)
