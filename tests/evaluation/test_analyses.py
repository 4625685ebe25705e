from time import sleep

import numpy as np
import pytest

from boundarymorph.evaluation.analyses import changes, comparisons, latencies
from boundarymorph.evaluation.methods import agentic, chosen
from boundarymorph.evaluation.run import experiment
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection.methods import PAPER
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


def test_latencies_count_calls() -> None:
    found = {(one.method, one.budget): one for one in latencies(OUTCOME, 5, 0.5)}
    assert ("mips", 4) not in found, "without calls there is nothing to compare"
    assert (found[PAPER, 8].calls, found[PAPER, 8].prompts, found[PAPER, 8].model) == (8, 0, 0)
    assert found["ss", 4].scorer == 2.0 and found[PAPER, 8].scorer == 4.0
    paper = found[PAPER, 8]
    assert paper.algorithm > 0
    assert paper.total == pytest.approx(4.0 + paper.algorithm)
    untimed = latencies(OUTCOME, 5, None)[0]
    assert untimed.scorer is None and untimed.total is None


def test_latencies_of_a_language_model_are_its_own() -> None:
    """What it takes to answer is no part of the algorithm."""

    def slowly(prompt: str) -> str:
        sleep(0.01)
        return "nonsense"

    documents = {f"d{number}": f"text {number}" for number in range(60)}
    table = ScoreTable("made-up", synthetic(queries=2).arrays, ({"q0": "one need", "q1": "another"}, documents))
    agents = agentic.contestants(slowly, lambda text: np.ones(16) / 4, hops=(1, 2))
    outcome = experiment(table, [*chosen(["ss"]), *agents], [6], [5])
    ss, one, two = latencies(outcome, 5, 0.5)
    assert (ss.calls, ss.prompts, one.calls, one.prompts, two.prompts) == (6, 0, 0, 2, 4)
    assert one.scorer == 0.0 and one.model >= 0.02 and two.model >= 0.04
    assert all(0 < row.seconds < row.waiting for row in outcome.rows if row.prompts), "sleeping is no work"
