"""Test that a session equals the paper's pseudocode in picks, order, set, and means."""

from typing import Any

import numpy as np
import pytest

from boundarymorph.selection import Pool, SelectionConfig, Session
from boundarymorph.selection.process import KERNELS
from tests.selection import literal
from tests.selection.pools import FAMILIES, Scores, clustered, play
from tests.sessions import session_of

EXACT = SelectionConfig(bandwidth_pairs=None)


def agree(
    pool: Pool,
    scores: Scores,
    budget: int,
    k: int,
    config: SelectionConfig = EXACT,
    within: float = 1e-9,
    **reference: Any,
) -> Session:
    """Check that picks, set, and means equal those of the reference, and return the session."""
    session = play(session_of(pool, budget=budget, k=k, config=config), scores)
    expected = literal.run(pool, scores, budget, k, **reference)
    assert [observation.document for observation in session.history] == expected.picks
    assert len(expected.picks) == (min(budget, len(pool)) if k < len(pool) else 0)
    assert session.selection().documents.tolist() == expected.selected
    if expected.means:
        np.testing.assert_allclose(session.belief.mean, expected.means[-1], rtol=0, atol=within)
    return session


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("n", "budget", "k", "seeds"),
    [(200, 40, 30, 2), (200, 25, 1, 2), (200, 25, 199, 2), (60, 90, 20, 3), (240, 120, 50, 1)],
)
def test_session_matches_the_literal_algorithm(family: str, n: int, budget: int, k: int, seeds: int) -> None:
    for seed in range(seeds):
        agree(*FAMILIES[family](n, 16, seed), budget, k)


@pytest.mark.parametrize("n", [1, 2, 30])
def test_session_matches_the_literal_algorithm_if_k_covers_the_pool(n: int) -> None:
    for k in (n, n + 5):
        session = agree(*FAMILIES["random"](n, 8, 0), 10, k)
        assert session.selection().documents.tolist() == list(range(n))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("anchored", [True, False])
def test_session_matches_the_literal_algorithm_for_each_kernel(kernel: str, anchored: bool) -> None:
    config = SelectionConfig(kernel=kernel, bandwidth_pairs=None, anchored=anchored)
    for seed in range(2):
        agree(*clustered(200, 24, seed), 40, 40, config, kernel=kernel, anchored=anchored)


@pytest.mark.parametrize("family", FAMILIES)
def test_session_matches_the_literal_algorithm_with_a_zero_prior(family: str) -> None:
    """Under a zero prior the query's residual is 1, not 0 as under the percentile prior."""
    for seed in range(2):
        config = SelectionConfig(prior="zero", bandwidth_pairs=None)
        agree(*FAMILIES[family](200, 24, seed), 40, 40, config, zero_prior=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_embeddings_give_the_same_picks(family: str) -> None:
    pool, scores = FAMILIES[family](150, 64, 3, np.float32)
    assert pool.embeddings.dtype == np.float32
    agree(pool, scores, 40, 50, within=1e-6)


def test_reported_deviation_equals_the_literal_one() -> None:
    pool, scores = clustered(120, 16, 1)
    session = agree(pool, scores, 30, 20)
    asked = [observation.document for observation in session.history]
    _, expected = literal.posterior(
        [120, *asked], [1.0, *scores[asked]], literal.percentile_prior(120), literal.augmented_kernel(pool)
    )
    unscored = ~session.belief.scored
    np.testing.assert_allclose(session.belief.std[unscored], expected[unscored], rtol=0, atol=1e-9)


@pytest.mark.parametrize("prior", ["percentile", "zero"])
def test_belief_before_any_observation_is_the_prior(prior: str) -> None:
    pool, _ = clustered(30, 8, 0)
    belief = SelectionConfig(prior=prior, anchored=False).posterior(pool, 5).beliefs.belief()
    expected = np.linspace(1, 0, 30) if prior == "percentile" else np.zeros(30)
    np.testing.assert_allclose(belief.mean, expected, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(belief.std, 1.0)


def test_query_observed_at_1_lifts_a_zero_prior_nearby() -> None:
    """The first of two opposite documents has the query's direction.

    After a score of 0 far away, the zero prior leaves the query's residual of 1 nearby. By hand: e = (1, 0),
    standardised (1, -1), mean .5, deviation .5.
    """
    pool = Pool.from_embeddings(
        ["near", "far"], np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([1.0, 0.0]), np.array([1.0, -1.0])
    )
    posterior = SelectionConfig(prior="zero", bandwidth_pairs=None).posterior(pool, 1)
    posterior.observe([1], [0.0])
    covariance = np.exp(-np.log(2))  # the median distance, where the kernel is 1/2 by the median heuristic
    alpha = np.linalg.solve([[1 + 1e-4, covariance], [covariance, 1 + 1e-4]], [1.0, -1.0])
    assert posterior.beliefs.belief().mean[0] == pytest.approx(0.5 + 0.5 * (alpha[0] + covariance * alpha[1]))
