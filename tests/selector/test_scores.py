"""What a calibration makes of scores, and how long they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from boundarymorph.caching.known import MemoryScoreCache
from boundarymorph.calibration.calibration import Calibration, Trust
from boundarymorph.selector.scores import FIRST_GUESS, MOST_CHARACTERS, OVERHEAD, Pace
from boundarymorph.selector.selector import Selector
from tests.scoring.fakes import SeededScorer, score_of
from tests.selector.fakes import QUERY, FakeRetriever, task

SHORT, LONG = "t" * 50, "t" * 10 * MOST_CHARACTERS
OF_SHORT, OF_LONG = OVERHEAD + 50, OVERHEAD + MOST_CHARACTERS  # characters that they count for


def seconds(characters: float, rate: float = FIRST_GUESS) -> float:
    """Twice what that many characters take, and a little more."""
    return 2 * characters * rate * 1.000001


def test_a_round_is_half_of_what_the_time_allows() -> None:
    pace = Pace()
    texts = [SHORT, LONG, SHORT, SHORT]
    for characters, fitting in [
        (0, 1),
        (OF_SHORT, 1),
        (OF_SHORT + OF_LONG - 1, 1),
        (OF_SHORT + OF_LONG, 2),
        (3 * OF_SHORT + OF_LONG - 1, 3),
        (3 * OF_SHORT + OF_LONG, 4),
        (1e9, 4),
    ]:
        assert pace.fitting(texts, seconds(characters)) == fitting, characters


def test_more_documents_than_empty_ones_would_fit_are_not_asked_for() -> None:
    pace = Pace()
    assert pace.at_most(9, seconds(7 * OVERHEAD)) == 7
    assert pace.at_most(6, seconds(7 * OVERHEAD)) == 6
    assert pace.at_most(9, seconds(0)) == pace.at_most(9, -1.0) == 1


def test_half_of_the_ratio_is_learned_from_a_round() -> None:
    for factor in (100.0, 0.01):
        pace, texts = Pace(), [SHORT, LONG]
        pace.took(texts, factor * FIRST_GUESS * (OF_SHORT + OF_LONG))
        learned = FIRST_GUESS * factor**0.5
        assert pace.fitting([SHORT] * 9, seconds(4 * OF_SHORT, learned)) == 4
        assert pace.fitting([SHORT] * 9, seconds(4 * OF_SHORT - 1, learned)) == 3


def test_a_round_that_was_not_finished_can_only_slow_it_down() -> None:
    pace = Pace()
    pace.exceeded([SHORT], FIRST_GUESS * OF_SHORT / 100)
    assert pace.fitting([SHORT] * 9, seconds(4 * OF_SHORT)) == 4
    pace.exceeded([SHORT], FIRST_GUESS * OF_SHORT * 100)
    assert pace.fitting([SHORT] * 9, seconds(4 * OF_SHORT)) == 1
    assert pace.fitting([SHORT] * 9, seconds(4 * OF_SHORT, 100 * FIRST_GUESS)) == 4


@pytest.mark.parametrize("learn", [Pace.took, Pace.exceeded])
def test_a_clock_that_stood_still_is_survived(learn: object) -> None:
    pace = Pace()
    assert callable(learn)
    for _ in range(50):
        learn(pace, [SHORT], 0.0)
    assert pace.at_most(9, 1.0) == 9


NAME = SeededScorer().name
FULL = Calibration("ours", "signals", NAME, None, 1e-6, Trust(0.3, -1.0, {"similarity": 2.0}), Trust(0.5, -1.0))
SCALE = replace(FULL, form="scale")


async def test_the_answer_has_probabilities_and_scores(selector_of: Callable[..., Selector]) -> None:
    wanted = task(budget=8, k=12, rounds=2)
    result = await selector_of(FakeRetriever(), SeededScorer()).select(replace(wanted, calibration=FULL))
    assert result.calibration == "ours"
    calibrated = FULL.on(result.pool)
    scored = result.selection.documents[result.selection.scored]
    raw = np.array([score_of(QUERY, result.pool.ids[document]) for document in scored.tolist()])
    assert [result.scores[document] for document in scored.tolist()] == raw.tolist()
    assert result.selection.relevance[result.selection.scored] == pytest.approx(calibrated.probability(raw, scored))
    assert all(
        observation.score == score_of(QUERY, result.pool.ids[observation.document]) for observation in result.history
    )


async def test_everything_scored_the_set_is_the_most_probable(selector_of: Callable[..., Selector]) -> None:
    wanted = replace(task(budget=30, k=5, rounds=1), calibration=FULL)
    result = await selector_of(FakeRetriever(), SeededScorer()).select(wanted)
    every = np.arange(30)
    raw = np.array([score_of(QUERY, id) for id in result.pool.ids])
    probability = FULL.on(result.pool).probability(raw, every)
    assert result.selection.documents.tolist() == np.argsort(-probability)[:5].tolist()
    assert set(result.selection.documents.tolist()) != set(np.argsort(-raw)[:5].tolist())


async def test_a_scale_changes_nothing_but_what_scores_are_read_as(selector_of: Callable[..., Selector]) -> None:
    wanted = task(budget=8, k=12, rounds=2)
    bare, read = [
        await selector_of(FakeRetriever(), SeededScorer()).select(replace(wanted, calibration=calibration))
        for calibration in (None, SCALE)
    ]
    assert [one.document for one in read.history] == [one.document for one in bare.history]
    assert set(read.selection.documents.tolist()) == set(bare.selection.documents.tolist())
    relevance = dict(zip(bare.selection.documents.tolist(), bare.selection.relevance.tolist(), strict=True))
    calibrated = SCALE.on(bare.pool)
    for document, probability, std, scored in zip(
        read.selection.documents.tolist(),
        read.selection.relevance.tolist(),
        read.selection.std.tolist(),
        read.selection.scored.tolist(),
        strict=True,
    ):
        if scored:
            assert std == 0
            assert probability == pytest.approx(calibrated.read(np.array([relevance[document]]))[0])
        else:
            assert 0 < std < 0.5
    assert (np.diff(read.selection.relevance) <= 1e-12).all()


@pytest.mark.parametrize("calibration", [FULL, SCALE])
async def test_the_threshold_is_on_the_probability(
    selector_of: Callable[..., Selector], calibration: Calibration
) -> None:
    wanted = replace(task(budget=30, k=30, rounds=1), min_relevance=0.3, calibration=calibration)
    result = await selector_of(FakeRetriever(), SeededScorer()).select(wanted)
    raw = np.array([score_of(QUERY, id) for id in result.pool.ids])
    probability = calibration.on(result.pool).probability(raw, np.arange(30))
    assert sorted(result.selection.documents.tolist()) == np.flatnonzero(probability >= 0.3).tolist()
    assert 0 < len(result.selection.documents) < 30


async def test_caches_keep_raw_scores(selector_of: Callable[..., Selector]) -> None:
    cache = MemoryScoreCache(2**20)
    selector, wanted = selector_of(FakeRetriever(), SeededScorer(), cache), task(budget=6, k=10, rounds=2)
    first = await selector.select(replace(wanted, calibration=FULL))
    again = await selector.select(replace(wanted, calibration=FULL))
    bare = await selector.select(wanted)
    assert (first.calls, again.calls, bare.calls) == (6, 0, 0)
    assert bare.reused == again.reused == 6
    assert again.selection.relevance == pytest.approx(first.selection.relevance)
    scored = bare.selection.documents[bare.selection.scored].tolist()
    relevance = bare.selection.relevance[bare.selection.scored]
    assert relevance.tolist() == [score_of(QUERY, bare.pool.ids[document]) for document in scored]


@pytest.mark.parametrize(
    ("learned_with", "said"),
    [
        ({"scorer": "another"}, "the scorer 'another', and 'seeded' is in use"),
        ({"encoder": "old"}, "the encoder 'old'"),
    ],
)
async def test_another_model_makes_it_stale(
    selector_of: Callable[..., Selector], learned_with: dict[str, Any], said: str
) -> None:
    wanted, selector = task(), selector_of(FakeRetriever(), SeededScorer(), encoder=lambda: "new")
    bare = await selector.select(wanted)
    result = await selector.select(replace(wanted, calibration=replace(FULL, **learned_with)))
    assert result.calibration is None
    assert result.selection.relevance.tolist() == bare.selection.relevance.tolist()
    (warning,) = result.warnings
    assert warning.startswith("the calibration 'ours' was not used: it was learned with ") and said in warning


async def test_rankings_of_all_by_scores(selector_of: Callable[..., Selector]) -> None:
    wanted = replace(task(budget=30, k=30), goal="scores", rounds=1, calibration=SCALE)
    result = await selector_of(FakeRetriever(), SeededScorer()).select(wanted)
    raw = np.array([score_of(QUERY, id) for id in result.pool.ids])
    assert result.selection.documents.tolist() == np.argsort(-raw).tolist()
    assert result.selection.relevance == pytest.approx(SCALE.on(result.pool).read(np.sort(raw)[::-1]))
