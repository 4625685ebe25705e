"""The benchmark of overload, for seconds instead of minutes."""

import os
import subprocess
import sys
from pathlib import Path

import orjson

from tests.faults.table import REPOSITORY


def test_every_answer_is_whole(tmp_path: Path) -> None:
    options = {"minutes": "0.1", "clients": "30", "documents": "40", "budget": "5", "capacity-seconds": "3"}
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    run = subprocess.run(
        [sys.executable, "-m", "load_tests.overload", *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    results = orjson.loads((tmp_path / "build/bench/overload.json").read_bytes())
    (row,) = results["rows"]
    assert row["complete"] + row["partial"] + row["retrieval_only"] > 0
    assert results["ratios"]["short_answers"] == 0
    assert results["ratios"]["capacity_per_second"] > 0
