import numpy as np
import pytest

from boundarymorph.evaluation.methods import chosen
from boundarymorph.evaluation.run import experiment
from boundarymorph.evaluation.study import bootstrap_interval, changes, comparisons, latencies, paired_p
from boundarymorph.selection.methods import PAPER
from tests.evaluation.tables import synthetic

METHODS = chosen(["mips", "ss", "bagel", PAPER])
OUTCOME = experiment(synthetic(queries=6), METHODS, [4, 8], [5, 10])


def test_comparisons_are_paired_means() -> None:
    found = comparisons(OUTCOME, PAPER, "ce_ncg")
    assert set(found["other"]) == {"mips", "ss", "bagel"} and len(found) == 3 * 4
    for one in found.itertuples():
        mine, theirs = (OUTCOME.values(name, one.budget, one.k) for name in (PAPER, one.other))
        assert one.difference == pytest.approx(float((mine - theirs).mean())) and one.queries == 6
    by_p = found.sort_values("p", kind="stable")
    adjusted = (by_p["p"] * len(found) / np.arange(1, len(found) + 1))[::-1].cummin()[::-1].clip(upper=1)
    assert by_p["q"].to_list() == pytest.approx(adjusted.to_list()), "Benjamini-Hochberg"


def test_changes_take_the_queries_of_all_tables_together() -> None:
    other = experiment(synthetic(queries=3, seed=9), METHODS, [4, 8], [5, 10])
    one = changes([OUTCOME, other], [("bagel", PAPER)], "ce_ncg").iloc[0]
    both = np.concatenate([each.values("bagel", 4, 5) - each.values(PAPER, 4, 5) for each in (OUTCOME, other)])
    assert one["queries"] == 9 and one["difference"] == pytest.approx(float(both.mean()))
    assert changes([OUTCOME], [], "ce_ncg").empty


def test_latencies_count_calls() -> None:
    found = latencies(OUTCOME, 5, 0.5).set_index(["method", "budget"])
    assert ("mips", 4) not in found.index, "without calls there is nothing to compare"
    paper = found.loc[(PAPER, 8)]
    assert (paper["calls"], paper["scorer"], found.loc[("ss", 4), "scorer"]) == (8, 4.0, 2.0)
    assert paper["algorithm"] > 0 and paper["total"] == pytest.approx(4.0 + paper["algorithm"])
    assert latencies(OUTCOME, 5, None)[["scorer", "total"]].isna().all(axis=None)


def test_wilcoxon_by_hand() -> None:
    # five positive differences of five: 2 / 2^5
    assert paired_p(np.array([0.1, 0.2, 0.3, 0.4, 0.5])) == pytest.approx(0.0625)
    assert paired_p(np.array([0.0, 0.0])) == 1.0
    assert paired_p(np.array([np.nan])) == 1.0
    assert 0 < paired_p(np.array([0.0, 0.1, 0.1, -0.1, 0.2] * 12)) < 0.05, "ties and zeros are no trouble"


def test_the_interval_holds_the_mean_and_shrinks_with_more_queries() -> None:
    rng = np.random.default_rng(0)
    few, many = rng.normal(0.5, 0.1, 20), rng.normal(0.5, 0.1, 2_000)
    low, high = bootstrap_interval(few)
    assert low < few.mean() < high
    assert np.subtract(*bootstrap_interval(many)[::-1]) < 0.3 * (high - low)
    assert np.isnan(bootstrap_interval(np.array([np.nan]))).all()
