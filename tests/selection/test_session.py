"""Test properties of a session that hold for any pool, budget, capacity, and round size."""

from typing import Any

import numpy as np
import pytest

from boundarymorph.errors import InvalidInput
from boundarymorph.selection import (
    Config,
    DocumentCapacity,
    Pool,
    SelectionConfig,
    Session,
    StopReason,
    TokenCapacity,
    TrendConfig,
    UpperConfidenceBound,
)
from tests.selection.pools import FAMILIES, clustered, play
from tests.sessions import session_of

CONFIGS = (
    SelectionConfig(),
    SelectionConfig(prior="zero", acquisition=UpperConfidenceBound(1.0)),
    SelectionConfig(kernel="matern52", anchored=False),
    TrendConfig(),
)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_unscored_documents_outside_the_set_have_no_higher_belief(family: str, config: Config) -> None:
    for n, budget, k, size in ((60, 25, 7, 4), (40, 60, 39, 1), (9, 5, 20, 3)):
        pool, scores = FAMILIES[family](n, 6, n, np.float32)
        session = play(session_of(pool, budget=budget, k=k, config=config), scores, size)
        assert session.spent == (0 if k >= n else min(budget, n)) and session.stop_reason is not None
        belief, chosen = session.belief, session.selection().documents
        assert len(chosen) == len(set(chosen.tolist())) == min(k, n)
        assert np.isfinite(belief.mean).all() and (belief.std[~belief.scored] > 0).all()
        if isinstance(config, SelectionConfig):
            assert (np.delete(belief.mean, chosen) <= belief.mean[chosen].min()).all()


def test_tied_retrieval_scores_keep_the_given_order() -> None:
    embeddings = np.random.default_rng(0).normal(size=(6, 4))
    pool = Pool.from_embeddings(list("abcdef"), embeddings, np.ones(4), scores=[1, 2, 2, 1, 2, 1])
    assert list(pool.ids) == ["b", "c", "e", "a", "d", "f"]


def test_session_with_many_known_scores_has_room_for_its_calls() -> None:
    pool, scores = clustered(60, 6, 1)
    known = dict(enumerate(scores[:20].tolist()))
    session = play(Session.create(pool, budget=25, k=7, known=known), scores)
    assert (session.spent, int(session.scored.sum())) == (25, 45)


@pytest.mark.parametrize("config", CONFIGS)
def test_expected_loss_is_a_share_of_the_relevance_however_small_it_is(config: Config) -> None:
    """The relevance of the best two documents together is below 1."""
    pool, scores = clustered(60, 6, 1)
    known = dict(enumerate((0.2 * scores[:30]).tolist()))
    session = session_of(pool, budget=10, k=2, config=config, known=known)
    assert 0.0 < session.expected_loss() < 1.0


def test_round_of_documents_follows_the_kriging_believer() -> None:
    """A session that observes its own means one at a time picks the same documents."""
    for seed in range(3):
        pool, scores = clustered(200, 12, seed)
        rounds, believer = (session_of(pool, budget=30, k=40) for _ in range(2))
        for session in (rounds, believer):
            for _ in range(10):
                asked = session.ask()
                session.tell(asked, scores[asked])
        expected = []
        for _ in range(8):
            (document,) = believer.ask()
            expected.append(document)
            believer.tell([document], [believer.belief.mean[document]])
        assert rounds.ask(8).tolist() == expected


@pytest.mark.parametrize("config", [SelectionConfig(), TrendConfig()])
@pytest.mark.parametrize("by_tokens", [False, True])
def test_expected_loss_matches_simulated_best_sets(config: Config, by_tokens: bool) -> None:
    """The reference draws all scores many times, and takes the best set of each draw."""
    rng = np.random.default_rng(0)
    pool, scores = clustered(800, 8, 1)
    capacity = TokenCapacity(rng.integers(1, 4, 800).astype(float), 400.0) if by_tokens else DocumentCapacity(200)
    session = session_of(pool, budget=25, k=capacity, config=config)
    play(session, scores, 5)
    shares, outcomes = session._posterior.beliefs.prospects()
    best = []
    for _ in range(40):
        drawn = outcomes[(rng.random(800) > np.cumsum(shares, axis=0)[:-1]).sum(axis=0), np.arange(800)]
        best.append(drawn[capacity.fill(drawn)].sum())
    chosen = (shares * outcomes)[:, session.selection().documents].sum()
    assert session.expected_loss() == pytest.approx(1 - chosen / np.mean(best), abs=0.01)
    assert session.expected_loss() > 0.01


