"""Test the probability that a pool has an answer, against simulations and a reference."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import norm

from boundarymorph.selection import Pool, Session, TrendConfig
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.methods import HUMAN_CONFIG
from boundarymorph.selection.outlook import ENOUGH, answerable_after, answerable_before
from boundarymorph.selection.trend import Mixture
from load_tests.studies import calibration_error, ranked_right
from tests.selection.pools import Scores, play
from tests.selection.test_quality import question
from tests.sessions import session_of


def answerable(session: Session, enough: float = ENOUGH) -> float:
    found = session.outlook(enough).answerable
    assert found is not None
    return found


def unanswered(seed: int, least: float = 0.5) -> tuple[Pool, Scores]:
    """Return a question without the documents that score at least `least`."""
    pool, scores = question(seed)
    kept = np.flatnonzero(scores < least)
    ids = [pool.ids[place] for place in kept.tolist()]
    words = {"bm25": pool.features["bm25"][kept]}
    return Pool(ids, pool.embeddings[kept], pool.query, pool.scores[kept], words), scores[kept]


def by_the_posterior(session: Session, least: float) -> float:
    """Compute the probability from the mixture's normal distributions, document by document."""
    mixture = session._posterior.beliefs
    assert isinstance(mixture, Mixture)
    mark, none = logit(least), 0.0
    for document in np.flatnonzero(~session.belief.scored):
        share = sum(
            weight * norm.sf((mark - mean[document]) / math.sqrt(variance[document] + noise[0]))
            for weight, mean, variance, noise in zip(
                mixture.weights, mixture.means, mixture.variances, mixture.residuals.noise, strict=True
            )
        )
        none += math.log(1.0 - share)
    return float(expit(-2.1 + 0.37 * math.log(-none)))


@pytest.mark.parametrize("config", [TrendConfig(), HUMAN_CONFIG])
@pytest.mark.parametrize("least", [0.3, 0.5, 0.8])
def test_answerable_matches_the_posterior_distribution(config: TrendConfig, least: float) -> None:
    """This holds for relevance by scores and for human relevance."""
    pool, scores = unanswered(3, 0.3)
    session = play(session_of(pool, budget=12, k=10, config=config), scores, 4)
    assert answerable(session, least) == pytest.approx(by_the_posterior(session, least), rel=1e-3)


def test_answerable_after_scores_equals_a_hand_computed_value() -> None:
    mean, scored = np.array([0.0, 0.5, 0.2]), np.array([True, False, False])
    belief = Belief(mean, np.zeros(3), scored)
    assert answerable_after(belief) == pytest.approx(expit(-2.1 + 0.37 * math.log(-math.log(0.5 * 0.8))))
    assert answerable_after(replace(belief, mean=np.array([1.0, 0.0, 0.0]))) == 1.0
    assert answerable_after(replace(belief, mean=np.zeros(3))) == 0.0
    assert answerable_after(Belief(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.bool_))) == 0.0
    assert 0.9 > answerable_after(replace(belief, mean=np.array([0.0, 1.0, 0.2]))) > answerable_after(belief)


def test_answerable_before_scores_equals_a_hand_computed_value() -> None:
    """The mean of the ten best similarities exceeds that of all by at most 0.3."""
    cosines = np.linspace(0.9, 0.1, 20)
    vectors = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1)
    pool = Pool.from_embeddings(
        [str(place) for place in range(20)], vectors, np.array([1.0, 0.0]), scores=np.arange(20.0, 0.0, -1)
    )
    above = cosines[:10].mean() - cosines.mean()
    usual = np.full(20, 0.2)
    assert answerable_before(pool, usual, usual) == pytest.approx(expit(-0.2 + 4.5 * above))
    rarer = np.full(20, 0.1)
    assert answerable_before(pool, rarer, usual) == pytest.approx(expit(-0.2 + 4.5 * above + logit(0.1) - logit(0.2)))
    wide = replace(pool, embeddings=np.repeat([[1.0, 0.0], [-1.0, 0.0]], 10, axis=0))
    assert answerable_before(wide, usual, usual) == pytest.approx(expit(-0.2 + 4.5 * 0.3))
    listed = Pool.from_ids(["a", "b"])
    assert answerable_before(listed, usual[:2], usual[:2]) == pytest.approx(expit(-0.2))
    assert answerable_before(pool, usual[:0], usual[:0]) == 0.0


def test_answerable_is_1_while_a_scored_answer_remains() -> None:
    pool, scores = unanswered(2)
    scores[40] = 0.5
    session = session_of(pool, budget=0, k=5, config=HUMAN_CONFIG, known={40: 0.5, 41: scores[41]})
    assert answerable(session) == 1.0
    session.give_up([40])
    assert answerable(session) < 1.0
    session.give_up([place for place in range(len(pool)) if place not in (40, 41)])
    assert answerable(session) == 0.0  # all remaining documents are scored
    session.give_up([41])
    assert answerable(session) == 0.0


def test_answerable_is_calibrated_on_simulated_questions() -> None:
    """Every third question has lost its answers.

    Measured: errors of .12, .06 and .04, and areas under the curve of .50, .91 and 1.
    """
    for budget, most, least in ((0, 0.15, 0.0), (10, 0.08, 0.85), (25, 0.06, 0.95)):
        said, happened = [], []
        for seed in range(36):
            pool, scores = unanswered(seed) if seed % 3 == 0 else question(seed)
            said.append(answerable(play(session_of(pool, budget=budget, k=10, config=TrendConfig()), scores, 5)))
            happened.append(float((scores >= 0.5).any()))
        assert 0.6 < np.mean(happened) < 0.7
        error, area = (of(np.array(said), np.array(happened)) for of in (calibration_error, ranked_right))
        assert error <= most and area >= least, (budget, error, area)
