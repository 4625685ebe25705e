"""Test the posterior with a learned trend, on the log-odds scale."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit, logit
from scipy.stats import logistic, norm, rankdata

from boundarymorph.selection import Pool, Session, TrendConfig
from boundarymorph.selection.belief import BLOCK, Scale, logistic_share
from boundarymorph.selection.pool import DEFAULT_PRIOR, Normal, TrendPrior, standardised
from boundarymorph.selection.process import SharedRows, VonMisesFisher, median_distance
from boundarymorph.selection.trend import (
    FIRST_APART,
    HALF_APART,
    HALF_KNOWN,
    LAST_APART,
    LINEAR_WEIGHT,
    NOISE,
    TrendPosterior,
)
from tests.selection.pools import Scores, clustered, play
from tests.sessions import session_of

Matrix = NDArray[np.float64]
OTHER = TrendPrior(Normal(-1.0, 0.8), Normal(-0.2, 0.2), Normal(0.9, 0.2), Normal(0.6, 0.3), 2.0, 4.0)


def with_bm25(pool: Pool, seed: int = 0) -> Pool:
    bm25 = np.maximum(np.random.default_rng(seed).normal(size=len(pool)), 0)
    return Pool.from_embeddings(pool.ids, pool.embeddings, pool.query, pool.scores, {"bm25": bm25})


def with_terms(pool: Pool, seed: int = 0) -> Pool:
    """Return the pool with BM25 and three query words; every document has the last one."""
    rng = np.random.default_rng(seed)
    terms = rng.uniform(size=(3, len(pool))) < np.array([[0.1], [0.5], [1.0]])
    return replace(with_bm25(pool, seed), terms=terms)


def with_signals(pool: Pool, seed: int = 0) -> Pool:
    """Return the pool with BM25 and three signals of the caller."""
    rng = np.random.default_rng(seed)
    features = {
        "bm25": np.maximum(rng.normal(size=len(pool)), 0),
        **{name: rng.normal(size=len(pool)) for name in "abc"},
    }
    return Pool.from_embeddings(pool.ids, pool.embeddings, pool.query, pool.scores, features)


def members_before(pool: Pool, kappa: float, prior: TrendPrior = DEFAULT_PRIOR) -> list[tuple[Matrix, Matrix, Matrix]]:
    """Return for each member the (N, N) covariance of field and of trend, and the (N,) mean.

    The mean is in units of the amplitude. Members are without BM25, with it, and with the caller's signals too, each
    without and with the reweighted query.
    """
    field = np.exp(kappa * (pool.embeddings @ pool.embeddings.T - 1))
    signals = [standardised(-np.arange(len(pool), dtype=np.float64)), standardised(pool.scores)]
    weighed = pool.embeddings * pool.query if pool.terms is None else pool.terms.T.astype(np.float64)
    weighed = weighed - weighed.mean(axis=0)
    weighed /= np.sqrt((weighed**2).sum(axis=1).mean())
    reweighting = weighed @ weighed.T
    trend: Matrix = np.full_like(field, prior.level.deviation**2)
    trend += prior.rank.deviation**2 * sum(np.outer(s, s) for s in signals)
    sets = [(trend, prior.rank.mean * signals[0] + prior.similarity.mean * signals[1])]
    if "bm25" in pool.features:
        bm25 = standardised(np.sqrt(pool.features["bm25"]))
        sets.append((trend + prior.words.deviation**2 * np.outer(bm25, bm25), sets[0][1] + prior.words.mean * bm25))
    if others := [standardised(rankdata(pool.features[name])) for name in "abc" if name in pool.features]:
        more = sum(np.outer(s, s) for s in others) / len(others) ** 2
        sets.append((sets[-1][0] + LINEAR_WEIGHT * more, sets[-1][1]))
    return [
        (field + LINEAR_WEIGHT * reweighted * reweighting, trend, lean) for trend, lean in sets for reweighted in (0, 1)
    ]


def conditioned(covariance: Matrix, observed: list[int]) -> tuple[Matrix, Matrix, Matrix]:
    """Return the inverse covariance of observations, the covariance with them, and variances."""
    noisy = covariance[np.ix_(observed, observed)] + NOISE * np.eye(len(observed))
    inverse = np.asarray(np.linalg.inv(noisy), dtype=np.float64)
    cross = covariance[:, observed]
    return inverse, cross, np.diag(covariance) - np.einsum("nt,ts,ns->n", cross, inverse, cross)


def member(
    field: Matrix, trend: Matrix, lean: Matrix, observed: list[int], y: Matrix, prior: TrendPrior
) -> tuple[Matrix, Matrix, float]:
    """Return mean and variance of a score's log-odds, and the log marginal likelihood.

    They are under the most probable amplitude, as if more scores had been observed, by default one of an amplitude of
    1. Differences in variance count by t^2 / (t^2 + 6.25).
    """
    t = len(observed)
    inverse, cross, variance = conditioned(field + trend, observed)
    own = conditioned(field, observed)[2]
    above = y - prior.level.mean

    def surprise(log_amplitude: float) -> float:
        off = above / np.exp(log_amplitude) - lean[observed]
        seen = prior.scores * (log_amplitude + prior.scale * np.exp(-2 * log_amplitude) / 2)
        return float(t * log_amplitude + off @ inverse @ off / 2 + seen)

    best = minimize_scalar(surprise, bounds=(-6, 6), method="bounded", options={"xatol": 1e-9})
    amplitude = np.exp(best.x)
    mean = prior.level.mean + amplitude * lean + cross @ inverse @ (above - amplitude * lean[observed])
    variance = own.mean() + t**2 / (t**2 + HALF_KNOWN**2) * (variance - own.mean())
    return mean, amplitude**2 * (variance + NOISE), 0.5 * np.linalg.slogdet(inverse)[1] - best.fun


@pytest.mark.parametrize(("featured", "size"), [(None, 2), (with_bm25, 4), (with_terms, 4), (with_signals, 6)])
@pytest.mark.parametrize("observations", [1, 2, 15])
@pytest.mark.parametrize("prior", [DEFAULT_PRIOR, OTHER])
def test_trend_posterior_matches_the_textbook_mixture(
    featured: Callable[[Pool], Pool] | None, size: int, observations: int, prior: TrendPrior
) -> None:
    """In the default configuration, the correlation is 1/2 at half the pool's median distance."""
    for seed in range(3):
        pool, scores = clustered(70, 10, seed)
        scores = 0.1 + 0.8 * scores  # far from 0 and 1, so that no score is clipped
        pool = pool if featured is None else featured(pool)
        kappa = 2 * np.log(2) / median_distance(pool.embeddings, None)
        observed = np.random.default_rng(seed).permutation(70)[:observations].tolist()
        posterior = TrendConfig(prior=prior).posterior(pool, observations)
        posterior.observe(observed, scores[observed].tolist())

        y = logit(scores[observed])
        members = [member(*before, observed, y, prior) for before in members_before(pool, kappa, prior)]
        assert len(members) == (size)
        weights = np.exp([m[2] - max(o[2] for o in members) for m in members])
        weights /= weights.sum()
        nodes, shares = np.polynomial.hermite_e.hermegauss(40)
        outcomes = np.array([expit(m + nodes[:, None] * np.sqrt(v)) for m, v, _ in members])
        chances = np.array(weights)[:, None, None] * (shares / shares.sum())[:, None]
        mean = (chances * outcomes).sum(axis=(0, 1))
        std = np.sqrt((chances * (outcomes - mean) ** 2).sum(axis=(0, 1)))
        open_ = np.setdiff1d(np.arange(70), observed)
        belief = posterior.beliefs.belief()
        np.testing.assert_allclose(belief.mean[open_], mean[open_], rtol=0, atol=2e-3)
        np.testing.assert_allclose(belief.std[open_], std[open_], rtol=0, atol=4e-3)
        np.testing.assert_array_equal(belief.mean[observed], scores[observed])
        assert (belief.std[observed] == 0).all()


