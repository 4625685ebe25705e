"""The study of memories: half of the queries are earlier requests, the others are measured."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from boundarymorph.errors import InvalidInput
from boundarymorph.evaluation import report
from boundarymorph.evaluation.methods import chosen
from boundarymorph.evaluation.run import experiment
from boundarymorph.evaluation.study import study
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.evaluation.taught import learned_study, remembered
from boundarymorph.memory import memory
from tests.evaluation.tables import synthetic


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


def test_the_summary_has_rows_with_and_without(tmp_path: Path) -> None:
    made = study(low(), chosen(["trend@auto", "ss-hybrid"]), [5], [10], learn=(10, 1, 11))
    report.write([made], tmp_path)
    rows = json.loads((tmp_path / "summary.json").read_bytes())["rows"]
    assert [(row["method"], row["budget"], row["learned"]) for row in rows] == [
        ("trend@auto", 5, False),
        ("trend@auto", 5, True),
    ]
    assert rows[1]["ce_ncg"] > rows[0]["ce_ncg"]
    assert "## Learned from earlier requests" in (tmp_path / "report.md").read_text()


def test_requests_must_be_enough() -> None:
    outcome = experiment(low(18), chosen(["trend@auto"]), [5], [10])
    with pytest.raises(InvalidInput, match="from 10 requests on"):
        learned_study(outcome, 10, 1)
    with pytest.raises(InvalidInput, match="from 5 calls"):
        learned_study(outcome, 4, 1)
