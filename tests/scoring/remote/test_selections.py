"""Selections over a remote scorer whose model changes on the way."""

import time

import pytest

from boundarymorph.caching.known import MemoryScoreCache
from boundarymorph.inference.concurrency import Deadline
from boundarymorph.retrieval.document import Document
from boundarymorph.scoring.remote import RemoteScorer
from boundarymorph.selector.selector import Selector
from boundarymorph.selector.task import SelectionResult, SelectionTask
from tests.fakes.upstream import Reply
from tests.fakes.wires import Ours, running
from tests.selector.fakes import FakeRetriever, own_pool

CANDIDATES = own_pool([Document(f"d{number}", f"text {number}") for number in range(12)])


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("reuse", [False, True])
async def test_scores_of_a_selection_are_of_one_model(cached: bool, reuse: bool) -> None:
    async def selected() -> SelectionResult:
        deadline = Deadline(time.monotonic() + 60)
        task = SelectionTask("query", CANDIDATES, 4, 3, rounds=1_000, deadline=deadline, reuse=reuse)
        return await selector.select(task)

    async def change(reply: Reply) -> Reply:
        server.wire = Ours("b")
        return reply

    async with running(Ours("a")) as [server]:
        remote = RemoteScorer([server.endpoint()])
        await remote.connect()
        selector = Selector(FakeRetriever(), remote, MemoryScoreCache() if cached else None)
        server.script = [change]
        result = await selected()
        assert (result.status, result.stop_reason) == ("partial", "scorer_unavailable")
        assert len(result.history) == 1, "the one score of the old model, and none of the new one"
        assert any("model has changed" in warning.message for warning in result.warnings)
        after = await selected()
        assert (after.status, after.reused, len(after.history)) == ("complete", 0, 4)
        await selector.close()
        await remote.close()