def test_trend_belief_and_outcomes_match_samples() -> None:
    pool, scores = clustered(40, 8, 0)
    posterior = TrendPosterior(pool, VonMisesFisher(3.0), 10)
    posterior.observe(range(10), scores[:10].tolist())
    beliefs = posterior.beliefs
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(beliefs.weights), p=beliefs.weights, size=40_000)
    typical = beliefs.residuals.variances.mean(axis=1, keepdims=True)
    spread = typical + 100 / (100 + HALF_KNOWN**2) * (beliefs.variances - typical)
    means, variances = beliefs.means[:, 20:25], spread[:, 20:25] + beliefs.residuals.noise
    samples = expit(means[chosen] + np.sqrt(variances[chosen]) * rng.normal(size=(40_000, 5)))
    belief = beliefs.belief()
    np.testing.assert_allclose(belief.mean[20:25], samples.mean(axis=0), atol=0.01)
    np.testing.assert_allclose(belief.std[20:25], samples.std(axis=0), atol=0.015)
    shares, values = beliefs.outcomes()
    np.testing.assert_allclose(shares.sum(axis=0), 1.0)
    np.testing.assert_array_equal(values[:, :10], np.broadcast_to(scores[:10], (len(shares), 10)))
    apart = LAST_APART - (LAST_APART - FIRST_APART) * HALF_APART / (HALF_APART + 10)
    own = apart * (beliefs.residuals.variances + beliefs.residuals.noise)[:, 20:25]
    assert (own < variances).all()
    samples = expit(means[chosen] + np.sqrt(own[chosen]) * rng.normal(size=(40_000, 5)))
    np.testing.assert_allclose((shares * values).sum(axis=0)[20:25], samples.mean(axis=0), atol=0.01)


