"""`make bench NAME=gpu`: the correctness and speed of scorer and search on this GPU.

Models have real shapes and random weights (`load_tests.models`). The search finds `--depth` of `--documents` vectors
by `boundarymorph retriever`, on the GPU and on the CPU. `--device cpu --models smoke --documents 3000` tries the
program anywhere.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.scoring.transformer import Precision, TransformerCrossEncoder
from load_tests import report
from load_tests.models import SHAPES
from load_tests.processes import Server, retriever
from load_tests.workload import QUERIES, passages

SEARCHES, BLOCK = 100, 50_000
WORDS = (30, 250)  # of a document
ROUND = 5  # pairs of a call of a session


def correctness(folder: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the greatest differences of scores: from float32 on the CPU, and of the same pair in two batches."""
    with_float32 = TransformerCrossEncoder.load(str(folder), precision="fp32", device="cpu")
    pairs = tokenised(with_float32, min(64, given.pairs))
    expected = np.concatenate([with_float32.run([pair]) for pair in pairs])
    with_float32.close()
    rows = []
    for precision in ("fp32", *given.precisions):
        model = load(folder, given.device, precision)
        alone = np.concatenate([model.run([pair]) for pair in pairs])
        again = np.empty_like(alone)
        for first in range(4):
            again[first::4] = model.run(pairs[first::4])
        rows.append(
            {
                "what": "scores",
                "precision": precision,
                "from_float32": float(np.abs(alone - expected).max()),
                "by_batch": float(np.abs(alone - again).max()),
                "rank_correlation": float(np.corrcoef(alone.argsort().argsort(), expected.argsort().argsort())[0, 1]),
            }
        )
        model.close()
    return rows


def speed(folder: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the milliseconds of one call, and pairs and tokens a second by tokens of a batch."""
    model, precision = load(folder, given.device, given.precisions[0]), given.precisions[0]
    rows: list[dict[str, Any]] = []
    for count, words in ((1, 60), (1, 300), (ROUND, 60), (ROUND, 300), (32, 60)):
        pairs = tokenised(model, count, words=(words, words))
        seconds = times(partial(model.run, pairs), given.device, given.repeats)
        call = {"pairs": count, "tokens": sum(map(len, pairs)) / count, "ms": 1e3 * statistics.median(seconds)}
        rows.append({"what": "a call", "precision": precision, **call})
    pairs = sorted(tokenised(model, given.pairs), key=len)
    for size in given.batch_tokens:
        batches: list[list[Any]] = [[]]
        for pair in pairs:
            if batches[-1] and len(pair) * (len(batches[-1]) + 1) > size:
                batches.append([])
            batches[-1].append(pair)
        every = partial(lambda batches: [model.run(batch) for batch in batches], batches)
        rate = len(pairs) / statistics.median(times(every, given.device, min(given.repeats, 3)))
        rates = {"pairs_a_second": rate, "tokens_a_second": rate * sum(map(len, pairs)) / len(pairs)}
        peak = {"peak_GB": torch.cuda.max_memory_allocated() / 1e9} if given.device.startswith("cuda") else {}
        rows.append({"what": f"batches of {size}", "precision": precision, **rates, **peak})
    model.close()
    return rows


async def search(given: argparse.Namespace, server: Server) -> tuple[list[float], list[list[str]]]:
    """Return the seconds of searches one at a time, and the ids that they find."""
    remote, rng = RemoteRetriever(server.url, timeout=600), np.random.default_rng(5)
    seconds, ids = [], []
    for query in rng.standard_normal((SEARCHES, given.dimension), np.float32):
        start = time.perf_counter()
        ids.append(list((await remote.retrieve("vectors", Search("", given.depth, query))).pool.ids))
        seconds.append(time.perf_counter() - start)
    await remote.close()
    return seconds[2:], ids


def searched(given: argparse.Namespace, rows: report.Rows) -> None:
    """Add rows of searches on the CPU and on the device. Exits if they find different ids."""
    rng, found = np.random.default_rng(4), {}
    with tempfile.TemporaryDirectory() as folder:
        catalog = LocalCatalog(Path(folder) / "indexes")
        index = catalog.create("vectors", encoder=None, dimension=given.dimension, lexical=False)
        for start in range(0, given.documents, BLOCK):
            block = [Document(str(number), "") for number in range(start, min(start + BLOCK, given.documents))]
            index.upsert(block, rng.standard_normal((len(block), given.dimension), np.float32))
        catalog.close()
        for device in dict.fromkeys(("cpu", given.device)):
            with retriever(Path(folder), variables={"BOUNDARYMORPH_SEARCH_DEVICE": device}) as server:
                seconds, found[device] = asyncio.run(search(given, server))
            same = found[device] == found["cpu"]
            rows.append({"what": f"search on {device}", **report.percentiles(seconds), "same_ids": same})
            if not same:
                raise SystemExit(f"a search on {device} does not find the same documents")


def tokenised(model: TransformerCrossEncoder, count: int, words: tuple[int, int] = WORDS) -> list[Any]:
    """Return pairs of a query and passages, as the model takes them."""
    return list(model.tokenize(QUERIES[0], passages(count, words=words)))


def times(run: Callable[[], object], device: str, repeats: int) -> Sequence[float]:
    """Return the seconds of each run after two to warm up."""
    seconds = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        run()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds[2:]


def load(folder: Path, device: str, precision: Precision) -> TransformerCrossEncoder:
    """Return the model on the device."""
    return TransformerCrossEncoder.load(str(folder), device=device, precision=precision)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="*", choices=list(SHAPES), default=["22M", "0.6B", "8B"])
    parser.add_argument("--documents", type=int, default=1_000_000, help="to search in; 0 leaves the search out")
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--depth", type=int, default=10_000)
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp16"])
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[2_048, 8_192, 16_384, 32_768, 65_536])
    parser.add_argument("--pairs", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=10, help="of what is timed, after two to warm up")
    given = parser.parse_args()
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("no GPU here; --device cpu --models smoke --documents 3000 tries the program")
    on_gpu = given.device.startswith("cuda")
    print(torch.cuda.get_device_name(given.device) if on_gpu else "CPU", f"torch {torch.__version__}", flush=True)
    rows = report.Rows("gpu")
    for name in given.models:
        with tempfile.TemporaryDirectory() as directory:
            folder = SHAPES[name].write(Path(directory), given.device)
            checked = correctness(folder, given) if SHAPES[name].checked else []
            for row in (*checked, *speed(folder, given)):
                rows.append({"model": name, **row})
    if given.documents:
        searched(given, rows)
    rows.write()


if __name__ == "__main__":
    report.run(main)
