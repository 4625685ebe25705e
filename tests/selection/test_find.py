"""Test sessions that find nearly all relevant documents, and say when they have."""

import numpy as np
import pytest
from scipy.stats import nbinom

from boundarymorph.selection import Pool, Selection, Session, StopReason
from boundarymorph.selection.methods import TO_FIND
from boundarymorph.selection.outlook import FURTHER_CALLS, SHAPE, STRAY, Search
from tests.selection.pools import play
from tests.sessions import Target, session_of

MOST = Target(0.9, 0.8)


def topics(seed: int, count: int = 300, relevant: int = 30) -> tuple[Pool, np.ndarray]:
    """Return a pool in a random order, and answers.

    The answer is 1 for the documents about one of ten topics, which is not the query's, and 0 for others.
    """
    rng = np.random.default_rng(seed)
    centres = np.eye(20)[:10]
    about = np.repeat(np.arange(10), count // 10)
    about[: count - relevant] = rng.integers(1, 10, count - relevant)
    about[count - relevant :] = 0
    about = rng.permutation(about)
    vectors = centres[about] + 0.15 * rng.normal(size=(count, 20))
    pool = Pool.from_embeddings(
        [str(number) for number in range(count)], vectors, rng.normal(size=20), np.arange(count, 0.0, -1.0)
    )
    return pool, (about == 0).astype(float)


def searching(pool: Pool, budget: int, known: dict[int, float] | None = None, target: Target = MOST) -> Session:
    return session_of(pool, budget=budget, k=len(pool), config=TO_FIND, known=known, min_relevance=0.5, target=target)


@pytest.mark.parametrize(("found", "target"), [(20, Target(0.9, 0.9)), (3, Target(0.5, 0.8)), (0, Target(1.0, 0.9))])
def test_search_recall_follows_a_negative_binomial_distribution(found: int, target: Target) -> None:
    unread = np.random.default_rng(found).beta(0.2, 3.0, 60)
    search = Search(found, unread, 100)
    mean = unread.sum() + STRAY * 0.6
    missed = nbinom(SHAPE, SHAPE / (SHAPE + mean))
    recall = search.recall(target.share)
    assert search.missed == pytest.approx(mean)
    allowed = max(number for number in range(61) if found >= target.share * (found + number) - 1e-9)
    whole = missed.cdf(60)  # at most 60 documents can be missed
    assert recall.probability == pytest.approx(missed.cdf(allowed) / whole, rel=1e-6)
    shares = [found / (found + number) if found + number else 1.0 for number in (missed.ppf(0.9), missed.ppf(0.1))]
    assert (recall.low, recall.high) == pytest.approx(tuple(shares))
    assert recall.low <= recall.expected <= recall.high
    assert recall.expected == (pytest.approx(found / (found + mean)) if found else 0.0)
    best = np.sort(unread)[::-1][: max(FURTHER_CALLS)]
    np.testing.assert_allclose(search.gains(), np.cumsum(best) / max(found + mean, 1.0))


def test_search_recall_counts_allowed_misses_exactly() -> None:
    """19 of 20 are exactly a share of 0.95; rounding must not lose this."""
    unread = np.full(10, 0.05)
    exactly, less = (Search(19, unread, 100).recall(share).probability for share in (0.95, 0.9501))
    missed = nbinom(SHAPE, SHAPE / (SHAPE + 0.5 + STRAY / 10))
    assert (exactly, less) == pytest.approx((missed.cdf(1) / missed.cdf(10), missed.cdf(0) / missed.cdf(10)))


def test_find_session_stops_early_and_reaches_its_recall() -> None:
    true, read = [], []
    for seed in range(6):
        pool, answers = topics(seed)
        session = play(searching(pool, len(pool)), answers, 5)
        chosen = session.selection()
        assert session.stop_reason is StopReason.FOUND and chosen.scored.all() and (chosen.relevance == 1.0).all()
        assert not session.proposals(5).documents.size and not session.ask(5).size
        true.append(answers[chosen.documents].sum() >= MOST.share * answers.sum())
        read.append(session.spent)
    assert np.mean(true) >= MOST.probability and np.mean(read) < 150


def test_find_session_proposes_what_an_asking_session_would_ask() -> None:
    """One session asks the scorer; the other has no budget and is given the same answers."""
    pool, answers = topics(1)
    asking = searching(pool, 100)
    for _ in range(4):
        asked = asking.ask(5)
        asking.tell(asked, answers[asked])
    told = searching(pool, 0, {seen.document: seen.score for seen in asking.history})
    assert told.stop_reason is StopReason.BUDGET and not told.ask(5).size
    proposed: Selection = told.proposals(5)
    assert proposed.documents.tolist() == asking.ask(5).tolist()
    assert (np.diff(proposed.relevance) <= 0).all() and not proposed.scored.any()
    one, other = told.outlook().recall, asking.outlook().recall
    assert one is not None and other is not None and one.expected == pytest.approx(other.expected)
    assert one.probability == pytest.approx(other.probability)


def test_find_session_reports_its_budget_or_a_fully_read_pool() -> None:
    pool, answers = topics(2)
    few = play(searching(pool, 20), answers, 5)
    recall = few.outlook().recall
    assert few.stop_reason is StopReason.BUDGET and recall is not None
    assert recall.probability is not None and recall.probability < MOST.probability
    assert few.expected_loss() == pytest.approx(1 - recall.expected)
    every = searching(pool, 0, dict(enumerate(answers.tolist())))
    assert every.stop_reason is StopReason.POOL_EXHAUSTED and every.expected_loss() == 0.0
    assert every.selection().documents.tolist() == np.flatnonzero(answers).tolist()


def test_find_session_never_proposes_copies_or_given_up_documents() -> None:
    pool, answers = topics(3)
    session = searching(pool, 0, {0: float(answers[0])})
    texts = np.arange(len(pool))
    texts[1] = 0
    first, second = session.proposals(2).documents.tolist()
    texts[second] = first
    session.same_texts(texts)
    gone = session.proposals(3).documents.tolist()[-1]
    session.give_up([gone])
    proposed = session.proposals(len(pool)).documents.tolist()
    assert first in proposed and not {0, 1, second, gone} & set(proposed)
    assert len(proposed) == len(pool) - 4
