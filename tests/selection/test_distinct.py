"""Test limits on groups, and sets of documents that differ."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from boundarymorph.selection import Config, DocumentCapacity, SelectionConfig, StopReason, TokenCapacity, TrendConfig
from boundarymorph.selection.diversity import choose_diverse
from boundarymorph.selection.groups import GroupedCapacity
from boundarymorph.selection.process import median_distance
from tests.selection.pools import clustered, play
from tests.sessions import Groups, session_of

CONFIGS: tuple[Config, ...] = (TrendConfig(), SelectionConfig())
WORTHS = arrays(np.float64, 7, elements=st.integers(0, 20).map(lambda number: number / 20))
GROUPS = arrays(np.intp, 7, elements=st.integers(0, 4))


def grouped(groups: NDArray[np.intp], k: int, at_most: int) -> GroupedCapacity:
    return GroupedCapacity(DocumentCapacity(k), groups, np.full(len(groups), at_most))


def allowed(groups: NDArray[np.intp], k: int, at_most: int) -> list[list[int]]:
    """Return every allowed set of the largest size."""
    count = min(k, sum(min(at_most, int((groups == group).sum())) for group in np.unique(groups)))
    sets = (list(chosen) for chosen in combinations(range(len(groups)), count))
    return [chosen for chosen in sets if np.bincount(groups[chosen]).max(initial=0) <= at_most]


@settings(max_examples=40, deadline=None)
@given(WORTHS, GROUPS, st.integers(1, 10), st.integers(1, 3))
def test_grouped_capacity_fills_the_best_allowed_set(
    worth: NDArray[np.float64], groups: NDArray[np.intp], k: int, at_most: int
) -> None:
    capacity, sets = grouped(groups, k, at_most), allowed(groups, k, at_most)
    chosen = np.flatnonzero(capacity.fill(worth)).tolist()
    assert chosen in sets
    assert worth[chosen].sum() == pytest.approx(max(worth[other].sum() for other in sets))
    assert capacity.holds_all(7) == (sets == [list(range(7))])


@settings(max_examples=40, deadline=None)
@given(
    arrays(np.float64, 7, elements=st.integers(0, 1_000).map(lambda number: number / 1_000), unique=True),
    GROUPS,
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_grouped_margin_is_the_distance_to_a_change_of_the_set(
    worth: NDArray[np.float64], groups: NDArray[np.intp], k: int, at_most: int
) -> None:
    """The distance is how far a document alone must change to change the set.

    The margin is half of that if two documents would change places, because each moves half of the way.
    """
    capacity, sets = grouped(groups, k, at_most), allowed(groups, k, at_most)
    margin, inside = capacity.margin(worth)
    assert np.flatnonzero(inside).tolist() == np.flatnonzero(capacity.fill(worth)).tolist()
    assert (margin[inside] >= 0).all() and (margin[~inside] <= 0).all()
    best = max(worth[chosen].sum() for chosen in sets)
    for document in range(7):
        other = [worth[chosen].sum() for chosen in sets if (document in chosen) != inside[document]]
        if not other or capacity.holds_all(7):
            assert margin[document] >= 1 or capacity.holds_all(7)
            continue
        distance = best - max(other)  # how far the document must change
        assert distance / 2 - 1e-9 <= abs(margin[document]) <= distance + 1e-9


def test_grouped_capacity_of_single_documents_equals_the_plain_one() -> None:
    worth = np.random.default_rng(0).uniform(size=40)
    for plain in (DocumentCapacity(7), TokenCapacity(np.arange(1.0, 41.0), 90.0)):
        capacity = GroupedCapacity(plain, np.arange(40), np.ones(40, dtype=np.intp))
        assert (capacity.fill(worth) == plain.fill(worth)).all()
        margin, inside = plain.margin(worth)
        found = capacity.margin(worth)
        np.testing.assert_allclose(np.diff(found[0]), np.diff(margin))
        assert (found[1] == inside).all()
        shares = np.full((2, 40), 0.5)
        values = np.stack([worth, worth / 2])
        assert capacity.best(shares, values) == plain.best(shares, values)


@pytest.mark.parametrize(("at_most", "within"), [(1, 0.02), (2, 0.06), (5, 0.06)])
def test_grouped_best_approximates_the_expected_best_set(at_most: int, within: float) -> None:
    """The reference is the mean of 300 drawn outcomes.

    The 60 groups have one to nine documents, of which 40 have known scores.
    """
    rng = np.random.default_rng(at_most)
    groups = np.repeat(np.arange(60), rng.integers(1, 10, size=60))
    count = len(groups)
    worth = rng.beta(0.6, 2, size=(6, count))
    worth[:, rng.permutation(count)[:40]] = rng.beta(0.6, 2, size=40)
    capacity = grouped(groups, 50, at_most)
    found = capacity.best(np.full((6, count), 1 / 6), worth)
    drawn = []
    for _ in range(300):
        outcome = worth[rng.integers(6, size=count), np.arange(count)]
        drawn.append(outcome[capacity.fill(outcome)].sum())
    assert found == pytest.approx(np.mean(drawn), rel=within)
    assert found <= DocumentCapacity(50).best(np.full((6, count), 1 / 6), worth)


@pytest.mark.parametrize("config", CONFIGS)
def test_session_counts_groups_toward_k(config: Config) -> None:
    """With all scores known, a session returns the k best groups, with three documents each."""
    pool, scores = clustered(100, 8, 5)
    groups = np.arange(100) // 7
    known = dict(enumerate(scores.tolist()))
    session = session_of(pool, budget=0, k=4, config=config, known=known, distinct=Groups(groups, 3, True))
    assert session.stop_reason is StopReason.BUDGET and session.expected_loss() == 0
    best_of = {group: np.flatnonzero(groups == group)[np.argsort(-scores[groups == group])] for group in range(15)}
    leading = sorted(best_of, key=lambda group: -scores[best_of[group][0]])[:4]
    expected = sorted(int(document) for group in leading for document in best_of[group][:3])
    assert sorted(session.selection().documents.tolist()) == expected


def test_session_omits_documents_negligible_beside_the_best() -> None:
    pool, scores = clustered(40, 8, 5)
    scores[:] = 1e-4
    scores[3], scores[7], scores[9] = 0.9, 0.0091, 0.0089
    known = dict(enumerate(scores.tolist()))
    for k in (DocumentCapacity(20), TokenCapacity(np.arange(1.0, 41.0), 300.0)):
        session = session_of(pool, budget=0, k=k, known=known, negligible=0.01)
        assert sorted(session.selection().documents.tolist()) == [3, 7]
        assert session.expected_loss() == 0


def greedy_by_determinants(
    vectors: NDArray[np.floating], relevance: NDArray[np.float64], count: int, diversity: float
) -> list[int]:
    """Select greedily by the determinants themselves."""
    kappa = math.log(2) / (median_distance(vectors) / 2)
    covariance = np.exp(-kappa * (1 - vectors @ vectors.T))
    chosen: list[int] = []
    while len(chosen) < count:
        before = np.linalg.slogdet(covariance[np.ix_(chosen, chosen)])[1]
        gains = {}
        for one in set(range(len(vectors))) - set(chosen):
            with_it = [*chosen, one]
            left = np.linalg.slogdet(covariance[np.ix_(with_it, with_it)])[1] - before
            gains[one] = (1 - diversity) * math.log(relevance[one]) + diversity * left
        chosen.append(max(gains, key=lambda one: (gains[one], -one)))
    return chosen


@pytest.mark.parametrize("diversity", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_diverse_adds_the_document_with_the_greatest_gain(diversity: float, seed: int) -> None:
    pool, scores = clustered(40, 6, seed)
    found = choose_diverse(pool.embeddings, scores, 12, diversity).tolist()
    assert found == greedy_by_determinants(pool.embeddings, scores, 12, diversity)
    if diversity == 0:
        assert found == np.argsort(-scores, kind="stable")[:12].tolist()


def test_diverse_is_stable_for_sets_of_copies() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(80, 2)).astype(np.float32)[rng.integers(4, size=80)]
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    with np.errstate(over="raise"):
        assert len(set(choose_diverse(vectors, np.linspace(0.1, 0.9, 80), 50, 0.4).tolist())) == 50


def test_diverse_puts_copies_last() -> None:
    pool, scores = clustered(30, 6, 1)
    vectors, relevance = np.repeat(pool.embeddings, 4, axis=0), np.repeat(scores, 4)
    assert len(set(choose_diverse(vectors, relevance, 20, 0.5) // 4)) == 20
    assert len(set(choose_diverse(vectors, relevance, 40, 0.5).tolist())) == 40  # there are 30 groups
    assert len(set(choose_diverse(vectors, relevance, 20, 0.0) // 4)) == 5
    assert choose_diverse(vectors[:3], relevance[:3], 5, 0.5).tolist() == [0, 1, 2]
    assert len(set(choose_diverse(np.ones((50, 4)) / 2, np.zeros(50), 10, 0.5).tolist())) == 10


def test_session_combines_diversity_and_groups() -> None:
    pool, scores = clustered(80, 8, 2)
    groups = np.arange(80) // 4
    known = dict(enumerate(scores.tolist()))
    options = {"budget": 0, "k": 8, "known": known, "config": TrendConfig()}
    plain = session_of(pool, **options).selection().documents  # type: ignore[arg-type]
    varied = session_of(pool, **options, diversity=0.4).selection()  # type: ignore[arg-type]
    assert set(varied.documents.tolist()) == set(choose_diverse(pool.embeddings, scores, 8, 0.4).tolist())
    assert set(varied.documents.tolist()) != set(plain.tolist()) and (np.diff(varied.relevance) <= 0).all()
    both = session_of(pool, **options, diversity=0.4, distinct=Groups(groups, 2, True))  # type: ignore[arg-type]
    chosen = both.selection().documents
    assert np.bincount(groups[chosen]).max() == 2 and len(set(groups[chosen])) == 8 and len(chosen) == 16


@pytest.mark.strangers
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("known", [{}, {3: 0.5}])
def test_copies_found_later_reopen_a_decided_session(config: Config, known: dict[int, float]) -> None:
    """All documents fit into the set, until some are found to be copies, of which one may stay."""
    pool, scores = clustered(12, 4, 1)
    texts = np.arange(12) // 2
    session = session_of(pool, budget=9, k=12, config=config, known=known, distinct=Groups())
    before = session.stop_reason
    session.same_texts(texts)
    play(session, scores[texts * 2], 2)
    assert (before, session.stop_reason) == (StopReason.NOTHING_TO_DECIDE, StopReason.POOL_EXHAUSTED)
    assert sorted(texts[session.selection().documents].tolist()) == list(range(6))
