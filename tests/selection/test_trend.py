"""The trend posterior against the textbook formulas, written out with whole matrices."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import rankdata

from boundarymorph.selection import Pool, SelectionSession, TrendConfig
from boundarymorph.selection.features import standardised
from boundarymorph.selection.geometry import median_distance
from boundarymorph.selection.kernels import VonMisesFisher
from boundarymorph.selection.trend import LINEAR_WEIGHT, NOISE, TrendPosterior
from tests.selection.pools import FAMILIES, Scores, clustered

Matrix = NDArray[np.float64]


def with_bm25(pool: Pool, seed: int = 0) -> Pool:
    bm25 = np.maximum(np.random.default_rng(seed).normal(size=len(pool)), 0)
    return Pool.of(pool.ids, pool.embeddings, pool.query, pool.scores, {"bm25": bm25})


def with_signals(pool: Pool, seed: int = 0) -> Pool:
    """BM25 and three signals of the caller's."""
    rng = np.random.default_rng(seed)
    features = {
        "bm25": np.maximum(rng.normal(size=len(pool)), 0),
        **{name: rng.normal(size=len(pool)) for name in "abc"},
    }
    return Pool.of(pool.ids, pool.embeddings, pool.query, pool.scores, features)


def member_covariances(pool: Pool, kappa: float) -> list[Matrix]:
    """(N, N) of each member: without and with BM25, with the caller's signals too, each without and with the reweighted
    query."""
    field = np.exp(kappa * (pool.embeddings @ pool.embeddings.T - 1))
    signals = [standardised(-np.arange(len(pool), dtype=np.float64)), standardised(pool.scores)]
    products = pool.embeddings * pool.query
    products = products - products.mean(axis=0)
    products /= np.sqrt((products**2).sum(axis=1).mean())
    sets = [signals]
    if "bm25" in pool.features:
        sets.append([*signals, standardised(np.sqrt(pool.features["bm25"]))])
    if others := [standardised(rankdata(pool.features[name])) for name in "abc" if name in pool.features]:
        sets.append([*sets[-1], *(other / len(others) for other in others)])
    return [
        field + LINEAR_WEIGHT * (sum(np.outer(s, s) for s in chosen) + reweighted * products @ products.T)
        for chosen in sets
        for reweighted in (0, 1)
    ]


def member(covariance: Matrix, observed: list[int], y: Matrix) -> tuple[Matrix, Matrix, float]:
    """Mean, variance and log marginal likelihood with the level integrated out and the amplitude profiled."""
    t = len(observed)
    inverse = np.linalg.inv(covariance[np.ix_(observed, observed)] + NOISE * np.eye(t))
    cross = covariance[:, observed]
    ones = np.ones(t)
    precision = ones @ inverse @ ones
    level = ones @ inverse @ y / precision
    amplitude = np.sqrt((y - level) @ inverse @ (y - level) / (t - 1)) if t > 1 else 1.0
    mean = level + cross @ inverse @ (y - level)
    leverage = 1 - cross @ inverse @ ones
    variance = np.diag(covariance) - np.einsum("nt,ts,ns->n", cross, inverse, cross) + leverage**2 / precision
    likelihood = -(t - 1) * np.log(amplitude) + 0.5 * np.linalg.slogdet(inverse)[1] - 0.5 * np.log(precision)
    return mean, amplitude**2 * variance, likelihood if t > 1 else 0.0


