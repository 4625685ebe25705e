"""The paper's method says in what it was not the paper's algorithm."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from boundarymorph.caching.memory import MemoryScoreCache
from boundarymorph.retrieval.document import Document
from boundarymorph.selector.selector import Selector
from boundarymorph.selector.task import SelectionTask
from tests.scoring.fakes import SeededScorer
from tests.selector.fakes import IDS, FakeRetriever, own_pool, task

PAPER = replace(task(budget=6, batch_size=1), method="boundarymorph", goal="set")


async def warned(selector: Selector, wanted: SelectionTask) -> list[str]:
    return [warning for warning in (await selector.select(wanted)).warnings if "departed" in warning]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (PAPER, None),
        (replace(PAPER, method="trend", batch_size=5), None),
        (replace(PAPER, batch_size=4), "rounds of up to 4"),
        (replace(PAPER, batch_size=64, growing=True), "rounds of up to 2"),
        (replace(PAPER, k=30, goal="order"), "calls went to the order"),
        (replace(PAPER, candidates=own_pool([Document(id, id) for id in IDS], known={IDS[3]: 0.5})), "1 score came"),
    ],
)
async def test_it_names_what_departs(selector_of: Callable[..., Selector], wanted: SelectionTask, said: str) -> None:
    found = await warned(selector_of(FakeRetriever(), SeededScorer()), wanted)
    assert len(found) == (said is not None)
    assert all(said in warning for warning in found)


async def test_known_scores_depart_unless_they_are_left_aside(selector_of: Callable[..., Selector]) -> None:
    selector = selector_of(FakeRetriever(), SeededScorer(), MemoryScoreCache())
    assert await warned(selector, PAPER) == []
    (found,) = await warned(selector, replace(PAPER, budget=9))
    assert '6 scores were known from earlier requests ("reuse": false starts from none)' in found
    assert await warned(selector, replace(PAPER, reuse=False)) == []