def test_level_cuts_reproduce_the_observed_counts() -> None:
    rng = np.random.default_rng(0)
    means, deviations = rng.normal(-0.5, 0.8, (2, 30)), rng.uniform(0.3, 1.0, (2, 30))
    weights = np.array([0.3, 0.7])
    scores = np.repeat([0.0, 0.5, 1.0], [18, 7, 5])
    scale = Scale.from_scores(scores.tolist()).cut(scores, weights, means, deviations)
    shares, levels = scale.outcomes(weights, means, deviations**2)
    assert levels.ravel().tolist() == [0.0, 0.5, 1.0]
    low, high = scale.cuts
    assert scale.log_odds(np.array(0.0)) < low < scale.log_odds(np.array(0.5)) < high < scale.log_odds(np.array(1.0))
    np.testing.assert_allclose(shares.sum(axis=1), [18, 7, 5], atol=0.1)


@pytest.mark.parametrize(
    ("scores", "levels"),
    [
        ((0.0, 0.0, 0.0), ()),  # one value says nothing of the others
        ((0.0, 0.0, 0.0, 1.0), ()),  # two values among four scores are too many
        ((0.0, 0.0, 0.0, 0.0, 1.0), (0.0, 1.0)),
        ((0.11, 0.12, 0.13, 0.14, 0.15), ()),
    ],
)
def test_scale_detects_a_scorer_with_levels(scores: tuple[float, ...], levels: tuple[float, ...]) -> None:
    assert Scale.from_scores(scores).levels == levels


def test_scale_holds_exact_zeros_and_ones_half_a_step_away() -> None:
    pool, _ = clustered(40, 8, 0)
    posterior = TrendPosterior(pool, VonMisesFisher(3.0), 10)
    processes, scores = posterior._processes, np.array([1.0, 0.0, 0.5, 0.0, 0.02, 1e-9])
    for known, held in (
        (1, [0.75]),
        (4, [0.75, 0.25, 0.5, 0.25]),
        (5, [0.99, 0.01, 0.5, 0.01, 0.02]),
        (6, [1 - 1e-7, 1e-7, 0.5, 1e-7, 0.02, 1e-7]),
    ):
        new = range(len(processes.observed), known)
        posterior.observe(new, scores[new].tolist())
        np.testing.assert_allclose(processes.targets + DEFAULT_PRIOR.level.mean, logit(held))
    np.testing.assert_array_equal(posterior.beliefs.belief().mean[:6], scores)


