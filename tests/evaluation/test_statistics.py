import numpy as np
import pytest

from boundarymorph.evaluation.analyses import benjamini_hochberg, bootstrap_interval, paired_p


def test_benjamini_hochberg_by_hand() -> None:
    # sorted .01 .02 .04 .30, times 4/1 4/2 4/3 4/4, then the running minimum from the right
    assert benjamini_hochberg([0.04, 0.01, 0.30, 0.02]) == pytest.approx([0.16 / 3, 0.04, 0.30, 0.04])
    assert benjamini_hochberg([]) == []


def test_wilcoxon_by_hand() -> None:
    # five positive differences of five: 2 / 2^5
    assert paired_p(np.array([0.1, 0.2, 0.3, 0.4, 0.5])) == pytest.approx(0.0625)
    assert paired_p(np.array([0.0, 0.0])) == 1.0
    assert paired_p(np.array([np.nan])) == 1.0


def test_ties_and_zeros_are_no_trouble() -> None:
    assert 0 < paired_p(np.array([0.0, 0.1, 0.1, -0.1, 0.2] * 12)) < 0.05


def test_the_interval_holds_the_mean_and_shrinks_with_more_queries() -> None:
    rng = np.random.default_rng(0)
    few, many = rng.normal(0.5, 0.1, 20), rng.normal(0.5, 0.1, 2_000)
    low, high = bootstrap_interval(few)
    assert low < few.mean() < high
    assert np.subtract(*bootstrap_interval(many)[::-1]) < 0.3 * (high - low)
    assert bootstrap_interval(few) == bootstrap_interval(few)
    assert np.isnan(bootstrap_interval(np.array([np.nan]))).all()
