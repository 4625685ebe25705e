"""Test sets by value, which is relevance times a boost."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import ProbabilityMap
from boundarymorph.selection import (
    BestBoundary,
    BoostedBoundary,
    Boundary,
    Budget,
    Config,
    DocumentCapacity,
    ExhaustiveSession,
    Limit,
    OrderBoundary,
    Pool,
    Selection,
    SelectionConfig,
    Session,
    ThresholdBoundary,
    TokenCapacity,
    TrendConfig,
)
from boundarymorph.selection.methods import HUMAN_CONFIG
from boundarymorph.selection.state import Reading
from tests.selection.pools import FAMILIES, Scores, clustered, saturated

CONFIGS: tuple[Config, ...] = (TrendConfig(), SelectionConfig())
FLAT = ProbabilityMap(slope=0.3, intercept=-0.2, clip=1e-7)
Boosts = NDArray[np.float64]


def boosts_of(n: int, seed: int) -> Boosts:
    return np.exp(np.random.default_rng(seed).normal(0.0, 1.0, n))


def session_of(
    pool: Pool,
    boosts: Boosts | None,
    *,
    budget: int = 0,
    limit: Limit = DocumentCapacity(10),  # noqa: B008 - it never changes
    config: Config = CONFIGS[0],
    least: float | None = None,
    shown: Reading | None = None,
    **options: Any,
) -> Session:
    best = BestBoundary(limit, config)
    boundary: Boundary = OrderBoundary(best) if least is None else ThresholdBoundary(best, least)
    boundary = boundary if boosts is None else BoostedBoundary(boundary, boosts, shown)
    size = min(budget + len(options.get("known", ())), len(pool))
    return Session(pool, config.posterior(pool, size), boundary, Budget(budget), **options)


def in_three_rounds(session: Session, scores: Scores) -> Session:
    while (asked := session.ask_round(3)).size:
        session.tell(asked, scores[asked])
    return session


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(FAMILIES)),
    st.integers(0, 1_000),
    st.integers(1, 40),
    st.sampled_from(CONFIGS),
    st.sampled_from([(None, None), (FLAT, None), (None, FLAT)]),
)
def test_boosted_set_with_all_scores_sorts_by_relevance_times_boost(
    family: str, seed: int, k: int, config: Config, maps: tuple[Reading | None, Reading | None]
) -> None:
    """Relevance may be a function of the score, in the session or in the answer."""
    pool, scores = FAMILIES[family](40, 6, seed)
    boosts, (reading, shown) = boosts_of(40, seed), maps
    relevance = scores if maps == (None, None) else FLAT(scores)
    session = session_of(
        pool,
        boosts,
        limit=DocumentCapacity(k),
        config=config,
        shown=shown,
        reading=reading,
        known=dict(enumerate(scores.tolist())),
    )
    best = np.argsort(-relevance * boosts, kind="stable")
    for selection, expected in ((session.selection(), best[:k]), (session.ranking(), best)):
        assert selection.documents.tolist() == expected.tolist()
        assert selection.value == pytest.approx((relevance * boosts)[expected])
        unread = scores if shown else relevance  # the answer's map applies only to the answer
        assert selection.relevance == pytest.approx(unread[expected])
    assert session.expected_loss() == 0.0


@pytest.mark.parametrize("family", [clustered, saturated])
@pytest.mark.parametrize(("config", "shown"), [(TrendConfig(), None), (HUMAN_CONFIG, FLAT)])
def test_boost_during_selection_finds_more_than_boost_afterwards(
    family: Any, config: Config, shown: Reading | None
) -> None:
    n, k = 200, 20
    during, after = [], []
    for seed in range(12):
        pool, scores = family(n, 16, seed)
        boosts = boosts_of(n, seed)
        known = dict(enumerate(scores.tolist()))
        truth = session_of(pool, boosts, limit=DocumentCapacity(k), config=config, shown=shown, known=known).selection()
        options: dict[str, Any] = {"budget": n // 5, "limit": DocumentCapacity(k), "config": config}
        found = in_three_rounds(session_of(pool, boosts, shown=shown, **options), scores).selection()
        ranking = in_three_rounds(session_of(pool, None, **options), scores).ranking()
        relevance = ranking.relevance if shown is None else shown(ranking.relevance)
        boosted = ranking.documents[np.argsort(-relevance * boosts[ranking.documents], kind="stable")[:k]]
        during.append(shared(truth, found.documents))
        after.append(shared(truth, boosted))
    assert np.mean(during) > np.mean(after) + 0.08


def shared(truth: Selection, documents: NDArray[np.intp]) -> float:
    return float(np.isin(truth.documents, documents).mean())


def test_boosted_documents_compete_by_the_mapped_belief() -> None:
    """The deviation is half the distance between the mapped ends of the interval."""
    pool, scores = clustered(60, 8, 3)
    session = session_of(pool, None, known=dict(enumerate(scores[:20].tolist())))
    belief, boosts = session.belief, boosts_of(60, 1)
    division = BoostedBoundary(BestBoundary(DocumentCapacity(10), CONFIGS[0]), boosts, FLAT).division(session.state)
    seen, shares = division.competition.belief, boosts / boosts.max()
    assert seen.mean == pytest.approx(shares * FLAT(belief.mean))
    assert seen.std == pytest.approx(shares * (FLAT(belief.mean + belief.std) - FLAT(belief.mean - belief.std)) / 2)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("factor", [1.0, 0.25, 64.0])
def test_equal_boosts_leave_a_session_unchanged(config: Config, factor: float) -> None:
    """The factors are powers of two, which scale exactly."""
    pool, scores = clustered(120, 8, 3)
    plain, boosted = (
        in_three_rounds(session_of(pool, boosts, budget=20, config=config), scores)
        for boosts in (None, np.full(120, factor))
    )
    assert boosted.history == plain.history
    assert boosted.expected_loss() == plain.expected_loss()
    ours, theirs = boosted.selection(), plain.selection()
    assert ours.documents.tolist() == theirs.documents.tolist()
    assert ours.relevance.tolist() == theirs.relevance.tolist() and ours.std.tolist() == theirs.std.tolist()
    assert ours.value is not None and ours.value.tolist() == (factor * theirs.relevance).tolist()
    assert theirs.value is None


@pytest.mark.parametrize("config", CONFIGS)
def test_session_depends_only_on_ratios_of_boosts(config: Config) -> None:
    pool, scores = clustered(120, 8, 4)
    boosts = boosts_of(120, 4)
    small, large = (
        in_three_rounds(session_of(pool, factor * boosts, budget=20, config=config), scores) for factor in (1.0, 512.0)
    )
    assert small.history == large.history
    assert small.expected_loss() == large.expected_loss()
    assert small.selection().documents.tolist() == large.selection().documents.tolist()


def test_session_never_asks_for_documents_with_hopeless_boosts() -> None:
    """The first round still takes the top of the ranking."""
    pool, scores = clustered(200, 8, 5)
    boosts = np.where(np.arange(200) % 2, 1.0, 1e-3)
    history = in_three_rounds(session_of(pool, boosts, budget=30), scores).history
    assert {seen.document % 2 for seen in history if seen.round > 1} == {1}
    assert {seen.document % 2 for seen in history if seen.round == 1} == {0, 1}


def test_retrieval_bonus_is_multiplied_by_the_boost() -> None:
    """The bonus for a high retrieval rank counts as relevance, so it is boosted, too."""
    pool, scores = clustered(60, 8, 6)
    boosts = np.where(np.arange(60) < 30, 1e-3, 1.0)
    chosen = session_of(pool, boosts, known={0: float(scores[0]), 59: 0.9}).selection().documents
    assert (chosen >= 30).all()


def test_min_relevance_ignores_boosts() -> None:
    pool, scores = clustered(80, 8, 7)
    boosts = np.where(scores < 0.5, 1_000.0, boosts_of(80, 7))
    known = dict(enumerate(scores.tolist()))
    relevant = np.flatnonzero(scores >= 0.5)
    for k in (5, 80):
        chosen = session_of(pool, boosts, limit=DocumentCapacity(k), least=0.5, known=known).selection()
        best = relevant[np.argsort(-(scores * boosts)[relevant], kind="stable")][:k]
        assert chosen.documents.tolist() == best.tolist()


def test_token_capacity_is_filled_by_value() -> None:
    pool, scores = clustered(30, 8, 8)
    boosts, lengths = boosts_of(30, 8), np.random.default_rng(8).integers(1, 9, 30).astype(np.float64)
    known = dict(enumerate(scores.tolist()))
    limit = TokenCapacity(lengths, 25.0)
    chosen = np.sort(session_of(pool, boosts, limit=limit, known=known).selection().documents)
    assert chosen.tolist() == np.flatnonzero(limit.fill(scores * boosts / boosts.max())).tolist()
    assert chosen.tolist() != np.flatnonzero(limit.fill(scores)).tolist()


def test_expected_loss_is_measured_in_value() -> None:
    """A document with a boost of a thousand is a risk until its score is known."""
    pool, scores = saturated(100, 8, 9)
    known = {place: float(scores[place]) for place in range(0, 100, 2)}
    boosts = np.where(np.arange(100) % 2, 0.01, 1.0)
    doubtful, certain = (session_of(pool, each, known=known).expected_loss() for each in (1.0 / boosts, boosts))
    assert certain < 0.01 < doubtful


def test_exhaustive_session_orders_by_value() -> None:
    pool, scores = clustered(20, 4, 10)
    boosts = boosts_of(20, 10)
    session = ExhaustiveSession(pool, boosts=boosts)
    session.tell(session.ask(20), scores)
    selection = session.selection()
    best = np.argsort(-scores * boosts, kind="stable")
    assert selection.documents.tolist() == best.tolist()
    assert selection.value == pytest.approx((scores * boosts)[best])