@settings(max_examples=40)
@given(arrays(np.float64, 20, elements=st.floats(0, 1)), st.sampled_from([(), (0.0,), (1.0,), (0.0, 0.5, 1.0)]))
def test_scale_round_trips_scores_and_is_monotone(scores: Scores, also: tuple[float, ...]) -> None:
    """Observed scores come back unchanged, including 0 and 1; others keep their order."""
    seen = np.append(scores, also)
    scale = Scale.from_scores(seen.tolist())
    np.testing.assert_allclose(scale.scores(scale.log_odds(seen)), seen, rtol=0, atol=3e-7)
    between = scale.scores(np.linspace(-20, 20, 1_000))
    assert (np.diff(between) >= 0).all() and between[0] >= 0 and between[-1] <= 1


def test_belief_before_the_first_score_follows_the_ranking() -> None:
    """With words in the pool, BM25 counts beside the ranking."""
    pool, _ = clustered(400, 12, 0)
    belief = session_of(pool, budget=0, k=20, config=TrendConfig()).belief
    assert (np.diff(belief.mean) < 0).all() and 0 < belief.mean[-1] < belief.mean[0] < 0.5
    assert (belief.std > 0.6 * belief.mean).all()
    pool = with_bm25(pool)
    chosen = session_of(pool, budget=0, k=20, config=TrendConfig()).selection().documents
    best = pool.features["bm25"][chosen].mean()
    assert best > pool.features["bm25"][:20].mean() and chosen.max() < 200


def test_trend_fantasies_have_no_side_effects() -> None:
    pool, scores = clustered(60, 8, 0)
    posterior = TrendPosterior(with_bm25(pool), VonMisesFisher(3.0), 20)
    posterior.observe(range(5), scores[:5].tolist())
    before = posterior.beliefs.belief()
    few = np.array([0, 1, 2, 3, 4, 20, 30, 40])
    fantasy = posterior.subset(few, 2)
    np.testing.assert_allclose(fantasy.belief().mean, before.mean[few], rtol=0, atol=1e-6)
    np.testing.assert_allclose(fantasy.belief().std, before.std[few], rtol=0, atol=1e-6)
    weights = fantasy.mixture.weights.copy()
    fantasy.fantasise(6)
    np.testing.assert_array_equal(fantasy.mixture.weights, weights)
    assert fantasy.belief().scored[6] and fantasy.belief().std[6] == 0
    after = posterior.beliefs.belief()
    np.testing.assert_array_equal(after.mean, before.mean)
    np.testing.assert_array_equal(after.std, before.std)


def test_trend_fantasies_keep_amplitudes_and_weights() -> None:
    prior = TrendPrior(scores=1e12)  # so that scores do not change the amplitudes
    pool, scores = clustered(60, 8, 0)
    scores = 0.1 + 0.8 * scores
    posterior = TrendPosterior(with_terms(pool), VonMisesFisher(3.0), 20, prior=prior)
    posterior.observe(range(12), scores[:12].tolist())
    few = np.arange(0, 60, 1)
    fantasy = posterior.subset(few, 2)
    for document in (30, 44):
        scores[document] = expit(fantasy.mixture.weights @ fantasy.mixture.means[:, document])
        fantasy.fantasise(document)
    posterior.observe([30, 44], scores[[30, 44]].tolist())
    np.testing.assert_allclose(fantasy.mixture.means, posterior.beliefs.means, rtol=0, atol=1e-9)
    np.testing.assert_allclose(fantasy.mixture.variances, posterior.beliefs.variances, rtol=0, atol=1e-9)


@pytest.mark.parametrize("d", [4, 384])
def test_equal_embeddings_leave_ranking_and_words_in_effect(d: int) -> None:
    """Rounding noise must not change the query's weights, which once made variances negative."""
    rng = np.random.default_rng(0)
    embeddings, query = np.tile(rng.normal(size=d), (200, 1)), rng.normal(size=d)
    pool = Pool.from_embeddings(list(map(str, range(200))), embeddings.astype(np.float32), query, -np.arange(200.0))
    assert not SharedRows(pool, VonMisesFisher(1.0)).reweighted_diagonal.any()
    with np.errstate(all="raise", under="ignore"):
        session = run(pool, rng.uniform(size=200), 60, 10, 5)
    assert np.isfinite(session.belief.mean).all() and np.isfinite(session.belief.std).all()


