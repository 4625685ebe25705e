"""Test that copies share a score, and a session that scores every document."""

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.selection import ExhaustiveSession, Pool, StopReason, TrendConfig
from boundarymorph.selection.belief import Belief, first_of_each, share_scores
from boundarymorph.selection.process import group_alike
from tests.selection.pools import clustered
from tests.sessions import session_of


def test_shared_belief_gives_a_score_to_every_copy() -> None:
    belief = Belief(
        np.array([0.1, 0.9, 0.3, 0.4]), np.array([0.2, 0.0, 0.2, 0.2]), np.array([False, True, False, False])
    )
    found = share_scores(belief, np.array([1, 1, 2, 1]))
    assert found.mean.tolist() == [0.9, 0.9, 0.3, 0.9]
    assert found.std.tolist() == [0.0, 0.0, 0.2, 0.0]
    assert found.scored.tolist() == [True, True, False, True]
    assert belief.mean.tolist() == [0.1, 0.9, 0.3, 0.4]
    assert share_scores(belief, np.arange(4)) is belief


def test_first_of_each_keeps_the_given_order() -> None:
    assert first_of_each(np.array([2, 1, 3, 0]), np.array([7, 5, 7, 5])).tolist() == [2, 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("noise", [0.0, 3e-4])
def test_alike_finds_vectors_equal_up_to_rounding(dtype: type, noise: float) -> None:
    rng = np.random.default_rng(1)
    vectors: NDArray[np.floating] = rng.normal(size=(2_000, 64)).astype(dtype)
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    owners = np.arange(2_000)
    owners[rng.permutation(2_000)[:300]] = rng.integers(0, 50, size=300)
    owners = owners[owners]
    vectors = vectors[owners] + noise * rng.normal(size=vectors.shape).astype(dtype) / 8
    groups = group_alike(vectors)
    pairs = owners[:, None] == owners[None]
    assert ((groups[:, None] == groups[None]) == pairs).all()


def test_exhaustive_session_asks_once_per_text() -> None:
    pool, scores = clustered(12, 8, 3)
    session = ExhaustiveSession(pool)
    session.same_texts(np.repeat(np.arange(0, 12, 3), 3))
    asked = session.ask(12)
    assert asked.tolist() == [0, 3, 6, 9]
    session.tell(asked[:2], scores[asked[:2]])
    assert sorted(session.ranking().documents.tolist()) == list(range(6))
    session.tell(asked[2:], scores[asked[2:]])
    assert session.stop_reason is StopReason.POOL_EXHAUSTED and len(session.ranking().documents) == 12


def session(count: int, known: dict[int, float] | None = None) -> ExhaustiveSession:
    return ExhaustiveSession(Pool.from_ids([f"d{number}" for number in range(count)]), known)


def test_exhaustive_session_asks_for_everything_once_and_ranks_it() -> None:
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


def test_exhaustive_session_drops_documents_given_up() -> None:
    under_test = session(4)
    under_test.give_up([1])
    assert under_test.ask(4).tolist() == [0, 2, 3]
    under_test.tell([0, 2], [0.2, 0.4])
    under_test.give_up([2, 3])
    assert under_test.given_up == 3
    assert (under_test.ranking().documents.tolist(), under_test.stop_reason) == ([0], StopReason.POOL_EXHAUSTED)


@pytest.mark.parametrize("scores", [[0.5], [0.5, 1.5], [0.5, np.nan]])
def test_exhaustive_session_refuses_impossible_scores_unchanged(scores: list[float]) -> None:
    under_test = session(2)
    under_test.ask(2)
    with pytest.raises(InvalidInput):
        under_test.tell([0, 1], scores)
    assert not under_test.belief.scored.any()
    with pytest.raises(InvalidInput):
        under_test.ask(0)


def test_copies_found_after_an_ask_are_withdrawn_from_it() -> None:
    pool, scores = clustered(50, 8, 3)
    session = session_of(pool, budget=20, k=10, config=TrendConfig())
    first = session.ask(3)
    session.tell(first[:1], scores[first[:1]])
    texts = np.arange(50)
    texts[first[1]] = first[0]  # one of the two in flight has the text of the scored document
    session.same_texts(texts)
    assert session.asked.tolist() == first[2:].tolist()
    assert session.spent == 1 and session.belief.mean[first[1]] == scores[first[0]]
