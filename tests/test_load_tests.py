"""The benchmarks that nobody here can run for real still run."""

import os
import subprocess
import sys
from pathlib import Path

import orjson

REPOSITORY = Path(__file__).parents[1]


def test_the_gpu_check_on_a_cpu(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--models", "smoke", "smoke-qwen", "--pairs", "12", "--batch-tokens", "512", "2048"]
    options += ["--precisions", "bf16", "--documents", "3000", "--dimension", "16", "--depth", "500"]
    command = [sys.executable, "-m", "load_tests.gpu_check", *options]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for model in ("smoke", "smoke-qwen"):
        results = [orjson.loads(path.read_bytes()) for path in (tmp_path / "build/bench").glob(f"*-{model}.json")]
        assert len(results) == 3
        correctness = next(result for result in results if "from_float32_fp32" in result["ratios"])
        assert correctness["ratios"]["from_float32_fp32"] < 1e-5
        assert correctness["ratios"]["from_float32_bf16"] < 0.05
    searched = orjson.loads((tmp_path / "build/bench/gpu-search.json").read_bytes())["rows"]
    assert [(row["index"], row["depth"], row["same_ids"]) for row in searched] == [
        ("FlatIndex", 500, True),
        ("TorchIndex", 500, True),
    ]


def test_the_gpu_check_says_when_there_is_no_gpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "load_tests.gpu_check"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "no GPU here" in run.stderr
