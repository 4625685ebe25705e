from time import sleep

import numpy as np
import pytest

from boundarymorph.evaluation.analyses import (
    CapacityCurves,
    capacity_curves,
    changes,
    comparisons,
    latencies,
    multimodal,
)
from boundarymorph.evaluation.methods import agentic, chosen
from boundarymorph.evaluation.methods.morph import Morph, drive
from boundarymorph.evaluation.problem import Problem
from boundarymorph.evaluation.run import experiment
from boundarymorph.evaluation.tables import Table
from boundarymorph.selection import DocumentCapacity, SelectionSession
from boundarymorph.selection.methods import DEFAULT, METHODS, PAPER
from tests.evaluation.tables import synthetic

TABLE = synthetic(queries=6)
OUTCOME = experiment(TABLE, chosen(["mips", "ss", "bagel", PAPER]), [4, 8], [5, 10])


def test_comparisons_are_paired_means() -> None:
    found = comparisons(OUTCOME, PAPER, "ce_ncg")
    assert {one.other for one in found} == {"mips", "ss", "bagel"} and len(found) == 3 * 4
    for one in found:
        mine, theirs = (OUTCOME.values(name, one.budget, one.k) for name in (PAPER, one.other))
        assert one.difference == pytest.approx(float((mine - theirs).mean())) and one.queries == 6


def test_changes_take_the_queries_of_all_tables_together() -> None:
    other = experiment(synthetic(queries=3, seed=9), chosen(["mips", "ss", "bagel", PAPER]), [4, 8], [5, 10])
    (one, *_) = changes([OUTCOME, other], [("bagel", PAPER)], "ce_ncg")
    both = np.concatenate([each.values("bagel", 4, 5) - each.values(PAPER, 4, 5) for each in (OUTCOME, other)])
    assert one.queries == 9 and one.difference == pytest.approx(float(both.mean()))


def test_capacity_curves_agree_with_the_experiment_where_told_and_judged_meet() -> None:
    curves = capacity_curves(TABLE, Morph(METHODS[PAPER]), 8, [5, 10, 500], [3, 5])
    assert list(curves.optimised) == [5, 10, 59], "no set is larger than the pool but one"
    assert list(curves.evaluated) == [3, 5, 10, 59]
    for row, k in ((0, 5), (1, 10)):
        assert curves.values[row, curves.evaluated.index(k)] == pytest.approx(OUTCOME.mean(PAPER, 8, k))


def test_sets_of_another_size_are_cut_as_the_product_cuts_them() -> None:
    method, question = Morph(METHODS[DEFAULT]), TABLE.question(0)
    five, twenty = method.sets(Problem(question, 8, 10), [5, 20])
    session = SelectionSession(question.pool, budget=8, k=10, config=METHODS[DEFAULT])
    drive(session, Problem(question, 8, 10))
    for k, documents in ((5, five), (20, twenty)):
        session.capacity = DocumentCapacity(k)
        assert documents.tolist() == session.selection().documents.tolist()


@pytest.mark.parametrize(
    ("second", "share"),
    [
        ([0.70, 0.80], 1.0),  # each run is the best at its own k
        ([0.91, 0.80], 0.5),  # the run that was told 10 is better at 5 too
        ([0.91, 0.59], 0.0),  # each is better where the other was told
        ([0.9009, 0.5991], 1.0),  # by less than 0.1 points
        ([0.9011, 0.5991], 0.5),
    ],
)
def test_the_share_of_runs_that_are_best_where_they_were_told(second: list[float], share: float) -> None:
    curves = CapacityCurves([5, 10], [3, 5, 10], np.array([[0.5, 0.9, 0.6], [0.5, *second]]))
    assert curves.best_where_told == share


def test_the_runs_that_are_beaten_where_they_were_told_are_named() -> None:
    curves = CapacityCurves([5, 10], [3, 5, 10], np.array([[0.5, 0.9, 0.6], [0.5, 0.93, 0.8]]))
    ((told, (better, points)),) = curves.beaten.items()
    assert (told, better, round(points, 9)) == (5, 10, 0.03)


def test_latencies_count_calls() -> None:
    found = {(one.method, one.budget): one for one in latencies(OUTCOME, 5, 0.5)}
    assert ("mips", 4) not in found, "without calls there is nothing to compare"
    assert (found[PAPER, 8].calls, found[PAPER, 8].prompts, found[PAPER, 8].model) == (8, 0, 0)
    assert found["ss", 4].scorer == 2.0 and found[PAPER, 8].scorer == 4.0
    paper = found[PAPER, 8]
    assert 0 < paper.acquisition + paper.update <= paper.algorithm
    assert paper.total == pytest.approx(4.0 + paper.algorithm)
    untimed = latencies(OUTCOME, 5, None)[0]
    assert untimed.scorer is None and untimed.total is None


def test_latencies_of_a_language_model_are_its_own() -> None:
    """What it takes to answer is no part of the algorithm."""

    def slowly(prompt: str) -> str:
        sleep(0.01)
        return "nonsense"

    documents = {f"d{number}": f"text {number}" for number in range(60)}
    table = Table("made-up", synthetic(queries=2).arrays, ({"q0": "one need", "q1": "another"}, documents))
    agents = agentic.contestants(slowly, lambda text: np.ones(16) / 4, hops=(1, 2))
    outcome = experiment(table, [*chosen(["ss"]), *agents], [6], [5])
    ss, one, two = latencies(outcome, 5, 0.5)
    assert (ss.calls, ss.prompts, one.calls, one.prompts, two.prompts) == (6, 0, 0, 2, 4)
    assert one.scorer == 0.0 and one.model >= 0.02 and two.model >= 0.04
    assert all(0 < row.seconds < row.waiting for row in outcome.rows if row.prompts), "sleeping is no work"


def test_multimodality_pairs_masses_with_gains() -> None:
    found = multimodal(OUTCOME, PAPER)
    assert len(found.masses) == len(found.gains) == len(found.peaks) == 6
    cells = [(budget, k) for budget in (4, 8) for k in (5, 10)]
    expected = np.mean([OUTCOME.values(PAPER, *cell) - OUTCOME.values("bagel", *cell) for cell in cells], axis=0)
    assert np.allclose(found.gains, expected)
