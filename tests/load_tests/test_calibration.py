"""The studies of what answers say, and of small sets, on a made-up table."""

import json
from pathlib import Path

import numpy as np
import pytest

from load_tests import evaluation_calibration
from load_tests.evaluation_calibration import BINS, BUDGETS, calibration, small
from tests.evaluation.tables import synthetic


def test_what_is_counted_adds_up() -> None:
    rows = calibration(synthetic(queries=2, n=120), 1)
    assert {(row["budget"], row["k"]) for row in rows} == {(budget, k) for budget in BUDGETS for k in (10, 50, 100)}
    for row in rows:
        bins = np.array(row["bins"])
        assert bins.shape == (len(BINS) - 1, 3)
        np.testing.assert_allclose(bins.sum(axis=0), [row["unscored"], row["expected"], row["real"]], atol=1e-9)
        assert 0 <= row["within_1"] <= row["within_2"] <= row["unscored"] <= row["k"]
        assert 0 <= row["expected_loss"] < 1 and -1e-9 <= row["real_loss"] < 1


def test_the_first_documents_are_reranked_and_where_all_are_scored_nothing_is_lost() -> None:
    rows = small(synthetic(queries=2, n=40), 1)
    first = [row for row in rows if row["how"] == "first B"]
    assert len(first) == len(rows) / 3
    assert all(row["ce_ncg"] == pytest.approx(1) for row in rows if row["budget"] == 50)
    assert all(np.isnan(row["ndcg"]) == (row["k"] < 10) for row in rows)
    assert min(row["ce_ncg"] for row in first) < 0.95


def test_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "one.npz", **synthetic(queries=2, n=60, name="one").arrays)  # type: ignore[arg-type]
    monkeypatch.setattr("sys.argv", ["evaluation_calibration", str(tmp_path), "--out", str(tmp_path / "out")])
    evaluation_calibration.main()
    figures = json.loads((tmp_path / "out" / "calibration.json").read_text())
    assert [line["B"] for line in figures["calibration"]] == list(BUDGETS)
    assert "| one | 25 |" in (tmp_path / "out" / "calibration.md").read_text()
    assert (tmp_path / "out" / "plots" / "reliability.png").stat().st_size > 5_000
