"""Test capacities, given scores, and the expected loss."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.optimize import linprog

from boundarymorph.errors import InvalidInput
from boundarymorph.selection import (
    Config,
    DocumentCapacity,
    SelectionConfig,
    StopReason,
    TokenCapacity,
    TrendConfig,
    capacity_of,
)
from boundarymorph.selection.session import FEWEST_TO_STOP
from boundarymorph.selection.stop import LOOKS_TO_STOP
from tests.selection.pools import clustered, play
from tests.sessions import session_of

CONFIGS: list[Config] = [SelectionConfig(), TrendConfig()]
WORTHS = arrays(np.float64, 14, elements=st.floats(0.01, 1))
LENGTHS = arrays(np.float64, 14, elements=st.integers(1, 40).map(float))


@settings(max_examples=40, deadline=None)
@given(WORTHS, LENGTHS, st.floats(0.05, 0.95))
def test_token_capacity_is_filled_up(worth: NDArray[np.float64], lengths: NDArray[np.float64], share: float) -> None:
    limit = max(share * lengths.sum(), lengths.min())
    capacity = TokenCapacity(lengths, limit)
    filled = capacity.fill(worth)
    assert lengths[filled].sum() <= limit
    assert (lengths[~filled] > limit - lengths[filled].sum()).all()  # nothing more fits
    relaxed = linprog(-worth, A_ub=lengths[None], b_ub=[limit], bounds=(0, 1))
    assert worth[filled].sum() <= -(relaxed.fun or 0.0) + 1e-9


@pytest.mark.parametrize(
    ("lengths", "limit", "filled", "asked"),
    [
        ([16.0, 16.0, 16.0], 40.0, [True, True, False], 2),
        ([16.0, 16.0, 16.0], 9.0, [False, False, False], 1),  # the first is in doubt, although it does not fit
        ([16.0, 16.0, 16.0], 1e6, [True, True, True], 2),
        ([144.0, 16.0, 1.0], 150.0, [False, True, True], 2),  # by worth over the root: .075, .125, .1
        ([144.0, 16.0, 1.0], 161.0, [True, True, True], 2),
        ([81.0, 16.0, 1.0], 82.0, [False, True, True], 2),  # .1, .125, .1
    ],
)
def test_token_capacity_packs_by_worth_per_root_length_and_asks_by_count(
    lengths: list[float], limit: float, filled: list[bool], asked: int
) -> None:
    worth, capacity = np.array([0.9, 0.5, 0.1]), TokenCapacity(np.array(lengths), limit)
    assert capacity.fill(worth).tolist() == filled
    margin, inside = capacity.margin(worth)
    assert inside.tolist() == [place < asked for place in range(3)]
    np.testing.assert_array_equal(margin, worth)


@pytest.mark.parametrize("round_size", [1, 4])
def test_session_asks_under_a_token_limit_as_under_a_count(round_size: int) -> None:
    pool, scores = clustered(300, 12, 3)
    limit = TokenCapacity(np.random.default_rng(3).integers(5, 200, 300).astype(float), 4_000.0)
    count = DocumentCapacity(int(4_000 / limit.lengths.mean()))
    by_tokens, by_count = (session_of(pool, budget=40, k=k, config=TrendConfig()) for k in (limit, count))
    assert play(by_tokens, scores, round_size).history == play(by_count, scores, round_size).history
    chosen = by_tokens.selection().documents
    assert limit.lengths[chosen].sum() <= 4_000 and len(chosen) > count.k


@pytest.mark.parametrize(
    ("k", "lengths", "max_tokens"),
    [(0, None, None), (None, None, None), (None, [3.0, 0.0], 9), (None, [3.0, np.nan], 9), (None, [3.0, 4.0], 2)],
)
def test_capacity_of_refuses_impossible_capacities(
    k: int | None, lengths: list[float] | None, max_tokens: int | None
) -> None:
    with pytest.raises(InvalidInput):
        capacity_of(k=k, lengths=lengths, max_tokens=max_tokens)


def test_capacity_of_chooses_a_count_or_a_token_capacity() -> None:
    assert capacity_of(k=1) == DocumentCapacity(1)
    assert capacity_of(k=2, max_tokens=5) == capacity_of(k=2, lengths=[3.0, 4.0]) == DocumentCapacity(2)
    assert capacity_of(lengths=[0.5], max_tokens=1) == DocumentCapacity(2)
    assert capacity_of(lengths=np.full(150, 7.0), max_tokens=7 * 25 + 6) == DocumentCapacity(25)
    assert isinstance(capacity_of(lengths=[1.0, 2.0, 2.0], max_tokens=3), TokenCapacity)


@pytest.mark.parametrize("config", CONFIGS)
def test_session_stops_when_the_expected_loss_is_tolerable(config: Config) -> None:
    pool, scores = clustered(150, 12, 3)
    losses = []
    for tolerance in (0.2, 0.05, 0.01):
        session = play(session_of(pool, budget=150, k=30, config=config, tolerance=tolerance), scores, 5)
        losses.append((session.spent, session.expected_loss()))
        assert session.stop_reason is (StopReason.SETTLED if session.spent < 150 else StopReason.BUDGET)
        assert session.expected_loss() <= tolerance
    assert losses == sorted(losses, key=lambda pair: (pair[0], -pair[1]))
    assert losses[0][0] < losses[-1][0]


def test_tolerance_stops_a_session_only_after_differing_scores() -> None:
    """A few equal scores do not show how far scores spread."""
    pool, scores = clustered(150, 12, 3)
    rare = np.where(scores > np.quantile(scores, 0.9), 1.0, 0.0)
    rare[:20] = 0.0
    session = session_of(pool, budget=150, k=30, config=TrendConfig(), tolerance=0.9)
    looks = 0
    while (asked := session.ask(5)).size:
        assert session.enough_scores == (looks > 0) and looks < LOOKS_TO_STOP
        session.tell(asked, rare[asked])
        looks += session.enough_scores
    told = [seen.score for seen in session.history]
    assert session.stop_reason is StopReason.SETTLED
    assert len(told) >= FEWEST_TO_STOP and len(set(told)) == 2
    constant = session_of(pool, budget=40, k=30, config=TrendConfig(), tolerance=0.9)
    play(constant, np.zeros(150), 5)
    assert constant.stop_reason is StopReason.BUDGET
