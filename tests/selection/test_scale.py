"""The scale of belief: expectations of scores under normal log-odds."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import logistic, norm

from boundarymorph.selection.scale import BLOCK, Scale, logistic_share

NODES, SPACING = np.linspace(-8, 8, 4_001, retstep=True)


SMOOTH, COARSE = (0.1, 0.9), (0.0, 0.5, 1.0)  # what a scorer was seen to say


@pytest.mark.parametrize(
    ("scores", "deviations", "bound"),
    [
        (SMOOTH, (0.05, 0.3, 1.0, 2.0, 3.0, 4.0), 0.004),
        ((0.0, 0.02, 0.97), (0.05, 0.3, 1.0, 2.0, 3.0, 4.0), 0.004),
        (SMOOTH, (6.0,), 0.01),
        (COARSE, (0.05, 0.3, 1.0, 2.0), 0.015),
    ],
)
def test_expectations_are_those_of_a_fine_quadrature(
    scores: tuple[float, ...], deviations: tuple[float, ...], bound: float
) -> None:
    scale, means = Scale.of(scores), np.linspace(-16, 16, 161)
    shares = norm.pdf(NODES) * SPACING
    for deviation in deviations:
        mean, variance = scale.moments(np.ones(1), means[None], np.full((1, 161), deviation**2))
        true = scale.scores(means + deviation * NODES[:, None])
        np.testing.assert_allclose(mean, shares @ true, rtol=0, atol=bound)
        np.testing.assert_allclose(variance, shares @ np.square(true - shares @ true), rtol=0, atol=bound)


def test_moments_are_of_the_mixture_however_many_documents() -> None:
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


def test_scores_that_hardly_differ_keep_their_order() -> None:
    log_odds = np.linspace(-60, 12, 200, dtype=np.float32)
    assert (np.diff(Scale().scores(log_odds)) > 0).all()
    assert Scale().scores(np.array([-1e4, 1e4], dtype=np.float32)).tolist() == [0, 1]


def test_an_unlikely_level_stays_possible_with_heavy_tails() -> None:
    """Of a logistic distribution with the same mean and variance."""
    np.testing.assert_allclose(logistic_share(NODES), logistic(scale=np.sqrt(3) / np.pi).cdf(NODES), atol=1e-12)
    scale = replace(Scale.of([0.0] * 5 + [0.5, 1.0] * 3), cuts=(0.0, 2.0))
    means, variances = np.full((1, 1), -8.0), np.full((1, 1), 4.0)
    shares, _ = scale.outcomes(np.ones(1), means, variances, heavy=True)
    np.testing.assert_allclose(shares.sum(axis=0), 1.0)
    assert shares[1:].sum() == pytest.approx(logistic(-8.0, 2.0 * np.sqrt(3) / np.pi).sf(0.0))
    assert shares[1:].sum() > 20 * scale.outcomes(np.ones(1), means, variances)[0][1:].sum()
