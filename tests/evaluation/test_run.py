from dataclasses import dataclass

import numpy as np
import pytest

from boundarymorph.errors import InvalidInput
from boundarymorph.evaluation.methods import Contestant, chosen
from boundarymorph.evaluation.methods.method import ScoringMethod
from boundarymorph.evaluation.problem import Ranking, SelectionProblem
from boundarymorph.evaluation.run import experiment
from tests.evaluation.tables import synthetic

TABLE = synthetic()


@dataclass(frozen=True)
class Offset(ScoringMethod):
    """Scores B documents from `start` on."""

    start: int

    def rank(self, problem: SelectionProblem) -> Ranking:
        problem.score(np.arange(self.start, min(self.start + problem.left, len(problem.pool))))
        return problem.banded()


def test_the_setting_is_selected_by_budget_on_ce_ncg() -> None:
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
    methods = chosen(["mips", "ss", "boundarymorph"])
    outcome = experiment(TABLE, methods, [5, 10], [5, 20], lambda *done: seen.append(done))
    assert len(outcome.rows) == 3 * 4 * 2 * 2
    assert seen == [("selecting", done, 4) for done in range(5)]
    assert np.array_equal(outcome.values("mips", 5, 20), outcome.values("mips", 10, 20))
    assert set(outcome.rows.query("method == 'ss' and budget == 10")["calls"]) == {10}


def test_queries_in_several_processes_come_out_as_in_one() -> None:
    methods = chosen(["ss", "bagel", "trend", "boundarymorph"])
    alone, together = (experiment(TABLE, methods, [5], [5, 20], jobs=jobs) for jobs in (1, 2))
    assert list(together.rows["query"]) == list(alone.rows["query"])
    for method in methods:
        for k in (5, 20):
            assert np.array_equal(together.values(method.name, 5, k), alone.values(method.name, 5, k))


def test_methods_without_their_input_are_left_out() -> None:
    outcome = experiment(synthetic(without=["bm25"]), chosen(["mips", "bm25"]), [5], [5])
    assert outcome.left_out == {"bm25": "the table has no bm25"}
    assert [contestant.name for contestant in outcome.contestants] == ["mips"]


def test_where_no_method_can_run_the_reason_is_given() -> None:
    with pytest.raises(InvalidInput, match=r"no chosen method can run on 'made-up' \(bm25: the table has no bm25\)"):
        experiment(synthetic(without=["bm25"]), chosen(["bm25"]), [5], [5])


def test_without_labels_there_is_no_ncg() -> None:
    outcome = experiment(synthetic(without=["grade", "n_relevant"]), chosen(["mips"]), [5], [5])
    assert outcome.mean("mips", 5, 5, "ncg") is None and not outcome.judged
    assert outcome.mean("mips", 5, 5) == pytest.approx(float(np.mean(outcome.values("mips", 5, 5))))
