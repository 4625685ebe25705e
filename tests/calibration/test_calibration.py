"""Test the map from relevance to a probability, and its JSON form."""

import math

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundarymorph.calibration.calibration import Calibration, ProbabilityMap
from boundarymorph.errors import InvalidInput

MAP = ProbabilityMap(0.7, -0.5, 1e-6)
MADE = Calibration("scorer", "encoder", {"human": MAP}, 10, 400, "2026-11-28T10:00:00+00:00", {"ncg": []}, "strong")


def test_probability_map_is_a_logistic_function_of_log_odds() -> None:
    relevance = np.array([0.2, 0.9])
    assert np.allclose(MAP(relevance), 1 / (1 + np.exp(-(0.7 * np.log(relevance / (1 - relevance)) - 0.5))))
    assert MAP(np.array([0.0]))[0] == MAP(np.array([1e-6]))[0]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20), st.floats(1e-3, 3), st.floats(-5, 5))
def test_probability_map_increases_within_0_and_1(relevance: list[float], slope: float, intercept: float) -> None:
    found = ProbabilityMap(slope, intercept, 1e-6)(np.sort(relevance))
    assert (np.diff(found) >= 0).all()
    assert ((found >= 0) & (found <= 1)).all()


@given(st.floats(0.001, 0.999))
def test_probability_map_inverse_gives_the_threshold_on_relevance(probability: float) -> None:
    least = MAP.inverse(probability)
    if 1e-5 < least < 1 - 1e-5:
        assert MAP(np.array([least]))[0] == pytest.approx(probability, rel=1e-6)
    assert MAP(np.array([min(1.0, least * 1.01)]))[0] >= min(probability, MAP(np.array([1.0]))[0])


def test_inverse_of_a_probability_out_of_reach_is_0_or_infinity() -> None:
    narrow = ProbabilityMap(0.1, 0.0, 0.25)
    assert (narrow.inverse(0.9), narrow.inverse(0.1)) == (math.inf, 0.0)


def test_calibration_is_stale_for_another_model() -> None:
    assert MADE.staleness("scorer", "encoder") is None
    assert MADE.staleness(None, None) is None
    assert "'other' is in use" in str(MADE.staleness("other", "encoder"))
    assert "the encoder 'encoder'" in str(MADE.staleness("scorer", "other"))


def test_calibration_of_an_earlier_release_is_read() -> None:
    maps = MADE.to_json()["maps"]
    assert Calibration.from_json({**MADE.to_json(), "maps": {"people": maps["human"]}}) == MADE


def test_calibration_round_trips_through_json() -> None:
    assert Calibration.from_json(orjson.loads(orjson.dumps(MADE.to_json()))) == MADE


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"version": None},
        {"maps": {"human": {"slope": 0.0, "intercept": 0.0, "clip": 1e-6}}},
        {"maps": {"human": {"slope": 1.0, "intercept": float("nan"), "clip": 1e-6}}},
        {"maps": {"human": {"slope": 1.0, "intercept": None, "clip": 1e-6}}},
        {"maps": {"human": {"slope": 1.0, "intercept": 0.0, "clip": 0.5}}},
        {"maps": {"human": {"slope": 1.0}}},
        {"maps": {"others": {"slope": 1.0, "intercept": 0.0, "clip": 1e-6}}},
        {"maps": 7},
        {"trust": "much"},
        {"surprise": 1},
    ],
)
def test_malformed_calibration_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="not a calibration"):
        Calibration.from_json({**MADE.to_json(), **change})
