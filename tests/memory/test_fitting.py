"""What requests say of a prior, against dense covariances and a numerical integral, and what is learned from many."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import expit, logit
from scipy.stats import multivariate_normal

from boundarymorph.memory.memory import fitted, log_likelihoods
from boundarymorph.selection import Pool, SelectionSession, TrendConfig
from boundarymorph.selection.pool import DEFAULT_PRIOR, Evidence, TrendPrior, standardised
from boundarymorph.selection.process import median_distance
from boundarymorph.selection.trend import NOISE
from tests.selection.pools import clustered

Matrix = NDArray[np.float64]
LEARNED = TrendPrior(-7.0, 0.8, 0.1, 0.9, 0.2, 0.6, 0.3, 4.0, 4.0)


def evidence_of(columns: Matrix, covariance: Matrix, y: Matrix) -> Evidence:
    """The sums by their definition: of what is whitened by the covariance."""
    inverse = np.linalg.inv(covariance)
    return Evidence(columns.T @ inverse @ columns, columns.T @ inverse @ y, float(y @ inverse @ y), len(y))


def drawn(rng: np.random.Generator, prior: TrendPrior, count: int = 20) -> tuple[Matrix, Matrix, Matrix]:
    """Columns, covariance and log-odds of a request under a prior, at its typical amplitude."""
    columns = np.column_stack([np.ones(count), rng.normal(size=(count, 3))])
    root = rng.normal(size=(count, count)) / np.sqrt(count)
    covariance = root @ root.T + NOISE * np.eye(count)
    amplitude = np.sqrt(prior.scale)
    slopes = np.concatenate([[0.0], prior.slopes]) + prior.deviations * rng.normal(size=4)
    y = prior.level + amplitude * (columns @ slopes + np.linalg.cholesky(covariance) @ rng.normal(size=count))
    return columns, covariance, y


@pytest.mark.parametrize("prior", [DEFAULT_PRIOR, LEARNED])
def test_a_likelihood_is_that_of_the_dense_normal_with_the_amplitude_integrated_out(prior: TrendPrior) -> None:
    found, expected = [], []
    for seed in range(4):
        columns, covariance, y = drawn(np.random.default_rng(seed), LEARNED)
        found.append(log_likelihoods(prior, [evidence_of(columns, covariance, y)])[0])
        mean = columns[:, 1:] @ prior.slopes
        spread = covariance + (columns * prior.deviations**2) @ columns.T

        def before(log_amplitude: float) -> float:
            return float(-prior.scores * (log_amplitude + prior.scale * np.exp(-2 * log_amplitude) / 2))

        def density(log_amplitude: float, *given: Matrix) -> float:
            a, (y, mean, spread) = np.exp(log_amplitude), given
            return float(multivariate_normal(prior.level + a * mean, a**2 * spread).logpdf(y)) + before(log_amplitude)

        given = (y, mean, spread)
        top = max(density(value, *given) for value in np.linspace(-2.5, 3, 200))
        whole = quad(lambda value, *all: np.exp(density(value, *all[1:]) - all[0]), -2.5, 3, (top, *given), limit=200)[
            0
        ]
        normal = quad(lambda value: np.exp(before(value)), -2.5, 3, limit=200)[0]
        constant = -np.linalg.slogdet(covariance)[1] / 2 - len(y) / 2 * np.log(2 * np.pi)
        expected.append(top + np.log(whole / normal) - constant)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.02)


def test_all_requests_at_once_are_as_one_by_one() -> None:
    requests = [evidence_of(*drawn(np.random.default_rng(seed), LEARNED, count=5 + seed)) for seed in range(6)]
    one_by_one = [log_likelihoods(LEARNED, [one])[0] for one in requests]
    np.testing.assert_allclose(log_likelihoods(LEARNED, requests), one_by_one, rtol=1e-12)


@pytest.mark.parametrize("prior", [DEFAULT_PRIOR, LEARNED])
def test_the_evidence_of_a_session_is_that_of_its_scored_documents(prior: TrendPrior) -> None:
    """Whatever it expects itself."""
    pool, _ = clustered(60, 12, 3)
    rng = np.random.default_rng(3)
    bm25, terms = np.maximum(rng.normal(size=60), 0), rng.random((3, 60)) < 0.4
    pool = Pool.of(pool.ids, pool.embeddings, pool.query, pool.scores, {"bm25": bm25}, terms)
    config = TrendConfig(prior=prior)
    session = SelectionSession(pool, budget=9, k=5, config=config)
    documents = [3, 40, 7, 22, 59, 11]
    scores = expit(rng.normal(-2, 1, size=6))
    session.ask(1)
    assert session.evidence() is None
    known = dict(zip(documents, scores.tolist(), strict=True))
    session = SelectionSession(pool, budget=9, k=5, config=config, known=known)

    kappa = 2 * np.log(2) / median_distance(pool.embeddings, None)
    points = pool.embeddings[documents].astype(np.float64)
    of_words = terms.astype(np.float64) - terms.mean(axis=1, keepdims=True)
    of_words = (of_words / np.sqrt((of_words**2).sum() / 60))[:, documents]
    covariance = np.exp(kappa * (points @ points.T - 1)) + 0.25 * of_words.T @ of_words + NOISE * np.eye(6)
    features = [-np.arange(60.0), pool.scores, np.sqrt(bm25)]
    columns = np.column_stack([np.ones(6), *(standardised(feature)[documents] for feature in features)])
    expected, found = evidence_of(columns, covariance, logit(scores)), session.evidence()
    assert found is not None and found.count == 6 and not found.graded
    np.testing.assert_allclose(found.products, expected.products, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.loads, expected.loads, rtol=1e-4, atol=1e-4)
    assert found.square == pytest.approx(expected.square, rel=1e-4)


def test_what_is_learned_from_many_requests_is_what_they_were_drawn_from() -> None:
    rng = np.random.default_rng(0)
    requests = [evidence_of(*drawn(rng, LEARNED)) for _ in range(120)]
    learned = fitted(requests)
    assert learned.level == pytest.approx(LEARNED.level, abs=0.6)
    np.testing.assert_allclose(learned.slopes, LEARNED.slopes, atol=0.12)
    np.testing.assert_allclose(learned.deviations, LEARNED.deviations, rtol=0.4)
    assert learned.scale == pytest.approx(LEARNED.scale, rel=0.3)
    others = [evidence_of(*drawn(rng, LEARNED)) for _ in range(40)]
    assert (log_likelihoods(learned, others) - log_likelihoods(DEFAULT_PRIOR, others)).mean() > 1


@pytest.mark.slow
@pytest.mark.parametrize(("graded", "count"), [(False, 10), (False, 20), (True, 12)])
def test_what_is_learned_is_what_a_slow_search_by_the_formula_finds(graded: bool, count: int) -> None:
    """The likelihood of all requests, penalised by how far such numbers scatter, and maximised without gradients; to a
    hundredth of that."""
    rng = np.random.default_rng(count)
    requests = [
        replace(evidence_of(*drawn(rng, LEARNED, int(rng.integers(5, 25)))), graded=graded) for _ in range(count)
    ]
    scatter = np.array([3.0, 1.0, 0.5, 0.5, 0.7, 0.5, 0.7, 1.0])
    start = np.array([-3.0, np.log(4.0), 0.5, 0.5, np.log(0.3), 0.3, np.log(0.5), 0.0])
    free = [2, 3, 5] if graded else list(range(8))

    def unlikely(values: Matrix) -> float:
        code = start.copy()
        code[free] = values
        code[[1, 4, 6, 7]] = np.exp(code[[1, 4, 6, 7]])
        level, of_level, rank, similarity, of_slopes, words, of_words, scale = code.tolist()
        scores = 1.0 if graded else 4.0
        prior = TrendPrior(level, of_level, rank, similarity, of_slopes, words, of_words, scale, scores)
        penalty = (((values - start[free]) / scatter[free]) ** 2).sum() / 2.0
        return float(penalty - log_likelihoods(prior, requests).sum())

    found = fitted(requests)
    of_level, of_slopes, of_words = np.log([found.level_deviation, found.slope_deviation, found.words_deviation])
    learned = np.array(
        [found.level, of_level, found.rank, found.similarity, of_slopes, found.words, of_words, np.log(found.scale)]
    )
    slow = minimize(unlikely, start[free], method="Powell", options={"xtol": 1e-5, "ftol": 1e-11})
    np.testing.assert_allclose((learned[free] - slow.x) / scatter[free], 0.0, atol=0.01)
    assert unlikely(learned[free]) == pytest.approx(slow.fun, abs=1e-4)


def test_a_scorer_with_few_grades_teaches_slopes_alone() -> None:
    rng = np.random.default_rng(1)
    requests = [evidence_of(*drawn(rng, LEARNED)) for _ in range(20)]
    graded = [Evidence(one.products, one.loads, one.square, one.count, graded=True) for one in requests]
    learned = fitted(graded)
    assert (learned.level, learned.scale, learned.scores) == (DEFAULT_PRIOR.level, 1.0, 1.0)
    np.testing.assert_array_equal(learned.deviations, DEFAULT_PRIOR.deviations)
    assert learned.similarity != DEFAULT_PRIOR.similarity
    assert learned.averaged and not fitted(requests).averaged
