"""Test the expected gain of further calls, and the expected share of relevant documents."""

import numpy as np
import pytest

from boundarymorph.selection import DocumentCapacity, Recall, TrendConfig
from boundarymorph.selection.outlook import deviation_of_loss, gains_by_calls, gains_of_a_set, gains_of_doubt
from tests.selection.test_quality import question
from tests.sessions import session_of


def test_gains_of_a_set_equal_hand_computed_values() -> None:
    """Two of four documents fit.

    The second is inside, and worthless with probability 1/2. The third is outside, and better than the cut with
    probability 1/2. The first is scored, and the fourth never enters.
    """
    shares = np.full((2, 4), 0.5)
    scores = np.array([[0.9, 0.8, 0.1, 0.0], [0.9, 0.0, 0.5, 0.2]])
    cut = (0.4 + 0.3) / 2
    gains = gains_of_a_set(shares, scores, np.array([True, False, False, False]), DocumentCapacity(2), 0.1)
    scale = 0.9 / (0.9 + 0.4)
    inside, outside = 0.5 * cut * scale, 0.5 * (0.5 - cut) * scale
    np.testing.assert_allclose(gains, np.cumsum([inside, outside, 0.0, 0.0]), atol=1e-12)
    assert gains_by_calls(gains, 0.01) == {10: 0.01, 50: 0.01}
    assert gains_by_calls(gains, 1.0, (1, 2)) == pytest.approx({1: inside, 2: inside + outside})


def test_deviation_of_the_loss_matches_simulation() -> None:
    """No draw moves the boundary of the set of 3. A scored document adds nothing."""
    rng = np.random.default_rng(0)
    shares = np.tile([[0.9], [0.1]], 8)
    scores = np.array([[0.9, 0.8, 0.5, 0.2, 0.2, 0.1, 0.0, 0.0], [0.9, 0.1, 0.5, 0.9, 0.7, 0.8, 0.3, 1.0]])
    scored = np.arange(8) == 7
    mean = (shares * scores).sum(axis=0)
    cut = (np.sort(mean)[-3] + np.sort(mean)[-4]) / 2
    drawn = scores[(rng.random((20_000, 8)) < 0.1).astype(int), np.arange(8)]
    lost = np.maximum(np.where(np.arange(8) < 3, cut - drawn, drawn - cut), 0.0)[:, ~scored].sum(axis=1)
    deviation = deviation_of_loss(shares, scores, scored, DocumentCapacity(3), 0.2)
    assert deviation == pytest.approx(lost.std() * 0.8 / mean[:3].sum(), rel=0.03)


def test_session_stops_by_the_cautious_loss() -> None:
    """A session continues while its expected loss plus three deviations exceeds the threshold."""
    pool, scores = question(2)
    session = session_of(pool, budget=200, k=30, config=TrendConfig(), tolerance=0.05)
    bounds = [0.0]
    while (asked := session.ask(5)).size:
        session.tell(asked, scores[asked])
        bounds.append(session.cautious_loss())
        assert bounds[-1] > session.expected_loss()
    assert session.stop_reason == "settled"
    assert max(bounds[-2:]) <= 0.05 < bounds[-3]


def test_gains_of_doubt_are_largest_for_the_most_doubtful() -> None:
    gains = gains_of_doubt(np.array([1.0, 0.5, 0.9, 0.0]))
    np.testing.assert_allclose(gains, np.cumsum([0.5, 0.1, 0.0, 0.0]) * 2 / (2 + 2.4), atol=1e-12)


def test_recall_of_scored_documents_is_exact_and_else_bounded() -> None:
    nothing = np.zeros(3)
    inside = np.array([True, False, True])
    assert Recall.estimate(nothing, inside) is None
    assert Recall.estimate(np.array([1.0, 0.0, 1.0]), inside) == Recall(1.0, 1.0, 1.0)
    recall = Recall.estimate(np.array([1.0, 0.5, 0.5]), inside)
    assert recall is not None and 0.4 < recall.low < 0.75 < recall.expected < recall.high < 1.0