@pytest.mark.parametrize("score", [-0.01, 1.01, float("nan")])
def test_session_refuses_scores_outside_0_and_1_unchanged(score: float) -> None:
    pool, scores = clustered(50, 8, 0)
    session = session_of(pool, budget=10, k=20)
    asked = session.ask(2)
    before = session.belief.mean.copy()
    with pytest.raises(InvalidInput, match="outside"):
        session.tell(asked, [0.5, score])
    np.testing.assert_array_equal(session.belief.mean, before)
    session.tell(asked, scores[asked])
    assert session.spent == 2


@pytest.mark.parametrize("config", [SelectionConfig(), TrendConfig()])
def test_session_spends_calls_on_the_order_if_everything_fits(config: Config) -> None:
    """The document with the highest mean is scored next, and the answer is ordered by mean."""
    pool, scores = clustered(60, 8, 3)
    histories = []
    for capacity in (60, TokenCapacity(np.arange(60.0) + 1, 1e6)):
        session = session_of(pool, budget=15, k=capacity, config=config, order=True)
        while (asked := session.ask()).size:
            assert not session.budget_covers_pool and session.expected_loss() == 0
            open = ~session.belief.scored
            assert session.belief.mean[asked[0]] == session.belief.mean[open].max()
            session.tell(asked, scores[asked])
        assert (session.stop_reason, session.spent) == (StopReason.BUDGET, 15)
        selection = session.selection()
        assert len(selection.documents) == 60 and selection.scored.sum() == 15
        histories.append([observation.document for observation in session.history])
    assert histories[0] == histories[1]
    assert scores[histories[0]].sum() > scores[:15].sum()  # better than the retrieval order


@pytest.mark.parametrize(("k", "tolerance"), [(60, None), (60, 0.9), (5, None)])
def test_budget_that_covers_the_pool_is_spent_at_once(k: int, tolerance: float | None) -> None:
    pool, scores = clustered(60, 8, 3)
    known = {7: float(scores[7])}
    session = session_of(pool, budget=60, k=k, known=known, tolerance=tolerance, order=True)
    asked = session.ask(100)
    assert sorted(asked) == [document for document in range(60) if document != 7]
    session.tell(asked[:20], scores[asked[:20]])  # the deadline has passed
    assert session.budget_covers_pool
    rest = session.ask(100)
    assert sorted(rest) == sorted(asked[20:])
    assert (np.diff(session.belief.mean[rest]) <= 0).all()
    session.tell(rest, scores[rest])
    assert (session.stop_reason, session.rounds) == (StopReason.POOL_EXHAUSTED, 2)
    np.testing.assert_array_equal(session.selection().documents, np.argsort(-scores, kind="stable")[:k])


def test_budget_covers_the_pool_only_while_enough_calls_are_left() -> None:
    pool, scores = clustered(60, 8, 3)
    session = session_of(pool, budget=40, k=60, order=True)
    asked = session.ask(30)
    session.tell(asked[:25], scores[asked[:25]])
    assert (session.budget - session.spent, len(session.open_documents)) == (15, 35)
    assert not session.budget_covers_pool


def test_session_look_ahead_changes_no_pick(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, scores = clustered(600, 16, 4)
    runs = []
    for first in (10**9, 0):
        monkeypatch.setattr("boundarymorph.selection.session.LOOK_AHEAD_FROM", first)
        for round_size in (1, 4):
            session = session_of(pool, budget=160, k=50)
            play(session, scores, round_size)
            runs.append((round_size, [o.document for o in session.history], session.belief.mean))
    for plain, ahead in zip(runs[:2], runs[2:], strict=True):
        assert plain[:2] == ahead[:2]
        np.testing.assert_allclose(plain[2], ahead[2], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"budget": -1},
        {"k": 0},
        {"known": {0: 1.5}},
        *({"min_relevance": least} for least in (-0.01, 1.01, float("nan"))),
    ],
)
def test_session_refuses_impossible_options(options: dict[str, Any]) -> None:
    pool, _ = clustered(10, 4, 0)
    with pytest.raises(InvalidInput):
        session_of(pool, **{"budget": 5, "k": 5, **options})


