"""Measure the correctness and speed of the scorer on this GPU: `make bench NAME=gpu`.

Models have real shapes and random weights (`load_tests.models`). `--device cpu --models smoke` tries the program
anywhere.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.benchmark import Timer

from boundarymorph.scoring.transformer import TransformerCrossEncoder
from load_tests import report
from load_tests.models import SHAPES
from load_tests.workload import QUERIES, passages

WORDS = (30, 250)  # words of a document
ROUND = 5  # pairs of a call of a session


def correctness(folder: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the greatest differences of scores.

    They are from float32 on the CPU, and of the same pair in two batches.
    """
    with_float32 = TransformerCrossEncoder.load(str(folder), precision="fp32", device="cpu")
    pairs = tokenised(with_float32, min(64, given.pairs))
    expected = np.concatenate([with_float32.run([pair]) for pair in pairs])
    with_float32.close()
    rows: list[dict[str, Any]] = []
    for precision in ("fp32", *given.precisions):
        model = TransformerCrossEncoder.load(str(folder), device=given.device, precision=precision)
        alone = np.concatenate([model.run([pair]) for pair in pairs])
        again = np.empty_like(alone)
        for first in range(4):
            again[first::4] = model.run(pairs[first::4])
        row = {"what": "scores", "precision": precision, "from_float32": float(np.abs(alone - expected).max())}
        rows.append(row | {"by_batch": float(np.abs(alone - again).max())})
        model.close()
    return rows


def speed(folder: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the milliseconds of one call, and pairs and tokens per second by tokens of a batch."""
    precision = given.precisions[0]
    model = TransformerCrossEncoder.load(str(folder), device=given.device, precision=precision)
    rows: list[dict[str, Any]] = []
    for count, words in ((1, 60), (1, 300), (ROUND, 60), (ROUND, 300), (32, 60)):
        pairs = tokenised(model, count, words=(words, words))
        seconds = Timer("run(pairs)", globals={"run": model.run, "pairs": pairs}).timeit(given.repeats).mean
        call = {"pairs": count, "tokens": sum(map(len, pairs)) / count, "ms": 1e3 * seconds}
        rows.append({"what": "a call", "precision": precision, **call})
    pairs = sorted(tokenised(model, given.pairs), key=len)
    for size in given.batch_tokens:
        batches: list[list[Any]] = [[]]
        for pair in pairs:
            if batches[-1] and len(pair) * (len(batches[-1]) + 1) > size:
                batches.append([])
            batches[-1].append(pair)
        timer = Timer("list(map(run, batches))", globals={"run": model.run, "batches": batches})
        rate = len(pairs) / timer.timeit(min(given.repeats, 3)).mean
        rates = {"pairs_a_second": rate, "tokens_a_second": rate * sum(map(len, pairs)) / len(pairs)}
        peak = {"peak_GB": torch.cuda.max_memory_allocated() / 1e9} if given.device.startswith("cuda") else {}
        rows.append({"what": f"batches of {size}", "precision": precision, **rates, **peak})
    model.close()
    return rows


def tokenised(model: TransformerCrossEncoder, count: int, words: tuple[int, int] = WORDS) -> list[Any]:
    """Return pairs of a query and passages, as the model takes them."""
    return list(model.tokenize(QUERIES[0], passages(count, words=words)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=["22M", "0.6B"])
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp16"])
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[2_048, 8_192, 16_384, 32_768, 65_536])
    parser.add_argument("--pairs", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=10, help="timed repetitions, after two to warm up")
    given = parser.parse_args()
    on_gpu = given.device.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        raise SystemExit("no GPU here; --device cpu --models smoke tries the program")
    print(torch.cuda.get_device_name(given.device) if on_gpu else "CPU", f"torch {torch.__version__}", flush=True)
    rows = report.Rows("gpu")
    for name in given.models:
        with tempfile.TemporaryDirectory() as directory:
            folder = SHAPES[name].write(Path(directory), given.device)
            for row in (*correctness(folder, given), *speed(folder, given)):
                rows.append({"model": name, **row})
    rows.write()


if __name__ == "__main__":
    report.run(main)
