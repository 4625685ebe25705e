"""Test the verdict on a scorer, with computed cases and with the service's default method."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.selection import Session
from boundarymorph.selection.methods import HUMAN_CONFIG
from boundarymorph.selector import composition
from boundarymorph_evaluation.methods import CONTESTANTS, morph
from boundarymorph_evaluation.run import run_once
from boundarymorph_evaluation.verdict import FIRST, FUSION, HYBRID, METHODS, NO_CALLS, OURS, RETRIEVER, Verdict, judge
from tests.evaluation.tables import synthetic

MEANS = {RETRIEVER: 60.0, FUSION: 62.0, NO_CALLS: 61.0, FIRST: 60.0, HYBRID: 60.0, OURS: 62.0}


def verdict(means: Mapping[str, float], *, questions: int = 8, judged: float = 90.0) -> Verdict:
    """Return the verdict on questions with equal differences between methods, plus small noise."""
    rng = np.random.default_rng(0)
    levels = rng.normal(0.0, 20.0, questions)
    values = {
        name: np.column_stack([mean + levels + rng.normal(0.0, 1.0, questions), levels, np.full(questions, judged)])
        for name, mean in means.items()
    }
    return Verdict("made-up", 25, 10, values)


@pytest.mark.parametrize(
    ("changed", "answer", "advice"),
    [
        ({OURS: 70.0}, "helps", "Use ours."),
        (
            {OURS: 70.0, HYBRID: 80.0},
            "helps",
            "It is better still with hybrid, first B reranked: run `boundarymorph calibrate`",
        ),
        ({}, "does not help", 'Use fusion and no calls ("hybrid": true, "method": "boundarymorph", "budget": 0)'),
        ({NO_CALLS: 63.0, OURS: 50.0}, "harms", 'Use no calls ("budget": 0)'),
        ({FIRST: 50.0}, "harms", "Use fusion and no calls"),
        ({FIRST: 50.0, OURS: 70.0}, "helps", "Use ours."),
    ],
)
def test_verdict_follows_paired_confidence_intervals(changed: Mapping[str, float], answer: str, advice: str) -> None:
    found = verdict({**MEANS, **changed})
    assert found.answer == answer
    assert f"The scorer {answer} here" in found.sentence and advice in found.sentence


@pytest.mark.parametrize(
    ("given", "reason"),
    [({"judged": 69.0}, "only 69 % are judged"), ({"questions": 4}, "4 questions have relevant documents")],
)
def test_verdict_is_withheld_if_too_little_is_judged(given: dict[str, Any], reason: str) -> None:
    found = verdict({**MEANS, OURS: 70.0}, **given)
    assert found.answer is None and reason in found.sentence and "helps" not in found.sentence
    assert verdict({**MEANS, OURS: 70.0}, judged=70.0, questions=5).answer == "helps"


def test_scores_are_requested_only_as_methods_need_them() -> None:
    """The sets equal those of a table with all scores."""
    table = synthetic(queries=3, n=80)
    queries = {id: f"query {id}" for id in table.arrays["query_ids"].tolist()}
    texts = {id: f"text {id}" for id in table.arrays["doc_ids"].tolist()}
    known = {
        (queries[question.id], texts[id]): score
        for question in table.questions()
        for id, score in zip(question.pool.ids, question.scores.tolist(), strict=True)
    }
    asked: list[tuple[str, str]] = []

    async def score(query: str, wanted: Sequence[str]) -> NDArray[np.float64]:
        asked.extend((query, text) for text in wanted)
        return np.array([known[query, text] for text in wanted])

    half = np.arange(80) % 2 == 0
    judged = np.broadcast_to(half, table.arrays["score"].shape)
    blank = {"score": np.full(table.arrays["score"].shape, np.nan), "judged": judged}
    without = replace(table, arrays={**table.arrays, **blank}, texts=(queries, texts))
    whole = asyncio.run(judge(table, 8, 5, lambda *_: None))
    found = asyncio.run(judge(without, 8, 5, lambda *_: None, score))
    assert whole is not None and found is not None and list(found.values) == list(METHODS)
    for name in METHODS:
        np.testing.assert_array_equal(found.values[name][:, :2], whole.values[name][:, :2])
    assert len(asked) == len(set(asked)) <= 3 * 3 * 8
    assert whole.judged == 100.0 and found.values[RETRIEVER][:, 2].tolist() == [60.0] * 3
    assert {pair["document"] for pair in found.unjudged} <= set(texts) and found.unjudged
    assert asyncio.run(judge(synthetic(without=["grade"]), 8, 5, lambda *_: None)) is None


def test_evaluated_human_method_makes_the_calls_of_the_service() -> None:
    assert morph.ROUNDS == composition.ROUNDS
    assert CONTESTANTS["human"].settings == (morph.SERVED,)
    (question,) = synthetic(queries=1, n=80).questions()
    session = Session.create(question.pool, budget=12, k=5, method=question.configured(HUMAN_CONFIG))
    calls: list[int] = []
    while (asked := session.ask_round(composition.ROUNDS)).size:
        calls += asked.tolist()
        session.tell(asked, question.scores[asked])
    problem, ranking = run_once(morph.SERVED, question, 12, 5)
    assert problem.calls == calls and session.rounds == composition.ROUNDS
    assert ranking[:5].tolist() == session.selection().documents.tolist()
    strong = replace(question, trust="strong")
    assert strong.signal_weight != question.signal_weight
