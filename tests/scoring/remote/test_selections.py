"""Selections over a remote scorer: callers in a hurry beside others, and a model that changes on the way."""

import asyncio
import time

import pytest

from boundarymorph.caching.known import MemoryScoreCache
from boundarymorph.errors import DeadlineExceeded
from boundarymorph.inference.concurrency import Deadline
from boundarymorph.retrieval.document import Document
from boundarymorph.scoring.remote import RemoteScorer
from boundarymorph.selector.selector import Selector
from boundarymorph.selector.task import SelectionResult, SelectionTask
from tests.fakes.upstream import Reply, slow
from tests.fakes.wires import Ours, running
from tests.selector.fakes import FakeRetriever, own_pool

CANDIDATES = own_pool([Document(f"d{number}", f"text {number}") for number in range(12)])


async def selected(selector: Selector, *, budget: int = 1, reuse: bool = True) -> SelectionResult:
    deadline = Deadline(time.monotonic() + 60)
    task = SelectionTask("query", CANDIDATES, budget, 3, rounds=1_000, deadline=deadline, reuse=reuse)
    return await selector.select(task)


async def test_callers_in_a_hurry_take_nothing_from_the_others() -> None:
    """The scorer answers in 50 ms. Some callers give it 20."""
    async with running(Ours()) as [server]:
        scorer = RemoteScorer([server.endpoint()])
        selector = Selector(FakeRetriever(), scorer)
        assert (await selected(selector)).status == "complete"
        server.behaviour = slow(0.05)
        for _ in range(4):
            for _ in range(5):
                with pytest.raises(DeadlineExceeded):
                    await scorer.score("query", ["text"], deadline=time.monotonic() + 0.02)
            later = await asyncio.gather(*(selected(selector) for _ in range(10)))
            assert [result.status for result in later] == ["complete"] * 10
        await selector.close()
        await scorer.close()


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("reuse", [False, True])
async def test_the_scores_of_a_selection_are_of_one_model(caching: bool, reuse: bool) -> None:
    async with running(Ours("a")) as [server]:
        remote = RemoteScorer([server.endpoint()])
        await remote.connect()
        cache = MemoryScoreCache() if caching else None
        selector = Selector(FakeRetriever(), remote, cache)

        async def change(reply: Reply) -> Reply:
            server.wire = Ours("b")
            return reply

        server.script = [change]
        result = await selected(selector, budget=4, reuse=reuse)
        assert (result.status, result.stop_reason) == ("partial", "scorer_unavailable")
        assert len(result.history) == 1, "the one score of the old model, and none of the new one"
        assert any("model has changed" in warning for warning in result.warnings)
        after = await selected(selector, budget=4, reuse=reuse)
        assert (after.status, after.reused, len(after.history)) == ("complete", 0, 4)
        await selector.close()
        await remote.close()
