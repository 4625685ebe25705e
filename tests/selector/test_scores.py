"""Test calibrated scores, and the time limit for a round of scores."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from boundarymorph.caching.scores import MemoryScoreCache
from boundarymorph.calibration.calibration import Calibration, ProbabilityMap
from boundarymorph.calibration.shipped import shipped_map
from boundarymorph.retrieval.boosts import Boosts
from boundarymorph.selector.shared import FIRST_GUESS, MOST_CHARACTERS, OVERHEAD, Pace
from boundarymorph.selector.task import SelectionTask
from tests.fakes.scorer import SeededScorer, score_of
from tests.selector.fakes import IDS, QUERY, FakeRetriever, MakeSelector, changed, task

SHORT, LONG = "t" * 50, "t" * 10 * MOST_CHARACTERS
OF_SHORT, OF_LONG = OVERHEAD + 50, OVERHEAD + MOST_CHARACTERS  # the characters that these texts count as


def seconds(characters: float, rate: float = FIRST_GUESS) -> float:
    """Return twice the time for the characters, and a little more."""
    return 2 * characters * rate * 1.000001


def test_pace_fits_half_of_what_the_time_allows() -> None:
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
        assert pace.count_fitting(texts, seconds(characters)) == fitting, characters


def test_pace_bounds_a_round_by_the_overhead_per_document() -> None:
    pace = Pace()
    assert pace.limit(9, seconds(7 * OVERHEAD)) == 7
    assert pace.limit(6, seconds(7 * OVERHEAD)) == 6
    assert pace.limit(9, seconds(0)) == pace.limit(9, -1.0) == 1


def test_pace_learns_half_of_the_log_ratio_from_a_round() -> None:
    for factor in (100.0, 0.01):
        pace, texts = Pace(), [SHORT, LONG]
        pace.record(texts, factor * FIRST_GUESS * (OF_SHORT + OF_LONG))
        learned = FIRST_GUESS * factor**0.5
        assert pace.count_fitting([SHORT] * 9, seconds(4 * OF_SHORT, learned)) == 4
        assert pace.count_fitting([SHORT] * 9, seconds(4 * OF_SHORT - 1, learned)) == 3


def test_pace_is_only_lowered_by_an_unfinished_round() -> None:
    pace = Pace()
    pace.record_timeout([SHORT], FIRST_GUESS * OF_SHORT / 100)
    assert pace.count_fitting([SHORT] * 9, seconds(4 * OF_SHORT)) == 4
    pace.record_timeout([SHORT], FIRST_GUESS * OF_SHORT * 100)
    assert pace.count_fitting([SHORT] * 9, seconds(4 * OF_SHORT)) == 1
    assert pace.count_fitting([SHORT] * 9, seconds(4 * OF_SHORT, 100 * FIRST_GUESS)) == 4


NAME = SeededScorer().name
MAP = ProbabilityMap(0.5, -1.0, 1e-6)
MADE = Calibration(NAME, None, {"human": MAP, "scorer": MAP}, created="2026-11-28T10:00:00+00:00")


@pytest.mark.parametrize("human", [False, True])
async def test_calibration_changes_only_the_relevance_reported(selector_of: MakeSelector, human: bool) -> None:
    wanted = changed(task(budget=8, k=12, rounds=2), human=human)
    bare, read = [
        await selector_of(FakeRetriever(), SeededScorer()).select(changed(wanted, calibration=calibration))
        for calibration in (None, MADE)
    ]
    assert (bare.calibration, read.calibration) == (None, MADE.created)
    assert read.history == bare.history
    assert set(read.selection.documents.tolist()) == set(bare.selection.documents.tolist())
    relevance = dict(zip(bare.selection.documents.tolist(), bare.selection.relevance.tolist(), strict=True))
    for document, probability, std, scored in zip(
        read.selection.documents.tolist(),
        read.selection.relevance.tolist(),
        read.selection.std.tolist(),
        read.selection.scored.tolist(),
        strict=True,
    ):
        if scored:
            assert std == 0
            assert probability == pytest.approx(MAP(np.array([relevance[document]]))[0])
            assert read.scores[document] == score_of(QUERY, read.pool.ids[document])
        else:
            assert 0 < std < 0.5
    assert (np.diff(read.selection.relevance) <= 1e-12).all()


async def test_calibration_has_separate_maps_for_human_and_scorer(selector_of: MakeSelector) -> None:
    only = replace(MADE, maps={"human": MAP})
    for human, used in ((True, only.created), (False, None)):
        wanted = changed(task(budget=8, k=12), human=human, calibration=only)
        result = await selector_of(FakeRetriever(), SeededScorer()).select(wanted)
        assert result.calibration == used and not result.warnings


async def test_min_relevance_applies_to_the_calibrated_probability(selector_of: MakeSelector) -> None:
    wanted = changed(task(budget=30, k=30, rounds=1), min_relevance=0.3, calibration=MADE)
    result = await selector_of(FakeRetriever(), SeededScorer()).select(wanted)
    probability = MAP(np.array([score_of(QUERY, id) for id in result.pool.ids]))
    assert sorted(result.selection.documents.tolist()) == np.flatnonzero(probability >= 0.3).tolist()
    assert 0 < len(result.selection.documents) < 30


async def test_cache_keeps_raw_scores_under_a_calibration(selector_of: MakeSelector) -> None:
    cache = MemoryScoreCache(2**20)
    selector, wanted = selector_of(FakeRetriever(), SeededScorer(), cache), task(budget=6, k=10, rounds=2)
    first = await selector.select(changed(wanted, calibration=MADE))
    again = await selector.select(changed(wanted, calibration=MADE))
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
async def test_calibration_for_another_model_is_ignored_with_a_warning(
    selector_of: MakeSelector, learned_with: dict[str, Any], said: str
) -> None:
    wanted, selector = task(), selector_of(FakeRetriever(), SeededScorer(), encoder=lambda: "new")
    bare = await selector.select(wanted)
    result = await selector.select(changed(wanted, calibration=replace(MADE, **learned_with)))
    assert result.calibration is None
    assert result.selection.relevance.tolist() == bare.selection.relevance.tolist()
    (warning,) = result.warnings
    assert warning.slug == "calibration-not-used" and said in warning.message


class Embedded(SeededScorer):
    name = "cross-encoder/ms-marco-MiniLM-L-12-v2@0123456789ab/int8/512"


SHIPPED = shipped_map(Embedded.name)
SHIPS = task(budget=8, k=12, human=True, shipped=True)
NONE_LEARNED = Calibration(Embedded.name, None, {}, created="2026-11-28T10:00:00+00:00", trust="strong")


async def test_shipped_map_turns_human_relevance_into_probabilities(selector_of: MakeSelector) -> None:
    assert SHIPPED is not None
    for budget in (0, 8):
        wanted = changed(SHIPS, budget=budget, explain_pool=True)
        selector = selector_of(FakeRetriever(), Embedded())
        bare, read = [await selector.select(changed(wanted, shipped=shipped, reuse=False)) for shipped in (False, True)]
        assert (bare.calibration, read.calibration) == (None, "shipped")
        assert read.selection.documents.tolist() == bare.selection.documents.tolist()
        assert read.selection.relevance.tolist() == SHIPPED(bare.selection.relevance).tolist()
        assert read.selection.relevance.tolist() != bare.selection.relevance.tolist()
        assert ((read.selection.std > 0) == ~read.selection.scored).all()
        assert (read.history, read.outlook, read.scores) == (bare.history, bare.outlook, bare.scores)
        assert read.explained is not None and bare.explained is not None
        for one, other in ((read.explained.first, bare.explained.first), (read.explained.last, bare.explained.last)):
            assert one.relevance.tolist() == SHIPPED(other.relevance).tolist()


@pytest.mark.parametrize(
    ("wanted", "scorer"),
    [
        (SHIPS, SeededScorer()),
        (changed(SHIPS, human=False), Embedded()),
        (changed(SHIPS, human=False, method="boundarymorph"), Embedded()),
        (changed(SHIPS, calibration=replace(NONE_LEARNED, trust=None)), Embedded()),
    ],
)
async def test_shipped_map_applies_only_to_its_scorer_and_human_relevance(
    selector_of: MakeSelector, wanted: SelectionTask, scorer: SeededScorer
) -> None:
    bare = await selector_of(FakeRetriever(), scorer).select(changed(wanted, shipped=False))
    result = await selector_of(FakeRetriever(), scorer).select(wanted)
    assert result.calibration is None
    assert result.selection.relevance.tolist() == bare.selection.relevance.tolist()
    assert result.selection.std.tolist() == bare.selection.std.tolist()


async def test_calibration_overrides_the_shipped_map(selector_of: MakeSelector) -> None:
    own = changed(SHIPS, calibration=replace(MADE, scorer=Embedded.name))
    selector = selector_of(FakeRetriever(), Embedded())
    alone, both = [await selector.select(changed(own, shipped=shipped, reuse=False)) for shipped in (False, True)]
    assert both.calibration == MADE.created
    assert both.selection.relevance.tolist() == alone.selection.relevance.tolist()
    stale = await selector.select(changed(SHIPS, calibration=MADE))
    assert stale.calibration == "shipped" and [one.slug for one in stale.warnings] == ["calibration-not-used"]


async def test_min_relevance_applies_to_the_shipped_probability(selector_of: MakeSelector) -> None:
    wanted = changed(SHIPS, budget=30, k=30, goal="order")
    everything = await selector_of(FakeRetriever(), Embedded()).select(wanted)
    least = float(everything.selection.relevance[9:11].mean())
    result = await selector_of(FakeRetriever(), Embedded()).select(changed(wanted, min_relevance=least))
    assert result.selection.documents.tolist() == everything.selection.documents[:10].tolist()
    assert (result.selection.relevance >= least).all()
    nothing = await selector_of(FakeRetriever(), Embedded()).select(changed(wanted, min_relevance=1.0))
    assert not len(nothing.selection.documents)
    known = changed(wanted, min_relevance=1.0, known=dict.fromkeys(IDS, 1.0))  # a score of 1 has a probability below 1
    assert not len((await selector_of(FakeRetriever(), Embedded()).select(known)).selection.documents)
    assert f"the best was {np.floor(1000 * everything.selection.relevance.max()) / 1000:g}" in str(nothing.warnings)


class LongerRetriever(FakeRetriever):
    """A retriever whose documents have 1 to 30 tokens, the last ones the shortest."""

    async def characters(self, index: str, ids: Sequence[str], *, caller: str = "") -> Mapping[str, int]:
        return {id: 4 * (len(IDS) - IDS.index(id)) for id in ids}


async def test_limit_on_tokens_weighs_documents_by_the_relevance_of_the_answer(selector_of: MakeSelector) -> None:
    wanted = changed(SHIPS, budget=5, k=None, max_tokens=40)
    plain = await selector_of(LongerRetriever(), Embedded()).select(wanted)
    raw = await selector_of(LongerRetriever(), Embedded()).select(changed(wanted, shipped=False))
    neutral = changed(wanted, boosts=Boosts((), {IDS[0]: 1.0}))
    boosted = await selector_of(LongerRetriever(), Embedded()).select(neutral)
    assert plain.selection.documents.tolist() == boosted.selection.documents.tolist()
    assert plain.selection.documents.tolist() != raw.selection.documents.tolist()
    assert plain.selection.value is None
    assert boosted.selection.value == pytest.approx(boosted.selection.relevance)