@pytest.mark.parametrize(("featured", "size"), [(None, 2), (with_bm25, 4), (with_signals, 6)])
@pytest.mark.parametrize("observations", [1, 2, 15])
def test_mixture_matches_the_textbook(featured: Callable[[Pool], Pool] | None, size: int, observations: int) -> None:
    """The default's own configuration: a field of correlation 1/2 at half the median distance of the pool."""
    for seed in range(3):
        pool, scores = clustered(70, 10, seed)
        scores = 0.1 + 0.8 * scores  # far enough from 0 and 1 that nothing is clipped
        pool = pool if featured is None else featured(pool)
        kappa = 2 * np.log(2) / median_distance(pool.embeddings, None)
        observed = np.random.default_rng(seed).permutation(70)[:observations].tolist()
        posterior = TrendConfig().posterior(pool, observations)
        posterior.observe(observed, scores[observed].tolist())

        y = logit(scores[observed])
        members = [member(k, observed, y) for k in member_covariances(pool, kappa)]
        assert len(members) == size
        weights = np.exp([m[2] - max(o[2] for o in members) for m in members])
        weights /= weights.sum()
        mean = sum(w * m for w, (m, _, _) in zip(weights, members, strict=True))
        second = sum(w * (v + m**2) for w, (m, v, _) in zip(weights, members, strict=True))
        open_ = np.setdiff1d(np.arange(70), observed)
        belief = posterior.belief()
        np.testing.assert_allclose(belief.mean[open_], mean[open_], rtol=0, atol=1e-8)
        np.testing.assert_allclose(belief.std[open_], np.sqrt(second - mean**2)[open_], rtol=0, atol=1e-7)
        np.testing.assert_allclose(belief.mean[observed], y, rtol=0, atol=1e-12)
        assert (belief.std[observed] == 0).all()

        expected = sum(w * expit(m / np.sqrt(1 + np.pi / 8 * v)) for w, (m, v, _) in zip(weights, members, strict=True))
        np.testing.assert_allclose(posterior.relevance()[open_], expected[open_], rtol=0, atol=1e-9)
        np.testing.assert_array_equal(posterior.relevance()[observed], scores[observed])


def test_deviation_is_that_of_samples() -> None:
    pool, scores = clustered(40, 8, 0)
    posterior = TrendPosterior(pool, VonMisesFisher(3.0), 10)
    posterior.observe(range(10), scores[:10].tolist())
    mixture = posterior._mixture
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(mixture.weights), p=mixture.weights, size=40_000)
    means, variances = mixture.means[:, 20:25], mixture.variances[:, 20:25]
    samples = expit(means[chosen] + np.sqrt(variances[chosen]) * rng.normal(size=(40_000, 5)))
    np.testing.assert_allclose(posterior.deviation(np.arange(20, 25)), samples.std(axis=0), atol=0.02)
    assert (posterior.deviation(np.arange(10)) == 0).all()


def test_exact_zeros_and_ones_are_held_half_a_step_away() -> None:
    pool, _ = clustered(40, 8, 0)
    posterior = TrendPosterior(pool, VonMisesFisher(3.0), 10)
    posterior.observe([0], [1.0])
    assert posterior.belief().mean[0] == pytest.approx(logit(0.75))
    posterior.observe([1, 2, 3], [0.0, 0.5, 0.0])
    np.testing.assert_allclose(posterior.belief().mean[:4], logit([0.75, 0.25, 0.5, 0.25]))
    posterior.observe([4], [0.02])
    np.testing.assert_allclose(posterior.belief().mean[:5], logit([0.99, 0.01, 0.5, 0.01, 0.02]))
    posterior.observe([5], [1e-9])
    assert posterior.belief().mean[1] == posterior.belief().mean[5] == pytest.approx(logit(1e-7))
    np.testing.assert_array_equal(posterior.relevance()[:6], [1.0, 0.0, 0.5, 0.0, 0.02, 1e-9])


def test_a_scorer_that_says_the_same_of_everything_leaves_the_ranking() -> None:
    pool, _ = clustered(120, 8, 0)
    session = run(with_bm25(pool), np.full(120, 0.5), 40, 30, 1)
    assert session.selection().documents.tolist() == list(range(30))


