"""A calibration that is learned from some queries is measured on the others."""

import json
from pathlib import Path

import numpy as np
import pytest

from boundarymorph.errors import InvalidInput
from boundarymorph_evaluation import report
from boundarymorph_evaluation.calibrated import calibrated_study
from boundarymorph_evaluation.methods import chosen
from boundarymorph_evaluation.run import Outcome, experiment
from boundarymorph_evaluation.study import study
from boundarymorph_evaluation.tables import ScoreTable
from tests.evaluation.tables import synthetic


def judged_by(scorer: bool, queries: int = 14) -> ScoreTable:
    """People agree with the scorer, or with the retriever, whose scores the cross-encoder then does not follow."""
    table = synthetic(queries, 150)
    arrays, random = dict(table.arrays), np.random.default_rng(0)
    if scorer:
        arrays["grade"] = (random.uniform(size=arrays["score"].shape) < arrays["score"] ** 2).astype(np.uint8)
    else:
        arrays["score"] = random.uniform(size=arrays["score"].shape).astype(np.float32)
        near = arrays["mips"] + 0.1 * random.normal(size=arrays["mips"].shape)
        arrays["grade"] = (near > np.sort(near, axis=1)[:, [-15]]).astype(np.uint8)
    return ScoreTable(table.name, arrays)


def outcome_of(table: ScoreTable) -> Outcome:
    return experiment(table, chosen(["trend@auto", "ss-hybrid"]), [5, 10], [5, 10])


def test_where_the_scorer_is_wrong_a_calibration_helps() -> None:
    found = calibrated_study(outcome_of(judged_by(scorer=False)), 6, 2)
    assert found.forms == {"signals": 2}
    assert found.queries == 6
    assert 6 * 25 < found.judgments <= 6 * 40
    assert (found.with_["ncg"] > found.without.loc[found.with_.index, "ncg"] + 0.1).all()
    assert found.errors[1] < 0.1 < found.errors[0]
    assert found.losses[1] < found.losses[0]


def test_where_the_scorer_is_right_nothing_changes() -> None:
    outcome = outcome_of(judged_by(scorer=True))
    found = calibrated_study(outcome, 6, 2)
    assert "signals" not in found.forms
    assert list(found.with_.index) == [("trend@auto", budget, k) for budget in (5, 10) for k in (5, 10)]
    assert found.with_.equals(found.without.loc[found.with_.index])


def test_the_judged_queries_are_not_measured() -> None:
    outcome = outcome_of(judged_by(scorer=True))
    order = np.random.default_rng(0).permutation(14)
    found = calibrated_study(outcome, 6, 1)
    expected = outcome.values("ss-hybrid", 5, 10, "ncg")[order[6:]].mean()
    assert found.without.loc[("ss-hybrid", 5, 10), "ncg"] == pytest.approx(expected)


def test_queries_must_be_left() -> None:
    with pytest.raises(InvalidInput, match="14 queries"):
        calibrated_study(outcome_of(judged_by(scorer=True)), 14, 1)


def test_the_summary_has_rows_with_and_without(tmp_path: Path) -> None:
    table = judged_by(scorer=False)
    report.write([study(table, chosen(["trend@auto", "ss-hybrid"]), [5], [10], calibrate=(6, 2))], tmp_path)
    rows = json.loads((tmp_path / "summary.json").read_bytes())["rows"]
    found = [(row["method"], row["calibrated"]) for row in rows]
    assert found == [("trend@auto", False), ("ss-hybrid", False), ("trend@auto", True)]
    assert all((row["budget"], row["k"]) == (5, 10) for row in rows) and rows[-1]["ncg"] > rows[0]["ncg"]
    assert "## Calibrated by a few judgements" in (tmp_path / "report.md").read_text()
