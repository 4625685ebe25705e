import math

import numpy as np
import pytest

from boundarymorph.evaluation.multimodality import correlation, landscape
from tests.evaluation.tables import on_a_circle

# Two hills along an arc, a valley between: heights by position on the arc. Each gap is wider than the one before, so
# that the nearest neighbour of every document but the first is the one before it.
ARC = [0, 2, 4.1, 6.3, 8.6, 11, 13.5]
HILLS = [0.6, 0.9, 0.5, 0.1, 0.4, 0.7, 0.5]


def test_two_hills_that_meet_in_a_valley() -> None:
    found = landscape(on_a_circle(ARC, HILLS), neighbours=1)
    main, second = found.peaks
    assert (main.summit, second.summit) == (1, 5)
    assert main.prominence == pytest.approx(0.9)
    assert second.prominence == pytest.approx(0.7 - 0.1), "the way from one hill to the other leads through .1"
    assert sorted(second.members.tolist()) == [4, 5, 6]
    assert found.multimodal_mass == pytest.approx(0.6 * 1.6 / 3.7)


def test_two_hills_that_never_meet() -> None:
    """Beyond a gap the first document's nearest neighbour is the one after it: two graphs, so the height counts."""
    found = landscape(on_a_circle([*ARC[:4], *(degrees + 40 for degrees in ARC[4:])], HILLS), neighbours=1)
    main, second = found.peaks
    assert (main.summit, second.summit) == (1, 5)
    assert (main.prominence, second.prominence) == pytest.approx((0.9, 0.7))
    assert found.multimodal_mass == pytest.approx(0.7 * 1.6 / 3.7)


def test_with_two_neighbours_the_hills_meet_in_the_valley() -> None:
    question = on_a_circle([0, 2, 4, 6, 8.1, 10.2, 12.3], [0.6, 0.9, 0.5, 0.1, 0.4, 0.7, 0.5])
    main, second = landscape(question, neighbours=2).peaks
    # 2 and 4 are no neighbours of each other (3 and 1, 3 and 5 are nearer), so the way between leads through 3.
    assert (main.summit, second.summit) == (1, 5)
    assert second.prominence == pytest.approx(0.6)


def test_a_low_rise_is_no_peak() -> None:
    question = on_a_circle([0, 2, 4, 6, 8.1, 10.2, 12.3], [0.6, 0.9, 0.5, 0.4, 0.45, 0.55, 0.5])
    found = landscape(question, neighbours=2)
    assert len(found.peaks) == 1
    assert sorted(found.peaks[0].members.tolist()) == list(range(7))
    assert found.multimodal_mass == 0.0


def test_only_the_top_forms_the_landscape() -> None:
    question = on_a_circle(ARC, [0.6, 0.9, 0.5, 0.1, 0.4, 0.7, 0.5])
    members = [document for peak in landscape(question, top=3, neighbours=1).peaks for document in peak.members]
    assert sorted(members) == [0, 1, 5]


def test_scores_of_nothing_make_one_flat_peak() -> None:
    found = landscape(on_a_circle(ARC, [0.0] * 7))
    assert len(found.peaks) == 1 and found.multimodal_mass == 0.0


def test_spearman() -> None:
    rho, p = correlation(np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 20.0, 30.0, 25.0]))
    assert rho == pytest.approx(0.8)
    assert 0 < p < 1
    assert math.isnan(correlation(np.ones(4), np.arange(4.0))[0])
    assert math.isnan(correlation(np.array([1.0, np.nan, 2.0]), np.arange(3.0))[0])
