"""The benchmarks that nobody here can run for real still run."""

import sys
from pathlib import Path

import orjson
import pytest
import torch

from load_tests import gpu_check


def test_the_gpu_check_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--device", "cpu", "--models", "smoke", "smoke-qwen", "--pairs", "12", "--batch-tokens", "512", "2048"]
    options += ["--precisions", "bf16", "--documents", "3000", "--dimension", "16", "--depth", "500"]
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
        ("FlatIndex", 500, True),
        ("TorchIndex", 500, True),
    ]


def test_the_gpu_check_says_when_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    with pytest.raises(SystemExit, match="no GPU here"):
        gpu_check.main()
