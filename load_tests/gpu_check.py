"""`make gpu-check`: the correctness and speed of scorer and search on this GPU.

Models have real shapes and random weights: 22M (MiniLM-L6), 0.6B and 8B (Qwen3-Reranker). Their scores are meaningless,
but not their time and rounding.
The search finds `--depth` of `--documents` random vectors, on the GPU and on the CPU.
`--device cpu --models smoke --documents 20000` tests the script itself anywhere.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from boundarymorph.retrieval.local.gpu import FaissMirror, FaissShard, mirrors
from boundarymorph.retrieval.local.vectors import VectorIndex
from boundarymorph.scoring.scorer import Pair
from boundarymorph.scoring.transformer.model import Precision, TransformerCrossEncoder
from load_tests import report
from tests.scoring.transformer import tiny

QUERY_TOKENS = 80  # what pairs of one query begin with, prompt included
LENGTHS = (48, 400)  # tokens of a document, drawn evenly
SEARCHES = 100
ROUND = 5  # pairs of a call of a session
ROWS = 50_000  # that are written to an index at a time


@dataclass(frozen=True, slots=True)
class Shape:
    """make: writes a model of it on a device; checked: whether its scores are compared with float32."""

    folder: str
    make: Callable[[Path, str], None]
    checked: bool = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="*", choices=list(SHAPES), default=["22M", "0.6B", "8B"])
    parser.add_argument("--documents", type=int, default=1_000_000, help="to search in; 0 leaves the search out")
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--depth", type=int, default=10_000)
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp16"])
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[2_048, 8_192, 16_384, 32_768, 65_536])
    parser.add_argument("--pairs", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=10, help="of what is timed, after two to warm up")
    arguments = parser.parse_args()
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("no GPU here; --device cpu --models smoke --documents 20000 tries the script")
    print(_hardware(arguments.device))
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory) / SHAPES[name].folder
            SHAPES[name].make(folder, arguments.device)
            if SHAPES[name].checked:
                _correctness(name, folder, arguments)
            _latency(name, folder, arguments)
            _throughput(name, folder, arguments)
            shutil.rmtree(folder)
    if arguments.documents:
        _search(arguments)


def _search(arguments: argparse.Namespace) -> None:
    """Measure searches on the device and on the CPU, one at a time. Exits if they find different ids."""
    dimension, rng = arguments.dimension, np.random.default_rng(4)
    indexes: dict[str, VectorIndex] = {
        "cpu": VectorIndex(dimension),
        "faiss": VectorIndex(dimension, make_mirror=mirrors(0) if arguments.device != "cpu" else _mirror),
    }
    for start in range(0, arguments.documents, ROWS):
        rows = _unit(rng, min(ROWS, arguments.documents - start), dimension)
        for index in indexes.values():
            index.upsert([f"d{start + row}" for row in range(len(rows))], rows)
    queries = _unit(rng, SEARCHES, dimension)
    found: dict[str, list[list[str]]] = {}
    table = report.Rows("gpu-search")
    for name, index in indexes.items():
        index.view().search(queries[0], arguments.depth)
        ids, seconds = [], []
        for query in queries:
            begun = time.perf_counter()
            ids.append(index.view().search(query, arguments.depth).ids)
            seconds.append(time.perf_counter() - begun)
        found[name] = ids
        table.append(
            {
                "index": name,
                "documents": arguments.documents,
                "dimension": dimension,
                "depth": arguments.depth,
                "p50_ms": 1e3 * float(np.quantile(seconds, 0.5)),
                "p99_ms": 1e3 * float(np.quantile(seconds, 0.99)),
                "same_ids": ids == found["cpu"],
            }
        )
    report.write("gpu-search", table, {"cpu_over_device": table[0]["p50_ms"] / table[1]["p50_ms"]})
    if not table[1]["same_ids"]:
        raise SystemExit("FAISS on the device and the CPU do not find the same documents")


def _mirror(dimension: int) -> FaissMirror:
    """Return a stand-in for those on a GPU."""
    return FaissMirror([FaissShard(faiss.IndexFlatIP(dimension))], most=10**6)


def _correctness(name: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Print the greatest differences of scores: from float32 on the CPU, and of the same pair in two batches."""
    reference = TransformerCrossEncoder.load(str(folder), precision="fp32", device="cpu")
    pairs = _pairs(min(64, arguments.pairs), seed=1)
    expected = np.concatenate([reference.run([pair]) for pair in pairs])
    reference.close()
    rows = report.Rows(f"gpu-correctness-{name}")
    for precision in ("fp32", *arguments.precisions):
        model = _load(folder, arguments.device, precision)
        alone = np.concatenate([model.run([pair]) for pair in pairs])
        together = np.concatenate([model.run(pairs[first::4]) for first in range(4)])
        again = np.empty_like(alone)
        again[np.concatenate([np.arange(first, len(pairs), 4) for first in range(4)])] = together
        rows.append(
            {
                "model": name,
                "precision": precision,
                "from_float32": float(np.abs(alone - expected).max()),
                "by_batch": float(np.abs(alone - again).max()),
                "rank_correlation": float(np.corrcoef(alone.argsort().argsort(), expected.argsort().argsort())[0, 1]),
            }
        )
        model.close()
    report.write(
        f"gpu-correctness-{name}", rows, {f"from_float32_{row['precision']}": row["from_float32"] for row in rows}
    )