def test_retrieval_rank_decides_between_equal_beliefs() -> None:
    config = TrendConfig()
    relevance, scored = np.full(20, 0.3), np.zeros(20, dtype=np.bool_)
    inside = np.arange(20) < 5
    ranks = np.arange(20.0)
    worth = config.worth(relevance, ranks, inside, scored)
    assert (np.diff(worth) < 0).all()
    assert worth[5] == 0.3 < worth[0] <= 0.3 * (1 + config.bonus / 2)
    scored[[0, 19]] = True
    assert config.worth(relevance, ranks, inside, scored)[[0, 19]].tolist() == [0.3, 0.3]


def run(pool: Pool, scores: Scores, budget: int, k: int, round_size: int) -> Session:
    return play(session_of(pool, budget=budget, k=k, config=TrendConfig()), scores, round_size)


NODES, SPACING = np.linspace(-8, 8, 4_001, retstep=True)


SMOOTH, COARSE = (0.1, 0.9), (0.0, 0.5, 1.0)  # observed scores


@pytest.mark.parametrize(
    ("scores", "deviations", "bound"),
    [
        (SMOOTH, (0.05, 0.3, 1.0, 2.0, 3.0, 4.0), 0.004),
        ((0.0, 0.02, 0.97), (0.05, 0.3, 1.0, 2.0, 3.0, 4.0), 0.004),
        (SMOOTH, (6.0,), 0.01),
        (COARSE, (0.05, 0.3, 1.0, 2.0), 0.015),
    ],
)
def test_scale_moments_match_a_fine_quadrature(
    scores: tuple[float, ...], deviations: tuple[float, ...], bound: float
) -> None:
    scale, means = Scale.from_scores(scores), np.linspace(-16, 16, 161)
    shares = norm.pdf(NODES) * SPACING
    for deviation in deviations:
        mean, variance = scale.moments(np.ones(1), means[None], np.full((1, 161), deviation**2))
        true = scale.scores(means + deviation * NODES[:, None])
        np.testing.assert_allclose(mean, shares @ true, rtol=0, atol=bound)
        np.testing.assert_allclose(variance, shares @ np.square(true - shares @ true), rtol=0, atol=bound)


def test_scale_moments_cover_the_mixture_in_blocks() -> None:
    rng = np.random.default_rng(0)
    count, weights = 2 * BLOCK + 7, np.array([0.3, 0.7])
    means, variances = rng.normal(-1, 3, (2, count)), rng.uniform(0.1, 9, (2, count))
    mean, variance = Scale().moments(weights, means, variances)
    draws = expit(means + np.sqrt(variances) * NODES[::20, None, None])
    shares = np.outer(norm.pdf(NODES[::20]) * 20 * SPACING, weights)
    true = np.einsum("zq,zqn->n", shares, draws)
    np.testing.assert_allclose(mean, true, rtol=0, atol=0.004)
    spread = np.einsum("zq,zqn->n", shares, np.square(draws - true))
    np.testing.assert_allclose(variance, spread, rtol=0, atol=0.004)


def test_scale_keeps_the_order_of_nearly_equal_scores() -> None:
    log_odds = np.linspace(-60, 12, 200, dtype=np.float32)
    assert (np.diff(Scale().scores(log_odds)) > 0).all()
    assert Scale().scores(np.array([-1e4, 1e4], dtype=np.float32)).tolist() == [0, 1]


def test_heavy_tails_keep_an_unlikely_level_possible() -> None:
    """The tails are those of a logistic distribution with the same mean and variance."""
    np.testing.assert_allclose(logistic_share(NODES), logistic(scale=np.sqrt(3) / np.pi).cdf(NODES), atol=1e-12)
    scale = replace(Scale.from_scores([0.0] * 5 + [0.5, 1.0] * 3), cuts=(0.0, 2.0))
    means, variances = np.full((1, 1), -8.0), np.full((1, 1), 4.0)
    shares, _ = scale.outcomes(np.ones(1), means, variances, heavy=True)
    np.testing.assert_allclose(shares.sum(axis=0), 1.0)
    assert shares[1:].sum() == pytest.approx(logistic(-8.0, 2.0 * np.sqrt(3) / np.pi).sf(0.0))
    assert shares[1:].sum() > 20 * scale.outcomes(np.ones(1), means, variances)[0][1:].sum()