def test_fantasies_leave_no_trace() -> None:
    pool, scores = clustered(60, 8, 0)
    posterior = TrendPosterior(with_bm25(pool), VonMisesFisher(3.0), 20)
    posterior.observe(range(5), scores[:5].tolist())
    before, relevance = posterior.belief(), posterior.relevance()
    few = np.array([0, 1, 2, 3, 4, 20, 30, 40])
    fantasy = posterior.among(few)
    np.testing.assert_allclose(fantasy.belief().mean, before.mean[few], rtol=0, atol=1e-12)
    np.testing.assert_allclose(fantasy.belief().std, before.std[few], rtol=0, atol=1e-12)
    np.testing.assert_allclose(fantasy.relevance(), relevance[few], rtol=0, atol=1e-12)
    weights = fantasy.weights.copy()
    fantasy.fantasise(6, 4.0)
    np.testing.assert_array_equal(fantasy.weights, weights)
    assert fantasy.belief().mean[6] == 4.0 and fantasy.belief().scored[6]
    assert fantasy.deviation(np.array([6])) == 0
    np.testing.assert_array_equal(posterior.belief().mean, before.mean)
    np.testing.assert_array_equal(posterior.belief().std, before.std)
    np.testing.assert_array_equal(posterior.relevance(), relevance)


def test_fantasies_are_observations_under_the_amplitudes_and_weights_of_before() -> None:
    pool, scores = clustered(60, 8, 0)
    scores = 0.1 + 0.8 * scores
    posterior = TrendPosterior(with_bm25(pool), VonMisesFisher(3.0), 20)
    posterior.observe(range(12), scores[:12].tolist())
    few = np.arange(0, 60, 1)
    fantasy = posterior.among(few)
    scales = [fitted.scales for fitted in posterior._fitted]
    for document in (30, 44):
        fantasy.fantasise(document, float(logit(scores[document])))
    posterior.observe([30, 44], scores[[30, 44]].tolist())
    rescaled = np.concatenate([old / new.scales for old, new in zip(scales, posterior._fitted, strict=True)])
    np.testing.assert_allclose(fantasy.means, posterior._mixture.means, rtol=0, atol=1e-9)
    np.testing.assert_allclose(fantasy.variances, posterior._mixture.variances * rescaled[:, None], rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("round_size", [1, 5])
def test_any_pool(family: str, round_size: int) -> None:
    for n, k in ((2, 1), (3, 2), (9, 4), (150, 20)):
        pool, scores = FAMILIES[family](n, 8, 1, np.float32)
        session = run(with_bm25(pool), scores, 40, k, round_size)
        selection = session.selection()
        assert len(selection.documents) == k
        assert np.isfinite(selection.relevance).all() and np.isfinite(selection.std).all()
        assert session.spent == min(40, n)


def test_with_every_score_known_the_set_is_the_best_one() -> None:
    for family in FAMILIES:
        pool, scores = FAMILIES[family](60, 8, 2)
        session = run(pool, scores, 60, 15, 7)
        assert scores[session.selection().documents].sum() == pytest.approx(np.sort(scores)[-15:].sum(), abs=1e-12)


def test_the_retriever_decides_between_equals() -> None:
    config = TrendConfig()
    relevance, scored = np.full(20, 0.3), np.zeros(20, dtype=np.bool_)
    inside = np.arange(20) < 5
    worth = config.worth(relevance, inside, scored)
    assert (np.diff(worth) < 0).all()
    assert worth[5] == 0.3 < worth[0] <= 0.3 * (1 + config.bonus / 2)
    scored[[0, 19]] = True
    assert config.worth(relevance, inside, scored)[[0, 19]].tolist() == [0.3, 0.3]


def test_learns_a_trend_that_the_prior_has_wrong() -> None:
    """A cross-encoder that prefers the tail of the ranking: the paper's prior returns the head, the trend the tail."""
    pool, _ = clustered(400, 12, 0)
    scores = expit(np.linspace(-6, 2, 400))
    selection = run(pool, scores, 25, 50, 1).selection()
    assert scores[selection.documents].sum() > 0.9 * np.sort(scores)[-50:].sum()


def run(pool: Pool, scores: Scores, budget: int, k: int, round_size: int) -> SelectionSession:
    session = SelectionSession(pool, budget=budget, k=k, config=TrendConfig())
    while (asked := session.ask(round_size)).size:
        session.tell(asked, scores[asked])
    return session
