"""A session that scores everything."""

import numpy as np
import pytest

from boundarymorph.errors import DuplicateIds, InvalidInput
from boundarymorph.selection import ExhaustiveSession, Pool, StopReason


def session(count: int, known: dict[int, float] | None = None) -> ExhaustiveSession:
    return ExhaustiveSession(Pool.listed([f"d{number}" for number in range(count)]), known)


def test_asks_for_everything_once_and_ranks_it() -> None:
    under_test = session(5, {1: 0.5})
    assert under_test.outlook().loss == 1
    assert under_test.ask(3).tolist() == [0, 2, 3]
    under_test.tell([0, 2, 3], [0.1, 0.9, 0.5])
    assert under_test.ranking().documents.tolist() == [2, 1, 3, 0]  # equal scores in the order of the pool
    assert under_test.ask(10).tolist() == [4]
    under_test.tell([4], [0.0])
    assert under_test.ask(10).size == 0
    assert under_test.outlook().loss == 0
    ranking = under_test.ranking()
    assert ranking.documents.tolist() == [2, 1, 3, 0, 4]
    assert ranking.relevance.tolist() == [0.9, 0.5, 0.5, 0.1, 0.0]
    assert ranking.scored.all() and not ranking.std.any()
    assert [(seen.document, seen.round) for seen in under_test.history] == [(0, 1), (2, 1), (3, 1), (4, 2)]


def test_what_is_given_up_is_neither_asked_nor_ranked() -> None:
    under_test = session(4)
    under_test.give_up([1])
    assert under_test.ask(4).tolist() == [0, 2, 3]
    under_test.tell([0, 2], [0.2, 0.4])
    under_test.give_up([2, 3])
    assert under_test.given_up == 3
    assert (under_test.ranking().documents.tolist(), under_test.stop_reason) == ([0], StopReason.POOL_EXHAUSTED)


def test_what_was_not_told_is_asked_again() -> None:
    under_test = session(3)
    under_test.ask(3)
    under_test.tell([], [])
    assert (under_test.rounds, under_test.ask(3).tolist()) == (0, [0, 1, 2])


@pytest.mark.parametrize("scores", [[0.5], [0.5, 1.5], [0.5, np.nan]])
def test_impossible_scores_change_nothing(scores: list[float]) -> None:
    under_test = session(2)
    under_test.ask(2)
    with pytest.raises(InvalidInput):
        under_test.tell([0, 1], scores)
    assert not under_test.belief.scored.any()
    with pytest.raises(InvalidInput):
        under_test.ask(0)


def test_a_listed_pool() -> None:
    pool = Pool.listed(["b", "a"])
    assert (list(pool.ids), pool.embeddings.shape, pool.scores.tolist()) == (["b", "a"], (2, 0), [0, 0])
    with pytest.raises(DuplicateIds):
        Pool.listed(["a", "a"])
    with pytest.raises(InvalidInput):
        Pool.listed([])


def test_what_is_left_unscored_comes_last() -> None:
    session = ExhaustiveSession(Pool.listed(["a", "b", "c"]))
    asked = session.ask(3)
    session.leave_unscored(asked[:1])
    session.tell(asked[1:], [0.0, 0.5])
    assert session.stop_reason is StopReason.POOL_EXHAUSTED
    ranking = session.ranking()
    assert ranking.documents.tolist() == [2, 1, 0]
    assert ranking.scored.tolist() == [True, True, False]
