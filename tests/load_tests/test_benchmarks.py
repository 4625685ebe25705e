"""The benchmarks that nobody here can run for real still run."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import orjson
import pytest
import torch

from load_tests import bench_sessions, gpu_check, report
from load_tests.bench_selection import round_sizes
from tests.patience import PATIENCE

REPOSITORY = Path(__file__).parents[2]


def test_the_gpu_check_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--device", "cpu", "--models", "smoke", "smoke-qwen", "--pairs", "6", "--batch-tokens", "256"]
    options += ["--precisions", "bf16", "--documents", "3000", "--dimension", "16", "--depth", "500", "--repeats", "1"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpu_check", *options])
    gpu_check.main()
    for model in ("smoke", "smoke-qwen"):
        results = [orjson.loads(path.read_bytes()) for path in (tmp_path / "build/bench").glob(f"*-{model}.json")]
        assert len(results) == 3
        correctness = next(result for result in results if "from_float32_fp32" in result["ratios"])
        assert correctness["ratios"]["from_float32_fp32"] < 1e-5
        assert correctness["ratios"]["from_float32_bf16"] < 0.05
    searched = orjson.loads((tmp_path / "build/bench/gpu-search.json").read_bytes())["rows"]
    assert [(row["index"], row["depth"], row["same_ids"]) for row in searched] == [
        ("cpu", 500, True),
        ("faiss", 500, True),
    ]


def test_the_gpu_check_says_when_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    with pytest.raises(SystemExit, match="no GPU here"):
        gpu_check.main()


def test_sessions_a_second_are_measured_in_the_rounds_of_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert round_sizes("auto", 50) == [2, 2, 2, 3, 4, 5, 6, 7, 7, 6, 6]
    assert round_sizes("5", 12) == [5, 5, 2]
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    options = ["--pools", "60", "--dimensions", "8", "--budgets", "5", "10", "--repeats", "1", "--requests", "0"]
    monkeypatch.setattr(sys, "argv", ["bench_sessions", *options])
    bench_sessions.main()
    rows = orjson.loads((tmp_path / "sessions.json").read_bytes())["rows"]
    assert [(row["budget"], row["round_trips"]) for row in rows] == [(5, 3), (10, 5)]
    assert all(row["sessions_a_second_and_core"] == pytest.approx(1e3 / row["cpu_ms"]) for row in rows)


def test_a_benchmark_that_is_stopped_has_told_what_it_has(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "load_tests.bench_selection", "--pool", "200", "--dimensions", "8"]
    command += ["--repeats", "1", "--k", "5", "--budgets", *["5"] * 10_000]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # which what runs the tests may ignore
    ) as running:
        assert running.stdout is not None
        first = running.stdout.readline()
        running.send_signal(signal.SIGINT)
        rest, errors = running.communicate(timeout=PATIENCE)
    assert first.startswith("pool 200  dimension 8  budget 5  ")
    assert (running.returncode, errors) == (130, "")
    assert rest.splitlines()[-1] == "stopped; what was measured by then is in build/bench"
    results = orjson.loads((tmp_path / "build/bench/selection.json").read_bytes())
    assert results["complete"] is False
    assert len(results["rows"]) - len(rest.splitlines()) in (0, 1)  # the last may be written and not printed
