"""Speculation changes when documents are scored, never which ones are picked."""

import numpy as np
import pytest

from boundarymorph.errors import InvalidInput
from boundarymorph.selection import (
    Config,
    SelectionConfig,
    SelectionSession,
    StopReason,
    TokenCapacity,
    TrendConfig,
    UpperConfidenceBound,
)
from load_tests.speculation import SpeculativeSession
from tests.selection.pools import FAMILIES, Scores, clustered, play

METHODS: tuple[Config, ...] = (SelectionConfig(), TrendConfig())


def speculative(session: SelectionSession, scores: Scores, width: int) -> tuple[SpeculativeSession, list[int]]:
    ahead, paid = SpeculativeSession(session, width), []
    while (asked := ahead.ask()).size:
        assert 1 <= asked.size <= width
        paid += asked.tolist()
        ahead.tell(asked, scores[asked])
    return ahead, paid


def assert_same(ahead: SelectionSession, plain: SelectionSession) -> None:
    assert ahead.history == plain.history
    assert ahead.stop_reason is plain.stop_reason
    mine, theirs = ahead.selection(), plain.selection()
    np.testing.assert_array_equal(mine.documents, theirs.documents)
    np.testing.assert_array_equal(mine.relevance, theirs.relevance)
    np.testing.assert_array_equal(mine.std, theirs.std)
    np.testing.assert_array_equal(mine.scored, theirs.scored)


def test_a_trip_is_as_wide_as_it_may_be_and_never_wider_than_what_is_left() -> None:
    pool, scores = FAMILIES["clustered"](120, 8, 1, np.float32)
    for width in (2, 5):
        assert SpeculativeSession(SelectionSession(pool, budget=9, k=30), width).ask().size == width
    ahead = SpeculativeSession(SelectionSession(pool, budget=3, k=30), 8)
    assert ahead.ask().size == 3
    ahead = SpeculativeSession(SelectionSession(pool, budget=4, k=30), 2)
    while ahead.session.spent < 3:
        asked = ahead.ask()
        ahead.tell(asked, scores[asked])
    assert ahead.ask().size <= 1


@pytest.mark.parametrize("config", METHODS, ids=("boundarymorph", "trend"))
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(("n", "budget", "k"), [(120, 40, 30), (30, 50, 7), (90, 25, 89), (40, 12, 1), (20, 5, 20)])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_same_picks_and_set_in_no_more_trips(
    family: str, config: Config, n: int, budget: int, k: int, width: int
) -> None:
    pool, scores = FAMILIES[family](n, 8, 1, np.float32)
    plain = play(SelectionSession(pool, budget=budget, k=k, config=config), scores)
    ahead, paid = speculative(SelectionSession(pool, budget=budget, k=k, config=config), scores, width)
    assert_same(ahead.session, plain)
    assert len(set(paid)) == len(paid) == ahead.scored >= plain.spent
    assert {seen.document for seen in plain.history} <= set(paid)
    assert -(-plain.spent // width) <= ahead.trips <= plain.spent
    if width == 1:
        assert ahead.trips == ahead.scored == plain.spent


@pytest.mark.parametrize("config", METHODS, ids=("boundarymorph", "trend"))
@pytest.mark.parametrize("seed", range(3))
def test_guesses_are_good_enough_to_save_trips(config: Config, seed: int) -> None:
    pool, scores = clustered(400, 16, seed)
    ahead, _ = speculative(SelectionSession(pool, budget=60, k=50, config=config), scores, 8)
    assert ahead.session.spent == 60
    assert ahead.trips <= 40


@pytest.mark.parametrize("seed", range(3))
def test_with_known_scores_a_token_limit_and_settling(seed: int) -> None:
    pool, scores = clustered(150, 8, seed)
    lengths = np.random.default_rng(seed).lognormal(3, 0.6, 150).round() + 1

    def session() -> SelectionSession:
        return SelectionSession(
            pool,
            budget=80,
            k=TokenCapacity(lengths, 400),
            config=TrendConfig(),
            known={3: float(scores[3]), 70: float(scores[70])},
            settle=0.01,
        )

    plain = play(session(), scores)
    ahead, paid = speculative(session(), scores, 5)
    assert_same(ahead.session, plain)
    assert not {3, 70} & set(paid)


def test_a_rule_that_knows_no_boundary() -> None:
    pool, scores = clustered(100, 8, 0)
    config = SelectionConfig(prior="zero", acquisition=UpperConfidenceBound(1.0))
    plain = play(SelectionSession(pool, budget=30, k=20, config=config), scores)
    ahead, _ = speculative(SelectionSession(pool, budget=30, k=20, config=config), scores, 4)
    assert_same(ahead.session, plain)
    assert ahead.trips < 30


def test_a_trip_that_comes_back_in_part() -> None:
    """Whatever was told counts, also if the next pick is not among it; what was not told is asked again."""
    pool, scores = clustered(120, 8, 2)
    plain = play(SelectionSession(pool, budget=30, k=25, config=TrendConfig()), scores)
    ahead = SpeculativeSession(SelectionSession(pool, budget=30, k=25, config=TrendConfig()), 6)
    told: list[int] = []
    while (asked := ahead.ask()).size:
        assert not set(told) & set(asked.tolist())
        back = asked[::-1][: max(1, asked.size - 2)]
        told += back.tolist()
        ahead.tell(back, scores[back])
    assert_same(ahead.session, plain)
    assert ahead.scored == len(told)


@pytest.mark.parametrize("score", [-0.01, 1.01, float("nan")])
def test_impossible_scores_change_nothing(score: float) -> None:
    pool, scores = clustered(60, 8, 0)
    ahead = SpeculativeSession(SelectionSession(pool, budget=10, k=20), 4)
    asked = ahead.ask()
    with pytest.raises(InvalidInput, match="outside"):
        ahead.tell(asked, [0.5, 0.5, 0.5, score])
    assert (ahead.trips, ahead.scored, ahead.session.spent) == (0, 0, 0)
    with pytest.raises(InvalidInput, match="one score each"):
        ahead.tell(asked, [0.5])
    with pytest.raises(InvalidInput, match="last ask"):
        ahead.tell([asked[0], asked[0]], [0.5, 0.5])
    ahead.tell(asked, scores[asked])
    assert ahead.session.spent >= 1
    with pytest.raises(InvalidInput, match="last ask"):
        ahead.tell(asked[:1], scores[asked[:1]])


def test_a_trip_takes_a_document() -> None:
    pool, _ = clustered(10, 4, 0)
    with pytest.raises(InvalidInput, match="1 or more"):
        SpeculativeSession(SelectionSession(pool, budget=5, k=3), 0)


@pytest.mark.parametrize("config", METHODS, ids=("boundarymorph", "trend"))
def test_the_shortlist_is_a_hint(config: Config) -> None:
    pool, scores = clustered(80, 8, 0)
    session = SelectionSession(pool, budget=20, k=15, config=config)
    while (asked := session.ask()).size:
        likely = session.shortlist(7)
        assert likely.size == len(set(likely.tolist())) == 7
        assert not session.belief.scored[likely].any()
        assert session.ask().tolist() == asked.tolist()
        session.tell(asked, scores[asked])
    assert session.stop_reason is StopReason.BUDGET
    assert session.shortlist(7).size == session.shortlist(0).size == 0
