"""One budget for several queries, against a literal reading of the rule and against equal shares."""

from collections.abc import Sequence

import numpy as np
import pytest
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
