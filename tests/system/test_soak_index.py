"""Seconds of what `make soak-index` does for minutes."""

from pathlib import Path

from load_tests.soak_index import Ledger, Plan, run


def test_a_short_soak(tmp_path: Path) -> None:
    plan = Plan(seconds=3, row_seconds=2, readers=20, writers=3, documents=2_000, kills=1)
    outcome = run(plan, tmp_path / "data")
    assert outcome.wrong == []
    assert outcome.kills == 1
    assert all(row["reads"] and row["upserted"] and row["deleted"] for row in outcome.rows)


def test_the_ledger_notices() -> None:
    ledger = Ledger()
    ledger.begin(["a"])
    ledger.acknowledge(["a"])
    ledger.check("a", 1, 1)
    ledger.begin(["a"])
    ledger.check("a", 1, 1)
    ledger.check("a", 1, 2)
    ledger.acknowledge(["a"])
    ledger.begin(["a"], deletion=True)
    ledger.check("a", 2, 2)
    ledger.check("a", 2, None)
    assert ledger.wrong == []
    ledger.check("a", 2, 1)
    ledger.acknowledge(["a"])
    ledger.check("a", 3, 2)
    ledger.begin(["a"])
    ledger.acknowledge(["a"])
    ledger.check("a", 4, None)
    ledger.check("a", 4, -1)
    assert len(ledger.wrong) == 4
