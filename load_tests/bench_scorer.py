"""`make bench-scorer`: a scorer's throughput for sessions over HTTP, compared with the bare model and with Infinity.

The same weights (MiniLM-L-12, float32) run in this process, behind `boundarymorph scorer`, and behind Infinity.
Sessions of 10 rounds of 5 texts run one, 8, 32 and 128 at a time. The bare model is the better of plain transformers
and our own forward pass, each at its best batch size on pairs tokenised and sorted by length beforehand.
`--beside COMMIT` measures the scorer of another commit instead of Infinity.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from boundarymorph.scoring.remote.client import RemoteScorer
from boundarymorph.scoring.remote.urls import parse
from boundarymorph.scoring.transformer.model import Precision, TransformerCrossEncoder
from load_tests import infinity, report, weights
from load_tests.processes import checkout, scorer
from load_tests.sessions import QUERIES, load, passages

PORT = 8971
BUILD = Path("build")
BATCHES = (1, 2, 4, 8, 16)
REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=float, default=40.0, help="measured for each number of sessions")
    parser.add_argument("--pairs", type=int, default=96, help="texts, the same for all")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--beside", metavar="COMMIT")
    arguments = parser.parse_args()

    folder = weights.minilm(BUILD / "minilm")
    texts = passages(arguments.pairs)
    rows, ratios = report.Rows("scorer"), {}
    bare = _bare(rows, folder, texts, arguments.device, arguments.precision)
    options = ["--model", str(folder), "--device", arguments.device, "--precision", arguments.precision]
    with scorer(options) as server:
        ours = _under_load(rows, "boundarymorph", server.url, texts, bare, arguments)
    if arguments.beside:
        with checkout(arguments.beside) as tree, scorer(options, tree=tree) as server:
            theirs = _under_load(rows, "before", server.url, texts, bare, arguments)
    else:
        with infinity.serving(infinity.environment(BUILD / "infinity"), folder, PORT) as server:
            theirs = _under_load(rows, "infinity", server.url.replace("http", "infinity"), texts, bare, arguments)
    over = "before" if arguments.beside else "infinity"
    for sessions in arguments.sessions:
        ratios[f"utilisation_at_{sessions}"] = ours[sessions].pairs_per_second / bare
        ratios[f"over_{over}_at_{sessions}"] = ours[sessions].pairs_per_second / theirs[sessions].pairs_per_second
    report.write("scorer", rows, ratios)


def _row(server: str, measured: Any, bare: float) -> dict[str, Any]:
    return {
        "what": server,
        "sessions": measured.sessions,
        "batch": "",
        "pairs_per_second": measured.pairs_per_second,
        "of_bare": measured.pairs_per_second / bare,
        "round_p50_ms": measured.round_p50 * 1e3,
        "round_p99_ms": measured.round_p99 * 1e3,
        "session_seconds": measured.session,
    }


def _bare(rows: report.Rows, folder: Path, texts: Sequence[str], device: str, precision: Precision) -> float:
    """Return the most pairs per second of both forward passes, and add their rows.

    Plain transformers run with all threads on one batch and then, like ours, with concurrent batches, one per core.
    """
    plain, features = _plain(folder, texts)
    kinds: list[tuple[str, Callable[[Any], Any], Sequence[Any], int]] = [("transformers", plain, features, 1)]
    for batch in BATCHES:
        rows.append(_bare_row(*kinds[0], batch))
    ours = TransformerCrossEncoder.load(str(folder), device=device, precision=precision)  # one thread a batch from here
    kinds = [
        ("transformers, side by side", plain, features, ours.workers),
        ("our forward", ours.run, sorted(ours.tokenize(QUERIES[0], texts), key=len), ours.workers),
    ]
    for kind in kinds:
        for batch in BATCHES:
            rows.append(_bare_row(*kind, batch))
    return max(float(row["pairs_per_second"]) for row in rows)


def _plain(folder: Path, texts: Sequence[str]) -> tuple[Callable[[Any], Any], Sequence[Any]]:
    """Return the forward pass of padded batches, and its inputs sorted by length."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    features = [tokenizer(QUERIES[0], text, truncation=True) for text in texts]

    def run(batch: Any) -> None:
        with torch.inference_mode():
            model(**tokenizer.pad(batch, return_tensors="pt"))

    return run, sorted(features, key=lambda pair: len(pair["input_ids"]))


def _bare_row(what: str, run: Callable[[Any], Any], pairs: Sequence[Any], workers: int, batch: int) -> dict[str, Any]:
    batches = [pairs[first : first + batch] for first in range(0, len(pairs), batch)]
    seconds = []
    with ThreadPoolExecutor(workers) as threads:
        for _ in range(REPEATS):
            start = time.perf_counter()
            list(threads.map(run, batches))
            seconds.append(time.perf_counter() - start)
    return {
        "what": what,
        "sessions": "",
        "batch": batch,
        "pairs_per_second": len(pairs) / min(seconds),
        "of_bare": "",
        "round_p50_ms": "",
        "round_p99_ms": "",
        "session_seconds": "",
    }


def _under_load(
    rows: report.Rows, name: str, url: str, texts: Sequence[str], bare: float, arguments: argparse.Namespace
) -> dict[int, Any]:
    async def measure() -> dict[int, Any]:
        measured: dict[int, Any] = {}
        remote = RemoteScorer([parse(url)], timeout=600, attempt_timeout=600, connections=256)
        try:
            for count in arguments.sessions:
                measured[count] = await load(remote, texts, count, arguments.seconds)
                rows.append(_row(name, measured[count], bare))
            return measured
        finally:
            await remote.close()

    return asyncio.run(measure())


if __name__ == "__main__":
    report.run(main)
