"""Test selections whose deadline passes, or whose retriever or scorer fails."""

import asyncio
import time
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from boundarymorph.errors import (
    BoundaryMorphError,
    DeadlineExceeded,
    Overloaded,
    RetrieverFailed,
    RetrieverUnavailable,
    ScorerFailed,
    ScorerUnavailable,
    StorageFull,
)
from boundarymorph.inference.concurrency import RESERVE, Deadline
from boundarymorph.retrieval.document import Document, Retrieval
from tests.clocks import Clock
from tests.fakes.scorer import SeededScorer
from tests.selector.fakes import FakeRetriever, MakeSelector, changed, task


class FailingRetriever(FakeRetriever):
    """A retriever that answers some fetches, and then raises an error or hangs."""

    def __init__(self, error: Exception | None, fetches: float) -> None:
        super().__init__()
        self.error, self.fetches = error, fetches

    async def documents(
        self, index: str, ids: Sequence[str], *, texts: bool = True, caller: str = ""
    ) -> Mapping[str, Document]:
        self.fetches -= 1
        if self.fetches >= 0:
            return await super().documents(index, ids)
        if self.error is None:
            await asyncio.Event().wait()
        raise self.error or AssertionError


class TestFailures:
    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (DeadlineExceeded("late"), "deadline"),
            (Overloaded("busy"), "overloaded"),
            (ScorerUnavailable("gone"), "scorer_unavailable"),
            (ScorerFailed("logits"), "scorer_failed"),
        ],
    )
    @pytest.mark.parametrize("first", [0, 2])
    async def test_interrupted_selection_returns_the_set_so_far(
        self, error: BoundaryMorphError, reason: str, first: int, selector_of: MakeSelector
    ) -> None:
        result = await selector_of(FakeRetriever(), SeededScorer(error=error, first=first)).select(task(budget=20))
        assert result.status == ("partial" if first else "retrieval_only")
        assert result.stop_reason == reason
        assert len(result.history) == first
        assert any(error.public in warning.message for warning in result.warnings)
        as_wanted = await selector_of(FakeRetriever(), SeededScorer()).select(task(budget=first))
        np.testing.assert_array_equal(result.selection.documents, as_wanted.selection.documents)
        if not first:
            assert result.selection.documents.tolist() == [0, 1, 2, 3]
        with pytest.raises(type(error)):
            await selector_of(FakeRetriever(), SeededScorer(error=error, first=first)).select(
                changed(task(20), accepts="complete")
            )

    @pytest.mark.parametrize("fetches", [0, 2, 4])
    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (RetrieverUnavailable("nobody answers"), "retriever_unavailable"),
            (StorageFull("nobody answers"), "retriever_unavailable"),
            (RetrieverFailed("nobody answers"), "retriever_failed"),
            (Overloaded("nobody answers"), "overloaded"),
        ],
    )
    async def test_retriever_failing_midway_gives_a_partial_selection(
        self, error: BoundaryMorphError, reason: str, fetches: int, selector_of: MakeSelector
    ) -> None:
        wanted = task(budget=8, k=12, rounds=4, return_documents=True)
        result = await selector_of(FailingRetriever(error, fetches), SeededScorer()).select(wanted)
        assert result.status == ("partial" if fetches else "retrieval_only")
        assert result.stop_reason == reason
        assert len(result.history) == 2 * fetches
        assert len(result.selection.documents) == 12
        assert any(error.public in warning.message for warning in result.warnings)
        with pytest.raises(type(error)):
            await selector_of(FailingRetriever(error, fetches), SeededScorer()).select(
                changed(wanted, accepts="complete")
            )

    async def test_selection_with_nothing_to_decide_needs_no_scorer(self, selector_of: MakeSelector) -> None:
        selector = selector_of(FakeRetriever(), SeededScorer(error=ScorerUnavailable("gone")))
        assert (await selector.select(changed(task(k=30), goal="set"))).status == "complete"
        assert (await selector.select(task(budget=0))).status == "complete"


class TestDeadline:
    async def test_no_round_begins_after_the_deadline(self, selector_of: MakeSelector) -> None:
        clock = Clock()
        scorer = SeededScorer(clock=clock, seconds=2.0)
        wanted = changed(
            task(budget=20, k=9, rounds=10),
            deadline=Deadline(clock.now + 3 + 3 * 2.5 + RESERVE, clock),
            return_documents=True,
        )
        result = await selector_of(FakeRetriever(clock), scorer, clock=clock).select(wanted)
        assert (result.status, result.stop_reason, result.rounds) == ("partial", "deadline", 3)
        chosen = {result.pool.ids[position] for position in result.selection.documents}
        assert len(chosen) == 9
        assert chosen <= set(result.documents)  # a little time remains to read the texts

    @pytest.mark.parametrize(
        ("left", "budget", "k", "calls"), [(1.5, 20, 9, 1), (4.5, 20, 9, 2), (9.0, 20, 9, 3), (16.0, 30, 30, 13)]
    )
    async def test_round_size_fits_the_time_left(
        self, left: float, budget: int, k: int, calls: int, selector_of: MakeSelector
    ) -> None:
        """The scorer takes a second per document, and a round of five would score nothing.

        Rounds get smaller as the deadline comes near, and finished scores are kept.
        """
        clock = Clock()
        scorer = SeededScorer(clock=clock, each=1.0)
        selector = selector_of(FakeRetriever(clock), scorer, clock=clock)
        # The selector measures the scorer's speed.
        await selector.select(changed(task(budget=20, rounds=5), deadline=Deadline(1e6, clock)))
        scorer.rounds.clear()
        deadline = Deadline(clock.now + 3 + 0.5 + left, clock)
        result = await selector.select(changed(task(budget=budget, k=k, rounds=6), deadline=deadline))
        assert (result.status, result.stop_reason) == ("partial", "deadline")
        assert result.calls >= calls and len(scorer.rounds) <= 6
        assert len(result.selection.documents) == k >= result.selection.scored.sum() > 0

    async def test_deadline_before_the_pool_raises_deadline_exceeded(self, selector_of: MakeSelector) -> None:
        class Hanging(FakeRetriever):
            async def retrieve(self, *_: object, **__: object) -> Retrieval:
                await asyncio.Event().wait()
                raise AssertionError

        selector = selector_of(Hanging(), SeededScorer())
        with pytest.raises(DeadlineExceeded):
            await selector.select(changed(task(), deadline=Deadline(time.monotonic() + 0.05)))
