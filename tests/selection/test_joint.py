"""One budget for several queries, against a literal reading of the rule and against equal shares."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from boundarymorph.selection import JointSession, Pool, SelectionSession, TrendConfig
from boundarymorph.selection.rounds import growing

K = 20


def field(seed: int, queries: int = 4, count: int = 300) -> tuple[list[Pool], NDArray[np.float64]]:
    """Pools of the same documents for several queries, and their (Q, N) scores: some queries have few answers."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    pools, scores = [], np.empty((queries, count))
    for number in range(queries):
        aim, near = rng.normal(size=(2, 16))
        query = (aim + 0.7 * near).astype(np.float32)
        pools.append(Pool.of([str(place) for place in range(count)], vectors, query))
        odds = 9 * vectors @ (aim / np.linalg.norm(aim)) - rng.uniform(2.0, 7.0) + 0.5 * rng.normal(size=count)
        scores[number] = 1 / (1 + np.exp(-odds))
    return pools, scores


def sessions_of(pools: Sequence[Pool], budget: int) -> list[SelectionSession]:
    return [SelectionSession(pool, budget=budget, k=K, config=TrendConfig(), order=True) for pool in pools]


def play(pools: Sequence[Pool], scores: NDArray[np.float64], budget: int) -> JointSession:
    joint = JointSession(sessions_of(pools, budget), [str(n) for n in range(scores.shape[1])], budget=budget, k=K)
    while True:
        asked = joint.ask(max(1, growing(joint.spent, budget - joint.spent, budget)))
        if not any(documents.size for documents in asked):
            return joint
        for number, documents in enumerate(asked):
            joint.sessions[number].tell(documents, scores[number, joint.places[number][documents]])


def test_better_than_equal_shares() -> None:
    gained, equal = [], []
    for seed in range(6):
        pools, scores = field(seed)
        truth = scores.max(axis=0)
        best = np.sort(truth)[-K:].sum()
        joint = play(pools, scores, 40)
        assert joint.spent == 40
        gained.append(truth[joint.selection().selection.documents].sum() / best)
        alone = sessions_of(pools, 10)
        for number, session in enumerate(alone):
            place = np.array([int(id) for id in session.pool.ids])
            while (asked := session.ask(3)).size:
                session.tell(asked, scores[number, place[asked]])
        joint = JointSession(alone, [str(n) for n in range(scores.shape[1])], budget=40, k=K)
        equal.append(truth[joint.selection().selection.documents].sum() / best)
    assert np.mean(gained) > np.mean(equal) + 0.01


def test_a_pair_is_worth_what_its_score_may_change() -> None:
    """Against a loop over pairs and outcomes."""
    pools, scores = field(1, queries=3, count=60)
    joint = play(pools, scores, 12)
    ids = [str(n) for n in range(60)]
    joint = JointSession(joint.sessions, ids, budget=30, k=K, weights=[1.0, 0.5, 0.8])
    means = np.zeros((3, 60))
    for number, session in enumerate(joint.sessions):
        ranking = session.ranking()
        means[number, joint.places[number][ranking.documents]] = ranking.relevance * [1.0, 0.5, 0.8][number]
    best = means.max(axis=0)
    order = np.argsort(-best, kind="stable")
    cut = (best[order[K - 1]] + best[order[K]]) / 2
    worth = {}
    for number, session in enumerate(joint.sessions):
        shares, values = session.outcomes()
        for position in session.open.tolist():
            document = int(joint.places[number][position])
            others = max(means[other, document] for other in range(3) if other != number)
            after = [max(value * [1.0, 0.5, 0.8][number], others) for value in values[:, position]]
            won = [max(0.0, cut - value if document in order[:K] else value - cut) for value in after]
            worth[number, document] = float(np.dot(shares[:, position], won))
    expected = sorted(worth, key=lambda pair: -worth[pair])[:5]
    for session in joint.sessions:
        session.budget = 30
    asked = joint.ask(5)
    found = {
        (number, int(joint.places[number][position]))
        for number, documents in enumerate(asked)
        for position in documents.tolist()
    }
    assert found == set(expected)


@pytest.mark.parametrize("budget", [0, 1, 3, 5])
def test_never_more_than_the_budget(budget: int) -> None:
    pools, scores = field(2)
    joint = play(pools, scores, budget)
    assert joint.spent == budget and joint.stop_reason == "budget"


def test_the_expected_loss_falls_to_nothing() -> None:
    pools, scores = field(3, count=30)
    losses = [play(pools, scores, budget).outlook().loss for budget in (8, 40, 120)]
    assert losses[0] > losses[1] > losses[2] == 0.0


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_queries_any_answers(data: st.DataObject) -> None:
    """Pools that overlap in part, documents that go, scores that never come: what was promised holds throughout."""
    seed, budget, k = (data.draw(st.integers(0, most)) for most in (1_000, 25, 12))
    pools, scores = field(seed, queries=3, count=20)
    kept = [data.draw(st.sets(st.integers(0, 19), min_size=1)) for _ in pools]
    parts = [
        Pool.of([str(n) for n in sorted(keep)], pool.embeddings[np.isin(pool.ids, [str(n) for n in keep])], pool.query)
        for pool, keep in zip(pools, kept, strict=True)
    ]
    ids = sorted({id for part in parts for id in part.ids}, key=int)
    joint = JointSession(sessions_of(parts, budget), ids, budget=budget, k=k + 1, weights=[1.0, 0.6, 0.3], order=True)
    asked: set[tuple[int, str]] = set()
    gone: set[str] = set()
    while True:
        chosen = joint.selection().selection
        there = set(ids) - gone
        assert {ids[place] for place in chosen.documents} <= there and len(chosen.documents) == min(k + 1, len(there))
        assert (np.diff(chosen.relevance) <= 0).all() and joint.spent <= budget
        batches = joint.ask(data.draw(st.integers(1, 6)))
        if not any(batch.size for batch in batches):
            break
        for number, batch in enumerate(batches):
            session = joint.sessions[number]
            names = [session.pool.ids[place] for place in batch]
            assert not {(number, name) for name in names} & asked and not set(names) & gone
            asked |= {(number, name) for name in names}
            answered = np.array([data.draw(st.booleans()) for _ in names], dtype=np.bool_)
            values = scores[number, [int(name) for name in names]]
            session.tell(batch[answered], values[answered])
            session.leave_unscored(batch[~answered])
        if data.draw(st.booleans()):
            lost = data.draw(st.sampled_from(ids))
            gone.add(lost)
            for session in joint.sessions:
                session.give_up(np.flatnonzero(np.array(session.pool.ids) == lost))
    assert joint.spent == len(asked) and joint.stop_reason in ("budget", "pool_exhausted")
