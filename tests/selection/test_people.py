"""Test relevance to people, for which the scorer is one of several signals."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from boundarymorph.selection import Pool, TrendConfig
from boundarymorph.selection.methods import HUMAN_CONFIG
from boundarymorph.selection.pool import SIGNAL_WEIGHT
from boundarymorph.selection.process import VonMisesFisher, median_distance
from boundarymorph.selection.trend import TrendPosterior
from tests.selection.pools import clustered, play
from tests.sessions import session_of

Matrix = NDArray[np.float64]


def pool_of(seed: int = 3, size: int = 60, *, words: bool = True) -> Pool:
    pool, _ = clustered(size, 16, seed)
    if not words:
        return pool
    bm25 = np.maximum(np.random.default_rng(seed).normal(size=size), 0)
    return Pool.from_embeddings(pool.ids, pool.embeddings, pool.query, pool.scores, {"bm25": bm25})


def posterior(
    pool: Pool, scores: dict[int, float], *, human: bool, signal_weight: float = SIGNAL_WEIGHT
) -> TrendPosterior:
    kernel = VonMisesFisher(median_distance(pool.embeddings) / 2)
    made = TrendPosterior(pool, kernel, max(len(scores), 1), human=human, signal_weight=signal_weight)
    made.observe(list(scores), list(scores.values()))
    return made


def unit(values: Matrix) -> Matrix:
    standard: Matrix = (values - values.mean()) / values.std()
    return standard


def nearness(pool: Pool, best: NDArray[np.intp]) -> Matrix:
    """Return (N,) nearness to the query plus nearness to the mean of the best documents."""
    products = np.array([np.mean([one @ other for other in pool.embeddings[best]]) for one in pool.embeddings])
    return unit(unit(pool.scores) + unit(products))


def signal_sum(pool: Pool, near: Matrix) -> Matrix:
    """Return the (N,) sum of the signals."""
    return 0.85 * near + 0.15 * unit(np.sqrt(pool.features["bm25"])) if "bm25" in pool.features else near


def literal_relevance(pool: Pool, scores: dict[int, float], share: float) -> tuple[Matrix, Matrix, float]:
    """Return the expected log-odds of relevance to people, given a belief about scores.

    The result has (N,) log-odds, (N,) additions by the signals, and the factor of the sum.
    """
    believed = posterior(pool, scores, human=False).beliefs
    mean = (believed.weights[:, None] * believed.means).sum(axis=0)
    unknown = np.mean(believed.weights @ believed.residuals.variances)
    spread = np.sqrt(np.mean((mean - mean.mean()) ** 2) + unknown)
    best = np.argsort(-(mean + share * spread * signal_sum(pool, unit(pool.scores))))[
        : min(3, math.ceil(len(pool) / 10))
    ]
    added = share * spread * signal_sum(pool, nearness(pool, best))
    both = mean + added
    factor = spread / np.sqrt(np.mean((both - both.mean()) ** 2) + unknown)
    return both.mean() + factor * (both - both.mean()), added, factor


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize(("size", "count", "share"), [(60, 1, 0.25), (9, 8, 0.25), (12, 8, 2.0), (60, 20, 2.0)])
def test_human_relevance_of_a_scored_document_adds_the_signals(
    words: bool, size: int, count: int, share: float
) -> None:
    pool, rng = pool_of(size=size, words=words), np.random.default_rng(count)
    scores = dict(zip(rng.permutation(len(pool))[:count].tolist(), rng.uniform(0.01, 0.9, count), strict=True))
    found = posterior(pool, scores, human=True, signal_weight=share).beliefs
    scored = list(scores)
    expected, _, _ = literal_relevance(pool, scores, share)
    read = found.deciding_belief()
    np.testing.assert_allclose(read.mean[scored], expit(expected[scored]), rtol=1e-9)
    assert (read.std[scored] == 0).all() and read.scored.sum() == count
    assert found.reported_belief() is read


@pytest.mark.parametrize("rounds", [1, 5])
def test_human_relevance_makes_the_calls_of_scorer_relevance(rounds: int) -> None:
    pool, scores = clustered(80, 16, 4)
    asked = []
    for config in (TrendConfig(), HUMAN_CONFIG):
        session = play(session_of(pool, budget=20, k=10, config=config), scores, rounds)
        asked.append([seen.document for seen in session.history])
        assert [seen.score for seen in session.history] == scores[asked[-1]].tolist()
    assert asked[0] == asked[1]


def test_human_relevance_of_unscored_documents_shifts_the_log_odds() -> None:
    pool, rng = pool_of(), np.random.default_rng(1)
    scores = dict(zip(rng.permutation(len(pool))[:12].tolist(), rng.uniform(0.01, 0.9, 12), strict=True))
    plain, found = (posterior(pool, scores, human=to).beliefs for to in (False, True))
    _, added, factor = literal_relevance(pool, scores, SIGNAL_WEIGHT)
    middle = (plain.weights @ (plain.means + added)).mean()
    moved = replace(
        plain,
        means=middle + factor * (plain.means + added - middle),
        variances=factor**2 * plain.variances,
        residuals=plain.residuals._replace(
            typical=factor**2 * plain.residuals.typical, noise=factor**2 * plain.residuals.noise
        ),
    )
    shifted = moved.belief().mean
    unscored = np.setdiff1d(np.arange(len(pool)), list(scores))
    read = found.deciding_belief()
    np.testing.assert_allclose(read.mean[unscored], shifted[unscored], atol=1e-6)
    shares, values = found.outcomes()
    reached = found.reaching_belief(0.3)
    np.testing.assert_allclose((shares * values)[:, list(scores)].sum(axis=0), read.mean[list(scores)], rtol=1e-6)
    np.testing.assert_array_equal(reached.mean[list(scores)], read.mean[list(scores)] >= 0.3)
    assert np.corrcoef((reached.mean - plain.reaching_belief(0.3).mean)[unscored], added[unscored])[0, 1] > 0.3


def test_constant_scores_leave_the_order_to_the_signals() -> None:
    pool = pool_of(words=False)
    session = session_of(pool, budget=len(pool), k=5, config=replace(HUMAN_CONFIG, signal_weight=1.0))
    play(session, np.full(len(pool), 0.5), 10)
    _, added, _ = literal_relevance(pool, dict.fromkeys(range(len(pool)), 0.5), 1.0)
    ranking = session.ranking()
    assert np.corrcoef(ranking.relevance, added[ranking.documents])[0, 1] > 0.99
    assert not session.enough_scores  # the scores do not differ, whatever the signals add
