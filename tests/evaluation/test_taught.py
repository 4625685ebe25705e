"""What is learned from some queries, by a calibration or a memory, is measured on the others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from boundarymorph.errors import InvalidInput
from boundarymorph.evaluation import report
from boundarymorph.evaluation.methods import chosen
from boundarymorph.evaluation.run import Outcome, experiment
from boundarymorph.evaluation.study import study
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.evaluation.taught import calibrated_study, learned_study, remembered
from boundarymorph.memory import memory
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


def low(queries: int = 24) -> ScoreTable:
    """A scorer that rejects nearly all, and goes by the words, of which the default expects less."""
    table = synthetic(queries, 120)
    arrays, random = dict(table.arrays), np.random.default_rng(0)
    words = random.gamma(1.0, size=arrays["mips"].shape).astype(np.float32)
    roots = np.sqrt(words)
    by_words = (roots - roots.mean(axis=1, keepdims=True)) / roots.std(axis=1, keepdims=True)
    arrays["bm25"] = words
    arrays["score"] = expit(-8 + 3 * by_words + random.normal(size=words.shape)).astype(np.float32)
    return ScoreTable(table.name, arrays)


def test_what_earlier_requests_teach_is_worth_calls() -> None:
    outcome = experiment(low(), chosen(["trend@auto"]), [0, 5], [10])
    found = learned_study(outcome, 10, 2)
    assert (found.requests, found.budget, found.in_force) == (12, 10, 1.0)
    assert (found.with_["ce_ncg"] > found.without["ce_ncg"] + 0.02).all()
    order = np.random.default_rng(0).permutation(24)
    one = learned_study(outcome, 10, 1)
    expected = outcome.values("trend@auto", 5, 10)[order[12:]].mean()
    assert one.without.loc[("trend@auto", 5, 10), "ce_ncg"] == pytest.approx(expected), (
        "the queries that taught are left out"
    )


def test_what_is_not_ahead_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LEAST_AHEAD", 1e6)
    assert remembered(low(), np.arange(12), 10, 10) is None
    outcome = experiment(low(), chosen(["people@auto"]), [5], [10])
    found = learned_study(outcome, 10, 1)
    assert found.in_force == 0 and found.with_.equals(found.without)


def test_requests_must_be_enough() -> None:
    outcome = experiment(low(18), chosen(["trend@auto"]), [5], [10])
    with pytest.raises(InvalidInput, match="from 10 requests on"):
        learned_study(outcome, 10, 1)
    with pytest.raises(InvalidInput, match="from 5 calls"):
        learned_study(outcome, 4, 1)


@pytest.mark.parametrize(
    ("name", "options", "title", "rivals"),
    [
        ("calibrated", {"calibrate": (6, 2)}, "Calibrated by a few judgements", [("ss-hybrid", False)]),
        ("learned", {"learn": (10, 1, 11)}, "Learned from earlier requests", []),
    ],
)
def test_the_summary_has_rows_with_and_without(
    tmp_path: Path, name: str, options: dict[str, Any], title: str, rivals: list[tuple[str, bool]]
) -> None:
    table, metric = (judged_by(scorer=False), "ncg") if name == "calibrated" else (low(), "ce_ncg")
    report.write([study(table, chosen(["trend@auto", "ss-hybrid"]), [5], [10], **options)], tmp_path)
    rows = json.loads((tmp_path / "summary.json").read_bytes())["rows"]
    assert [(row["method"], row[name]) for row in rows] == [("trend@auto", False), *rivals, ("trend@auto", True)]
    assert all((row["budget"], row["k"]) == (5, 10) for row in rows) and rows[-1][metric] > rows[0][metric]
    assert f"## {title}" in (tmp_path / "report.md").read_text()