def test_session_refuses_answers_for_documents_it_did_not_ask_for() -> None:
    pool, scores = clustered(60, 8, 0)
    session = session_of(pool, budget=10, k=20)
    asked = session.ask(4)
    session.give_up(asked[1:3])
    before = session.belief, session.selection().documents.tolist()
    with pytest.raises(InvalidInput, match="last ask"):
        session.tell(asked, scores[asked])
    with pytest.raises(InvalidInput, match="last ask"):
        session.leave_unscored(asked)
    for beyond in (-1, 60):
        with pytest.raises(InvalidInput, match="60 documents"):
            session.give_up([beyond])
    assert (session.spent, session.given_up, session.rounds) == (0, 2, 0)
    assert (session.belief, session.selection().documents.tolist()) == before
    session.give_up(np.arange(60))
    assert session.ask().size == session.selection().documents.size == session.expected_loss() == 0


@pytest.mark.parametrize("config", [SelectionConfig(), TrendConfig()])
def test_giving_documents_up_makes_room_in_the_set(config: Config) -> None:
    """This holds for tokens and counts.

    If the rest fits, or no document does, there is nothing to decide.
    """
    pool, _ = clustered(12, 4, 0)
    lengths = np.array([9.0] * 6 + [3.0] * 6)
    for capacity in (6, TokenCapacity(lengths, 18.0)):
        session = session_of(pool, budget=5, k=capacity, config=config)
        assert session.stop_reason is None
        session.give_up(range(6))
        assert session.stop_reason is StopReason.NOTHING_TO_DECIDE
        assert sorted(session.selection().documents.tolist()) == [6, 7, 8, 9, 10, 11]
    exhausted = session_of(pool, budget=50, k=3, config=config)
    exhausted.give_up(range(4))
    while (asked := exhausted.ask(5)).size:
        exhausted.tell(asked, np.linspace(0, 1, len(asked)))
    assert (exhausted.spent, exhausted.stop_reason) == (8, StopReason.POOL_EXHAUSTED)
    too_long = session_of(pool, budget=5, k=TokenCapacity(lengths, 8.0), config=config)
    assert too_long.stop_reason is None
    too_long.give_up(range(6, 12))
    assert too_long.stop_reason is StopReason.NOTHING_TO_DECIDE
    assert too_long.selection().documents.size == 0


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("config", CONFIGS)
def test_documents_left_unscored_keep_their_belief(config: Config, n: int) -> None:
    pool, scores = clustered(40, 4, seed=1)
    session = session_of(pool, budget=12, k=6, config=config)
    unanswered = set[int]()
    while (asked := session.ask(n)).size:
        assert not unanswered & set(asked.tolist()), "and not asked again"
        before = session.belief
        session.leave_unscored(asked[:1])
        unanswered.add(int(asked[0]))
        np.testing.assert_array_equal(session.belief.mean, before.mean)
        session.tell(asked[1:], scores[asked[1:]])
    assert session.spent == 12 and session.stop_reason is StopReason.BUDGET
    assert not session.belief.scored[list(unanswered)].any()
    with pytest.raises(InvalidInput):
        session.leave_unscored([int(asked[0]) if asked.size else 0])


@pytest.mark.parametrize("config", [SelectionConfig(), TrendConfig()])
def test_shortlist_has_askable_documents_and_changes_nothing(config: Config) -> None:
    pool, scores = clustered(80, 8, 0)
    session = session_of(pool, budget=20, k=15, config=config)
    while (asked := session.ask()).size:
        likely = session.shortlist(7)
        assert likely.size == len(set(likely.tolist())) == 7
        assert not session.belief.scored[likely].any()
        assert session.ask().tolist() == asked.tolist()
        session.tell(asked, scores[asked])
    assert session.shortlist(7).size == session.shortlist(0).size == 0
