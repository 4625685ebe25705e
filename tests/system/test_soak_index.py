"""A run of `make soak NAME=index` for seconds instead of minutes."""

from pathlib import Path

import pytest

from load_tests.soak import Ledger, Plan, run


@pytest.mark.usefixtures("tiny_weights")
def test_a_short_soak(tmp_path: Path) -> None:
    plan = Plan(seconds=4, row_seconds=1, readers=5, writers=2, documents=200, kills=1)
    outcome = run(plan, tmp_path / "data")
    assert outcome.wrong == []
    assert outcome.growth is None
    assert all(sum(row[kind] for row in outcome.rows) for kind in ("reads", "upserted", "deleted"))


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
