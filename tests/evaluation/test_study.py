"""Test the experiment, its comparisons and measured times, and the study of guarantees."""

from dataclasses import dataclass

import numpy as np
import pytest

from boundarymorph.errors import InvalidInput
from boundarymorph.selection.methods import PAPER
from boundarymorph_evaluation.methods import Contestant, find_contestants
from boundarymorph_evaluation.methods.method import ScoringMethod
from boundarymorph_evaluation.problem import Ranking, SelectionProblem
from boundarymorph_evaluation.promise import Audit, Checkpoint, Promise
from boundarymorph_evaluation.promised import CALLS, audit_of, try_promise
from boundarymorph_evaluation.run import experiment
from boundarymorph_evaluation.study import changes, comparisons, latencies
from tests.evaluation.tables import synthetic

METHODS = find_contestants(["mips", "ss", "bagel", PAPER])
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


def test_changes_pool_the_queries_of_all_tables() -> None:
    other = experiment(synthetic(queries=3, seed=9), METHODS, [4, 8], [5, 10])
    one = changes([OUTCOME, other], [("bagel", PAPER)], "ce_ncg").iloc[0]
    both = np.concatenate([each.values("bagel", 4, 5) - each.values(PAPER, 4, 5) for each in (OUTCOME, other)])
    assert one["queries"] == 9 and one["difference"] == pytest.approx(float(both.mean()))
    assert changes([OUTCOME], [], "ce_ncg").empty


def test_latencies_multiply_calls_by_seconds_per_call() -> None:
    found = latencies(OUTCOME, 5, 0.5).set_index(["method", "budget"])
    assert ("mips", 4) not in found.index, "without calls there is nothing to compare"
    paper = found.loc[(PAPER, 8)]
    assert (paper["calls"], paper["scorer"], found.loc[("ss", 4), "scorer"]) == (8, 4.0, 2.0)
    assert paper["algorithm"] > 0 and paper["total"] == pytest.approx(4.0 + paper["algorithm"])
    assert latencies(OUTCOME, 5, None)[["scorer", "total"]].isna().all(axis=None)


TABLE = synthetic()


@dataclass(frozen=True)
class Offset(ScoringMethod):
    """A method that scores B documents from `start` on."""

    start: int

    def rank(self, problem: SelectionProblem) -> Ranking:
        problem.score(np.arange(self.start, min(self.start + problem.left, len(problem.pool))))
        return problem.banded_ranking()


def test_swept_setting_is_selected_per_budget_by_ce_ncg() -> None:
    swept = Contestant("swept", "swept", tuple(Offset(start) for start in (0, 15, 40)))
    alone = [Contestant(f"only-{one.start}", "", (one,)) for one in swept.settings if isinstance(one, Offset)]
    outcome = experiment(TABLE, [swept, *alone], [3, 20], [5, 50])
    for budget in (3, 20):
        means = {one.name: outcome.mean(one.name, budget, 50) or 0.0 for one in alone}
        best = max(means, key=lambda name: means[name])
        assert outcome.settings["swept", budget] == next(one for one in alone if one.name == best).settings[0]
        for k in (5, 50):
            assert np.array_equal(outcome.values("swept", budget, k), outcome.values(best, budget, k))


def test_rows_cover_every_cell_of_every_query() -> None:
    seen: list[tuple[str, int, int]] = []
    methods = find_contestants(["mips", "ss", "boundarymorph"])
    outcome = experiment(TABLE, methods, [5, 10], [5, 20], lambda *done: seen.append(done))
    assert len(outcome.rows) == 3 * 4 * 2 * 2
    assert seen == [("selecting", done, 4) for done in range(5)]
    assert np.array_equal(outcome.values("mips", 5, 20), outcome.values("mips", 10, 20))
    assert set(outcome.rows.query("method == 'ss' and budget == 10")["calls"]) == {10}


def test_experiment_leaves_out_methods_without_their_input() -> None:
    outcome = experiment(synthetic(without=["bm25"]), find_contestants(["mips", "bm25"]), [5], [5])
    assert outcome.left_out == {"bm25": "the table has no bm25"}
    assert [contestant.name for contestant in outcome.contestants] == ["mips"]
    with pytest.raises(InvalidInput, match=r"no chosen method can run on 'made-up' \(bm25: the table has no bm25\)"):
        experiment(synthetic(without=["bm25"]), find_contestants(["bm25"]), [5], [5])


def test_audit_follows_the_path_of_a_session() -> None:
    question = synthetic(1, 120).question(0)
    audit = audit_of(question, 10)
    calls = [look.calls for look in audit.checkpoints]
    assert calls == sorted(set(calls)) and calls[-1] <= 120
    assert audit.checkpoints[-1].real == pytest.approx(0.0, abs=1e-6), "the whole pool is scored"
    assert audit.checkpoints[0].believed == np.inf and audit.checkpoints[0].real > 0.0


def test_kept_reports_broken_and_refused_promises() -> None:
    rng = np.random.default_rng(0)
    good = [Audit((Checkpoint(20, b, 2 * b), Checkpoint(CALLS, 0.0, 0.0))) for b in rng.uniform(0, 0.1, 60).tolist()]
    found = try_promise(good, Promise(0.1, 0.9))
    assert found.refused == 0.0 and found.broken is not None and 0.02 < found.broken <= 0.1
    assert found.calls is not None and found.calls < found.believed_calls <= CALLS
    bad = [Audit((Checkpoint(CALLS, 0.0, 0.5),))] * 60
    refused = try_promise(bad, Promise(0.1, 0.9))
    assert (refused.refused, refused.broken, refused.believed_broken) == (1.0, None, 1.0)
