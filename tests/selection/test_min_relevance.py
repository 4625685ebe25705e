"""Test sessions that return documents which probably score at least a minimum."""

import numpy as np
import pytest
from scipy.stats import norm

from boundarymorph.selection import Config, Pool, SelectionConfig, Session, StopReason, TrendConfig
from boundarymorph.selection.belief import Scale
from boundarymorph.selection.capacity import TokenCapacity
from tests.selection.pools import Scores, clustered, play
from tests.sessions import session_of

CONFIGS: tuple[Config, ...] = (TrendConfig(), SelectionConfig())


def reaching(
    pool: Pool, scores: Scores, budget: int, least: float, k: int = 400, size: int = 4, config: Config | None = None
) -> Session:
    session = session_of(pool, budget=budget, k=k, config=config or TrendConfig(), min_relevance=least)
    return play(session, scores, size)


@pytest.mark.parametrize("config", CONFIGS)
def test_min_relevance_decides_known_scores_at_the_edge(config: Config) -> None:
    pool, scores = clustered(60, 8, 1)
    edge = float(np.sort(scores)[-7])
    known = dict(enumerate(scores.tolist()))
    for least, count in ((edge, 7), (np.nextafter(edge, 2), 6), (0.0, 60), (1.0, int((scores == 1.0).sum()))):
        session = session_of(pool, budget=5, k=60, config=config, known=known, min_relevance=float(least))
        assert session.stop_reason is StopReason.POOL_EXHAUSTED and session.expected_loss() == 0
        assert sorted(session.selection().documents.tolist()) == np.flatnonzero(scores >= least).tolist()
        assert len(session.selection().documents) == count


@pytest.mark.parametrize("config", CONFIGS)
def test_min_relevance_keeps_the_k_most_relevant(config: Config) -> None:
    """The calls and the set equal those without a minimum if more than k documents reach it."""
    pool, scores = clustered(200, 12, 2)
    known = {document: float(scores[document]) for document in range(0, 200, 2)}
    session = session_of(pool, budget=10, k=5, config=config, known=known, min_relevance=0.01)
    plain = session_of(pool, budget=10, k=5, config=config, known=known)
    for _ in range(3):
        asked = session.ask(3)
        assert asked.tolist() == plain.ask(3).tolist()
        session.tell(asked, scores[asked])
        plain.tell(asked, scores[asked])
    assert session.selection().documents.tolist() == plain.selection().documents.tolist()
    assert session.expected_loss() == plain.expected_loss()


def test_min_relevance_asks_for_the_most_doubtful_document() -> None:
    pool, scores = clustered(300, 12, 3)
    session = session_of(pool, budget=21, k=400, config=TrendConfig(), min_relevance=0.6)
    for _ in range(5):
        asked = session.ask(4)
        session.tell(asked, scores[asked])
    (asked,) = session.ask()
    shares = session._posterior.beliefs.reaching_belief(0.6).mean
    unscored = np.flatnonzero(~session.belief.scored)
    assert asked == unscored[np.abs(shares[unscored] - 0.5).argmin()]


@pytest.mark.parametrize("least", [0.0, 0.05, 0.1, 0.3, 0.5, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("scale", [Scale(), Scale(0.25, 0.25), Scale(0.1, 0.1, 0.1), Scale(0.25, 0.0, 0.25)])
def test_reaching_is_the_probability_of_a_score_at_the_threshold(least: float, scale: Scale) -> None:
    """The reference is the share of possible scores, on the scale of the scores."""
    weights, means, variances = np.array([0.3, 0.7]), np.array([[-1.0, 2.0], [0.5, -3.0]]), np.full((2, 2), 1.5)
    shares = (np.arange(20_000) + 0.5) / 20_000
    drawn = scale.scores(means[:, :, None] + np.sqrt(variances)[:, :, None] * norm.ppf(shares))
    expected = weights @ (drawn >= least).mean(axis=2)
    np.testing.assert_allclose(scale.reach_probabilities(least, weights, means, variances), expected, atol=1e-3)


def test_reaching_is_the_probability_of_a_level_of_the_scorer() -> None:
    scale = Scale(0.25, 0.25, 0.25, (0.0, 0.5, 1.0), (-0.4, 0.6))
    weights, means, variances = np.ones(1), np.array([[0.1, -0.4]]), np.array([[0.49, 1.0]])
    for least, cut in ((0.01, -0.4), (0.5, -0.4), (0.51, 0.6), (1.0, 0.6)):
        expected = norm.cdf((means[0] - cut) / np.sqrt(variances[0]))
        np.testing.assert_allclose(scale.reach_probabilities(least, weights, means, variances), expected, atol=1e-4)
    np.testing.assert_array_equal(scale.reach_probabilities(0.0, weights, means, variances), [1.0, 1.0])


@pytest.mark.parametrize("config", CONFIGS)
def test_min_relevance_respects_a_token_capacity(config: Config) -> None:
    pool, scores = clustered(60, 8, 1)
    lengths = np.arange(1.0, 61.0)
    edge = float(np.sort(scores)[-7])
    for limit in (float(lengths.sum()), float(lengths[scores >= edge].sum()), float(lengths[scores >= edge].sum()) - 1):
        capacity = TokenCapacity(lengths, limit)
        session = session_of(pool, budget=60, k=capacity, config=config, min_relevance=edge)
        found = play(session, scores, 4).selection().documents
        assert set(found) <= set(np.flatnonzero(scores >= edge)) and lengths[found].sum() <= limit
        assert (len(found) == 7) == (limit >= lengths[scores >= edge].sum())
