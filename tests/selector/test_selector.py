"""Test the steps of a selection, cancellation, and documents that are deleted meanwhile."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from boundarymorph.caching.scores import MemoryScoreCache
from boundarymorph.retrieval.document import Document
from boundarymorph.scoring.scorer import Scores
from boundarymorph.selection import Session
from boundarymorph.selection.methods import METHODS
from boundarymorph.selector import run
from boundarymorph.selector.result import Progress, SelectionResult
from tests.fakes.scorer import SeededScorer, score_of
from tests.selector.fakes import IDS, QUERY, FakeRetriever, MakeSelector, changed, own_pool, task


async def test_selector_retrieves_scores_and_selects_in_rounds(selector_of: MakeSelector) -> None:
    retriever, scorer = FakeRetriever(), SeededScorer()
    result = await selector_of(retriever, scorer).select(task(rounds=2))
    assert [len(texts) for texts in scorer.rounds] == [3, 3]
    assert result.rounds == 2
    asked = [text for texts in scorer.rounds for text in texts]
    assert [result.pool.ids[observation.document] for observation in result.history] == asked == retriever.fetched
    assert [observation.score for observation in result.history] == [score_of(QUERY, text) for text in asked]
    assert set(result.documents) == set(asked)
    assert len(result.selection.documents) == 4
    assert list(result.warnings) == []


class TestDeletedDocuments:
    @pytest.mark.parametrize("method", METHODS)
    async def test_deleted_document_is_not_taken_for_irrelevant(self, method: str, selector_of: MakeSelector) -> None:
        """Otherwise similar documents would seem irrelevant, too; here everything scores 0.9."""

        class Constant(SeededScorer):
            async def score(self, query: str, texts: Sequence[str], **_: Any) -> Scores:
                return Scores(np.full(len(texts), 0.9))

        retriever = FakeRetriever()
        retriever.gone |= {f"d{number}" for number in range(0, 30, 2)}
        selector = selector_of(retriever, Constant())
        result = await selector.select(changed(task(budget=10, k=15, rounds=2), method=method))
        assert [observation.score for observation in result.history] == [0.9] * 10
        assert (result.status, result.calls) == ("complete", 10)
        guessed = result.selection.relevance[~result.selection.scored]
        assert guessed.size and guessed.min() > (0.85 if method == "trend" else 0.5)

    @pytest.mark.parametrize("budget", [0, 4])
    async def test_document_deleted_before_its_return_is_replaced(self, budget: int, selector_of: MakeSelector) -> None:
        retriever = FakeRetriever()
        selector = selector_of(retriever, SeededScorer())
        wanted = task(budget=budget, k=6, return_documents=True)
        plain = await selector.select(wanted)
        unscored = plain.selection.documents[~plain.selection.scored]
        retriever.gone |= {plain.pool.ids[position] for position in unscored}
        result = await selector.select(wanted)
        chosen = {result.pool.ids[position] for position in result.selection.documents}
        assert len(chosen) == 6 and not chosen & retriever.gone
        assert chosen <= set(result.documents)
        assert list(result.history) == list(plain.history)
        assert any(f"{len(unscored)} documents were deleted" in warning.message for warning in result.warnings)

    @pytest.mark.parametrize("limits", [{"k": 29}, {"k": None, "max_tokens": 29}])
    async def test_documents_deleted_before_the_first_round_are_left_out(
        self, limits: dict[str, Any], selector_of: MakeSelector
    ) -> None:
        """Deletion is noticed when cached scores or lengths are read. Each document has one token."""
        retriever = FakeRetriever()
        selector = selector_of(retriever, SeededScorer(), MemoryScoreCache())
        first = await selector.select(task(budget=6))
        retriever.gone |= {first.pool.ids[observation.document] for observation in first.history}
        result = await selector.select(changed(task(budget=0), **limits))
        chosen = {result.pool.ids[position] for position in result.selection.documents}
        assert chosen == set(IDS) - retriever.gone

    async def test_pool_of_deleted_documents_has_nothing_to_decide(self, selector_of: MakeSelector) -> None:
        retriever, scorer = FakeRetriever(), SeededScorer()
        retriever.gone |= set(IDS)
        result = await selector_of(retriever, scorer).select(task(budget=1, k=1, rounds=1, return_documents=True))
        assert (result.status, result.stop_reason, result.outlook.loss) == ("complete", "nothing_to_decide", 0)
        assert scorer.rounds == []
        assert len(result.history) == len(result.selection.documents) == 0
        assert len(result.selection.relevance) == len(result.selection.std) == len(result.selection.scored) == 0


async def test_selector_yields_progress_after_each_round(selector_of: MakeSelector) -> None:
    selector = selector_of(FakeRetriever(), SeededScorer())
    *rounds, result = [step async for step in selector.steps(task(budget=6, rounds=3))]
    assert isinstance(result, SelectionResult)
    told = [step for step in rounds if isinstance(step, Progress)]
    assert [(step.rounds, step.calls, step.budget) for step in told] == [(0, 0, 6), (1, 2, 6), (2, 4, 6)]
    assert {step.reused for step in told} == {0}
    assert all(len(step.selected) == 4 and 0 <= step.outlook.loss <= 1 for step in told)
    plain = await selector.select(task(budget=6, rounds=3))
    np.testing.assert_array_equal(result.selection.documents, plain.selection.documents)
    assert result.outlook.loss == plain.outlook.loss


@pytest.mark.parametrize(
    ("other", "here"),
    [
        ({}, True),
        ({"SMALL_POOL": 29}, False),
        ({"FEW_SCORES": 4}, False),
        ({"FEW_RUNNING": 0}, False),
        ({"FEW_NUMBERS": 30 * 32 - 1}, False),
    ],
)
async def test_small_session_runs_on_the_event_loop_and_large_in_threads(
    other: dict[str, int], here: bool, selector_of: MakeSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ({"SMALL_POOL": 30, "FEW_SCORES": 5, "FEW_RUNNING": 1, "FEW_NUMBERS": 30 * 32} | other).items():
        monkeypatch.setattr(run, name, value)
    threads, tell = set[int](), Session.tell

    def told(session: Session, documents: Sequence[int], scores: Sequence[float]) -> None:
        threads.add(threading.get_ident())
        tell(session, documents, scores)

    monkeypatch.setattr(Session, "tell", told)
    given = own_pool([Document(str(number), f"text {number}") for number in range(30)])
    assert (await selector_of(FakeRetriever(), SeededScorer()).select(changed(task(5), source=given))).calls == 5
    assert (threads == {threading.get_ident()}) is here
