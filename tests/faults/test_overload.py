"""The benchmark of overload, for seconds instead of minutes."""

import sys
from pathlib import Path

import orjson
import pytest

from load_tests import overload

OPTIONS = {"minutes": "0.04", "clients": "20", "documents": "40", "budget": "5", "capacity-seconds": "1"}


@pytest.mark.usefixtures("tiny_weights")
def test_every_answer_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["overload", *(part for name, value in OPTIONS.items() for part in (f"--{name}", value))]
    )
    overload.main()
    results = orjson.loads((tmp_path / "build/bench/overload.json").read_bytes())
    (row,) = results["rows"]
    assert row["complete"] + row["partial"] + row["retrieval_only"] > 0
    assert results["ratios"]["short_answers"] == 0
    assert results["ratios"]["capacity_per_second"] > 0
