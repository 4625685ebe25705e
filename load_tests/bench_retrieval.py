"""Kinds of index over many vectors: what they cost to build, to keep and to search, beside plain FAISS in one process.

python -m load_tests.bench_retrieval --documents 1000000 --dimension 384

The vectors are clustered and made in blocks; the queries are further draws of the same kind and no documents. Each kind
is built in a process of its own and searched in another one. A search returns the ids, the vectors and the exact scores
of the nearest; so does "plain FAISS": IndexFlatIP, and the rows of the matrix. Both see each query in turn.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.halves import unit_from_halves
from boundarymorph.retrieval.index import exact_scores, scan
from boundarymorph.retrieval.segment import Block
from boundarymorph.retrieval.segmented import SegmentedIndex
from boundarymorph.retrieval.snapshots import Content, Snapshots
from boundarymorph.retrieval.structures import KINDS
from load_tests import report

BLOCK = 8_192
MEBIBYTE = 2**20


def clustered(count: int, dimension: int, clusters: int, seed: int, first: int = 0) -> Iterator[NDArray[np.float32]]:
    """Unit rows by blocks: centres of unequal weight, and about each a cloud of which a tenth of the axes hold most.

    first: number of the first block; the same seed and numbers make the same rows.
    """
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((clusters, dimension), dtype=np.float32)
    weights = 1 / np.arange(1, clusters + 1) ** 0.5
    spread = np.where(np.arange(dimension) < dimension / 10, 2.0, 0.5).astype(np.float32)
    rotation = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0].astype(np.float32)
    for number, start in enumerate(range(0, count, BLOCK), start=first):
        rng = np.random.default_rng((seed, number))
        size = min(BLOCK, count - start)
        noise = (rng.standard_normal((size, dimension), dtype=np.float32) * spread) @ rotation
        rows = centres[rng.choice(clusters, size=size, p=weights / weights.sum())] + noise
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        yield unit_from_halves(rows.astype(np.float16))


def documents(arguments: argparse.Namespace) -> Iterator[Block]:
    start = 0
    for rows in clustered(arguments.documents, arguments.dimension, arguments.clusters, arguments.seed):
        numbers = np.arange(start, start + len(rows))
        yield Block([f"document-{number}" for number in numbers], rows, numbers + 1)
        start += len(rows)


def build(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write a snapshot of the kind."""
    snapshots = Snapshots(arguments.folder / "index.sqlite3")
    making = 0.0

    def timed() -> Iterator[Block]:
        nonlocal making
        blocks = documents(arguments)
        while True:
            begun = time.perf_counter()
            block = next(blocks, None)
            making += time.perf_counter() - begun
            if block is None:
                return
            yield block

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    with snapshots.lock():
        name = snapshots.write(Content(arguments.kind, arguments.dimension, arguments.documents, 1, timed()))
    seconds = time.perf_counter() - start - making
    files = (arguments.folder / "index.snapshots" / name).iterdir()
    return {
        "build_seconds": seconds,
        "build_peak_MiB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024,
        "disk_MiB": sum(file.stat().st_size for file in files) // MEBIBYTE,
    }


def resident(kind: str) -> int:
    """MiB of this process that are its own (RssAnon) or of mapped files (RssFile)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{kind}:")[1].split()[0]) // 1024


def search(arguments: argparse.Namespace) -> dict[str, Any]:
    """Open the snapshot and search it, then plain FAISS over the same vectors beside it."""
    queries = next(clustered(BLOCK, arguments.dimension, arguments.clusters, arguments.seed, first=10**6))
    queries = queries[: arguments.queries]
    faiss.knn(queries, queries, 1)  # its threads and buffers are not the index's
    own, mapped = resident("RssAnon"), resident("RssFile")
    start = time.perf_counter()
    segment = Snapshots(arguments.folder / "index.sqlite3").newest()
    opening = time.perf_counter() - start
    assert segment is not None
    index = SegmentedIndex(arguments.dimension, segment)
    for query in queries[:5]:
        index.search(query, arguments.depth)
    own, mapped = resident("RssAnon") - own, resident("RssFile") - mapped

    matrix = np.concatenate([block.vectors for block in documents(arguments)])
    plain = faiss.IndexFlatIP(arguments.dimension)
    plain.add(matrix)
    names = [f"document-{number}" for number in range(arguments.documents)]
    everything = np.ones(len(matrix), np.bool_)
    ours, theirs, recalls, their_recalls, agrees = [], [], [], [], True
    for query in queries:
        start = time.perf_counter()
        _, (rows,) = plain.search(query[None], arguments.depth)
        ids, vectors = [names[row] for row in rows], matrix[rows]
        theirs.append(time.perf_counter() - start)
        start = time.perf_counter()
        found = index.search(query, arguments.depth)
        ours.append(time.perf_counter() - start)
        candidates = scan(matrix, everything, len(matrix), query, arguments.depth)
        order = np.argsort(-exact_scores(matrix[candidates], query), kind="stable")[: arguments.depth]
        exact = {names[row] for row in candidates[order]}
        recalls.append(len(exact & set(found.ids)) / len(exact))
        their_recalls.append(len(exact & set(ids)) / len(exact))
        agrees &= found.vectors.shape == vectors.shape and bool((np.diff(found.scores) <= 0).all())
    return {
        "open_seconds": opening,
        "own_MiB": own,
        "mapped_MiB": mapped,
        "p50_ms": 1e3 * float(np.percentile(ours, 50)),
        "p99_ms": 1e3 * float(np.percentile(ours, 99)),
        "faiss_p50_ms": 1e3 * float(np.percentile(theirs, 50)),
        "faiss_p99_ms": 1e3 * float(np.percentile(theirs, 99)),
        "recall": float(np.mean(recalls)),
        "worst_recall": float(np.min(recalls)),
        "faiss_recall": float(np.mean(their_recalls)),
        "told_recall": segment.info.recall.get(max(segment.info.recall, default=0), 1.0),
        "complete_and_in_order": agrees,
    }


def in_another_process(step: str, kind: str, folder: Path, given: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "load_tests.bench_retrieval", "--step", step, "--kind", kind]
    output = subprocess.run([*command, "--folder", str(folder), *given], check=True, stdout=subprocess.PIPE).stdout
    result: dict[str, Any] = json.loads(output)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--clusters", type=int, default=2_000)
    parser.add_argument("--depth", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    for internal in ("--step", "--kind", "--folder"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        arguments.folder = Path(arguments.folder)
        print(json.dumps({"build": build, "search": search}[arguments.step](arguments)))
        return

    given = [
        f"--{name}={getattr(arguments, name)}"
        for name in ("documents", "dimension", "clusters", "depth", "queries", "seed")
    ]
    rows = []
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            row = {"kind": kind, "documents": arguments.documents, "depth": arguments.depth, "cores": os.cpu_count()}
            row |= in_another_process("build", kind, Path(folder), given)
            row |= in_another_process("search", kind, Path(folder), given)
            rows.append(row)
    ratios = {f"faiss_over_{row['kind']}_p50": row["faiss_p50_ms"] / row["p50_ms"] for row in rows}
    report.write("retrieval", rows, ratios)


if __name__ == "__main__":
    main()
