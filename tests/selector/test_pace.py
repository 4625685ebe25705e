from __future__ import annotations

import pytest

from boundarymorph.selector.scores import FIRST_GUESS, MOST_CHARACTERS, OVERHEAD, Pace

SHORT, LONG = "t" * 50, "t" * 10 * MOST_CHARACTERS
OF_SHORT, OF_LONG = OVERHEAD + 50, OVERHEAD + MOST_CHARACTERS  # characters that they count for


def seconds(characters: float, rate: float = FIRST_GUESS) -> float:
    """Twice what that many characters take, and a little more."""
    return 2 * characters * rate * 1.000001


def test_a_round_is_half_of_what_the_time_allows() -> None:
    pace = Pace()
    texts = [SHORT, LONG, SHORT, SHORT]
    for characters, fitting in [
        (0, 1),
        (OF_SHORT, 1),
        (OF_SHORT + OF_LONG - 1, 1),
        (OF_SHORT + OF_LONG, 2),
        (3 * OF_SHORT + OF_LONG - 1, 3),
        (3 * OF_SHORT + OF_LONG, 4),
        (1e9, 4),
    ]:
        assert pace.fitting(texts, seconds(characters)) == fitting, characters


def test_more_documents_than_empty_ones_would_fit_are_not_asked_for() -> None:
    pace = Pace()
    assert pace.at_most(9, seconds(7 * OVERHEAD)) == 7
    assert pace.at_most(6, seconds(7 * OVERHEAD)) == 6
    assert pace.at_most(9, seconds(0)) == pace.at_most(9, -1.0) == 1


def test_half_of_the_ratio_is_learned_from_a_round() -> None:
    for factor in (100.0, 0.01):
        pace, texts = Pace(), [SHORT, LONG]
        pace.took(texts, factor * FIRST_GUESS * (OF_SHORT + OF_LONG))
        learned = FIRST_GUESS * factor**0.5
        assert pace.fitting([SHORT] * 9, seconds(4 * OF_SHORT, learned)) == 4
        assert pace.fitting([SHORT] * 9, seconds(4 * OF_SHORT - 1, learned)) == 3


def test_a_round_that_was_not_finished_can_only_slow_it_down() -> None:
    pace = Pace()
    pace.exceeded([SHORT], FIRST_GUESS * OF_SHORT / 100)
    assert pace.fitting([SHORT] * 9, seconds(4 * OF_SHORT)) == 4
    pace.exceeded([SHORT], FIRST_GUESS * OF_SHORT * 100)
    assert pace.fitting([SHORT] * 9, seconds(4 * OF_SHORT)) == 1
    assert pace.fitting([SHORT] * 9, seconds(4 * OF_SHORT, 100 * FIRST_GUESS)) == 4


@pytest.mark.parametrize("learn", [Pace.took, Pace.exceeded])
def test_a_clock_that_stood_still_is_survived(learn: object) -> None:
    pace = Pace()
    assert callable(learn)
    for _ in range(50):
        learn(pace, [SHORT], 0.0)
    assert pace.at_most(9, 1.0) == 9
