"""Test the checks of a run's steps, and the warnings about low scores and scripts."""

import time
from collections.abc import AsyncIterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from boundarymorph.caching.scorer import CachingScorer, TaskScores
from boundarymorph.inference.concurrency import FairExecutor
from boundarymorph.scoring.scorer import Scores
from boundarymorph.selector.observer import Observer
from boundarymorph.selector.remarks import script_notices
from boundarymorph.selector.run import CALLS, Call, SelectionRun, State
from boundarymorph.selector.shared import SharedState
from boundarymorph.telemetry.tracing import Stopwatch
from tests.fakes.scorer import SeededScorer
from tests.selector.fakes import FakeRetriever, MakeSelector, task


class LowScorer(SeededScorer):
    """A scorer with low scores, except for the last document of a selection."""

    def __init__(self, last: float) -> None:
        super().__init__()
        self.last, self.scored = last, 0

    async def score(self, query: str, texts: Sequence[str], **_: Any) -> Scores:
        self.scored += len(texts)
        return Scores(np.array([self.last if self.scored == 10 else 0.001] * len(texts)))


@pytest.mark.parametrize(("budget", "last", "said"), [(10, 0.049, True), (10, 0.05, False), (9, 0.001, False)])
async def test_result_warns_if_all_scores_are_low(
    budget: int, last: float, said: bool, selector_of: MakeSelector
) -> None:
    result = await selector_of(FakeRetriever(), LowScorer(last)).select(task(budget=budget))
    assert len(result.history) == budget
    assert any(warning.slug == "all-scores-low" for warning in result.warnings) == said


SCORER, ENCODER = (
    "cross-encoder/ms-marco-MiniLM-L-12-v2@1225ccd6afd0/int8/512",
    "BAAI/bge-small-en-v1.5@68807e3ff2ab/int8/512",
)


@pytest.mark.parametrize(
    ("query", "models", "said"),
    [
        ("какие поезда ходят ночью", (SCORER, ENCODER), "(Cyrillic)"),
        ("夜行列車はありますか", (SCORER, None), "(Hiragana)"),
        ("night trains", (SCORER, ENCODER), None),
        ("Nachtzüge nach Łódź", (SCORER, ENCODER), None),
        ("the μ-opioid receptor and β-actin", (SCORER, ENCODER), None),
        ("αβ ab", (SCORER, ENCODER), None),
        ("αβγ ab", (SCORER, ENCODER), "(Greek)"),
        ("2 + 2 = ?", (SCORER, ENCODER), None),
        ("какие поезда", ("BAAI/bge-reranker-v2-m3@main", None), None),
        ("какие поезда", ("Alibaba-NLP/gte-reranker-modernbert-base@main/fp32/8192", None), "gte-reranker-modernbert"),
        ("какие поезда", ("BAAI/bge-reranker-v2-m3@main", ENCODER), "BAAI/bge-small-en-v1.5"),
    ],
)
def test_unfamiliar_names_a_script_the_models_do_not_know(
    query: str, models: tuple[str | None, str | None], said: str | None
) -> None:
    found = script_notices(query, *models)
    assert (not found) == (said is None) and (said is None or said in str(found))
    if said:
        assert ("were trained" in str(found)) == (models == (SCORER, ENCODER))
    if models[0] != SCORER:
        assert "ms-marco" not in str(found)


@pytest.fixture
async def run() -> AsyncIterator[SelectionRun]:
    wanted, executor = task(budget=3), FairExecutor("test", threads=1)
    scores = TaskScores(CachingScorer(SeededScorer(), None), wanted.query)
    yield SelectionRun(
        wanted,
        wanted.source.candidates(FakeRetriever()),
        scores,
        SharedState(executor),
        Observer(Stopwatch(time.monotonic)),
    )
    await executor.close()


PATH: dict[State, tuple[Call, ...]] = {
    "new": (),
    "retrieved": ("retrieve",),
    "chosen": ("retrieve", "look_up"),
    "done": ("retrieve", "look_up", "result"),
}


@pytest.mark.parametrize(("state", "call"), [*product(PATH, CALLS)])
async def test_run_accepts_each_call_in_one_state_only(run: SelectionRun, state: State, call: Call) -> None:
    for earlier in PATH[state]:
        await getattr(run, earlier)()
    assert run.state == state
    before, after = CALLS[call]
    if state == before:
        await getattr(run, call)()
        assert run.state == after
    else:
        with pytest.raises(RuntimeError, match=f"is in '{state}'"):
            await getattr(run, call)()
        assert run.state == state


async def test_run_without_a_batch_accepts_only_result(run: SelectionRun) -> None:
    await run.retrieve()
    await run.look_up()
    while run.batch.size:
        await run.score()
    for refused in (run.progress, run.score):
        with pytest.raises(RuntimeError, match="nothing left to score"):
            await refused()
    await run.result()
    with pytest.raises(RuntimeError, match="is in 'done'"):
        await run.result()