def _latency(name: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Print the milliseconds of one call."""
    model = _load(folder, arguments.device, arguments.precisions[0])
    rows = report.Rows(f"gpu-latency-{name}")
    for count, tokens in ((1, 128), (1, 512), (ROUND, 128), (ROUND, 512), (32, 128)):
        pairs = _pairs(count, seed=2, lengths=(tokens - QUERY_TOKENS, tokens - QUERY_TOKENS))
        times = _times(partial(model.run, pairs), arguments.device, arguments.repeats)
        rows.append(
            {
                "model": name,
                "precision": arguments.precisions[0],
                "pairs": count,
                "tokens_each": tokens,
                "milliseconds": 1e3 * statistics.median(times),
            }
        )
    model.close()
    report.write(
        f"gpu-latency-{name}", rows, {"round_of_5_over_one": rows[2]["milliseconds"] / rows[0]["milliseconds"]}
    )


def _throughput(name: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Print pairs and tokens per second by batch tokens."""
    pairs, device = _pairs(arguments.pairs, seed=3, queries=8), arguments.device
    model = _load(folder, device, arguments.precisions[0])
    rows = report.Rows(f"gpu-throughput-{name}")
    for size in arguments.batch_tokens:
        batches = _batches(pairs, size)
        times = _times(lambda: [model.run(batch) for batch in batches], device, min(arguments.repeats, 3))  # noqa: B023
        rate = len(pairs) / statistics.median(times)
        rows.append(
            {
                "model": name,
                "batch_tokens": size,
                "pairs_per_second": rate,
                "tokens_per_second": rate * sum(map(len, pairs)) / len(pairs),
                "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if device.startswith("cuda") else "",
            }
        )
    model.close()
    rates = [row["pairs_per_second"] for row in rows]
    report.write(f"gpu-throughput-{name}", rows, {"best_over_smallest": max(rates) / rates[0]})


def _batches(pairs: Sequence[Pair], tokens: int) -> list[list[Pair]]:
    """Split pairs, sorted by length, into batches of at most so many tokens with their padding."""
    batches: list[list[Pair]] = [[]]
    for pair in sorted(pairs, key=len):
        if batches[-1] and len(pair) * (len(batches[-1]) + 1) > tokens:
            batches.append([])
        batches[-1].append(pair)
    return batches


def _unit(rng: np.random.Generator, count: int, dimension: int) -> NDArray[np.float32]:
    rows = rng.standard_normal((count, dimension), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def _times(run: Callable[[], object], device: str, repeats: int) -> list[float]:
    seconds = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        run()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds[2:]


def _pairs(count: int, *, seed: int, lengths: tuple[int, int] = LENGTHS, queries: int = 1) -> list[Pair]:
    """Pairs of random tokens, those of one query in a row."""
    rng = np.random.default_rng(seed)
    heads = rng.integers(10, 380, (queries, QUERY_TOKENS))
    pairs = []
    for number in range(count):
        query = number * queries // count
        document = rng.integers(10, 380, int(rng.integers(lengths[0], lengths[1] + 1)))
        ids = np.concatenate([heads[query], document])
        pairs.append(Pair(ids, False, (np.arange(len(ids)) >= QUERY_TOKENS).astype(np.int64), query=f"query {query}"))
    return pairs


def _load(folder: Path, device: str, precision: Precision, **options: Any) -> TransformerCrossEncoder:
    return TransformerCrossEncoder.load(str(folder), device=device, precision=precision, **options)


def _hardware(device: str) -> str:
    if not device.startswith("cuda"):
        return f"CPU, torch {torch.__version__}, {torch.get_num_threads()} threads"
    return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, CUDA {torch.version.cuda}"


def _bert(hidden: int, layers: int, heads: int) -> Callable[[Path, str], None]:
    options: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_labels": 1,
        "initializer_range": 0.1,
    }
    config = BertConfig(**options)
    return lambda folder, device: _write(
        folder, device, torch.float32, lambda: BertForSequenceClassification(config), tiny.word_pieces(types=True), 512
    )


def _qwen(hidden: int, layers: int, heads: int, intermediate: int, *, tied: bool) -> Callable[[Path, str], None]:
    config = Qwen3Config(
        vocab_size=151_669,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        tie_word_embeddings=tied,
        pad_token_id=0,
    )
    return lambda folder, device: _write(
        folder, device, torch.bfloat16, lambda: Qwen3ForCausalLM(config), tiny.byte_pairs(), 8_192
    )


def _write(
    folder: Path, device: str, dtype: torch.dtype, make: Callable[[], PreTrainedModel], tokenizer: Any, length: int
) -> None:
    """A model with random weights, made on the device, as a folder that can be loaded."""
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = make()
    finally:
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    tokenizer.model_max_length = length
    tokenizer.save_pretrained(folder)


SHAPES = {
    "smoke": Shape("bert", _bert(64, 2, 4)),
    "smoke-qwen": Shape("Qwen3-Reranker", _qwen(64, 2, 8, 128, tied=True)),
    "22M": Shape("bert", _bert(384, 6, 12)),
    "0.6B": Shape("Qwen3-Reranker", _qwen(1024, 28, 16, 3072, tied=True)),
    "8B": Shape("Qwen3-Reranker", _qwen(4096, 36, 32, 12_288, tied=False), checked=False),
}


if __name__ == "__main__":
    report.run(main)
