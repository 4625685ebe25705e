"""The cost of building, storing and searching the kinds of index over many vectors, compared with plain FAISS.

python -m load_tests.bench_retrieval --documents 1000000 --dimension 384

The vectors are clustered and made in blocks; the queries are further draws of the same kind that are not documents.
Each kind is built in its own process, through the document store, and searched by a `boundarymorph retriever`: a search
sends the ids, the vectors and the exact scores of the nearest over a socket. "Plain FAISS" does the same in this
process, without a socket: IndexFlatIP, and the ids and rows of the matrix. "milvus" is milvus-lite, which also sends
ids, vectors and scores over a socket. All answer each query in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval import retriever
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.halves import unit_from_halves
from boundarymorph.retrieval.local.catalog import KINDS, LocalCatalog
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.retrieval.vectors import exact_scores
from load_tests import processes, report

BLOCK = 8_192
MEBIBYTE = 2**20
NAME = "bench"
MILVUS = "milvus"
MILVUS_BATCH = 2_000  # documents of one insert

Search = Callable[[NDArray[np.float32]], Awaitable[tuple[list[str], NDArray[np.float32]]]]


def clustered(count: int, dimension: int, clusters: int, seed: int, first: int = 0) -> Iterator[NDArray[np.float32]]:
    """Yield blocks of unit rows: centres of unequal weight, each with a cloud that spreads mostly along a tenth of the
    axes.

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


def documents(arguments: argparse.Namespace) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
    start = 0
    for rows in clustered(arguments.documents, arguments.dimension, arguments.clusters, arguments.seed):
        yield [f"document-{number}" for number in range(start, start + len(rows))], rows
        start += len(rows)


def build(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write all documents, then build the structure that is searched."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = (_build_milvus if arguments.kind == MILVUS else _build_ours)(arguments)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    peak += resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    files = [path for path in arguments.folder.rglob("*") if path.is_file()]
    return seconds | {
        "build_peak_MiB": peak // 1024,
        "disk_MiB": sum(path.stat().st_size for path in files) // MEBIBYTE,
    }


def _build_ours(arguments: argparse.Namespace) -> dict[str, Any]:
    catalog = LocalCatalog(arguments.folder / "indexes")
    index = catalog.create(NAME, encoder=None, dimension=arguments.dimension, kind=arguments.kind, lexical=False)
    writing = 0.0
    for ids, rows in documents(arguments):
        start = time.perf_counter()
        index.upsert([Document(id, "text of " + id) for id in ids], rows)
        writing += time.perf_counter() - start
    start = time.perf_counter()
    index.compact()
    building = time.perf_counter() - start
    catalog.close()
    return {"write_seconds": writing, "build_seconds": building}


def _build_milvus(arguments: argparse.Namespace) -> dict[str, Any]:
    from pymilvus import DataType

    client = _milvus(arguments.folder)
    schema = client.create_schema()
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=arguments.dimension)
    wanted = client.prepare_index_params()
    wanted.add_index("vector", index_type="FLAT", metric_type="IP")
    client.create_collection(NAME, schema=schema, index_params=wanted)
    writing = 0.0
    for ids, rows in documents(arguments):
        start = time.perf_counter()
        for first in range(0, len(ids), MILVUS_BATCH):
            part = slice(first, first + MILVUS_BATCH)
            client.insert(
                NAME, [{"id": id, "vector": row.tolist()} for id, row in zip(ids[part], rows[part], strict=True)]
            )
        writing += time.perf_counter() - start
    start = time.perf_counter()
    client.flush(NAME)
    client.load_collection(NAME)
    building = time.perf_counter() - start
    client.close()
    return {"write_seconds": writing, "build_seconds": building}


def _milvus(folder: Path) -> Any:
    from pymilvus import MilvusClient

    return MilvusClient(str(folder / "milvus.db"))


async def search(arguments: argparse.Namespace) -> dict[str, Any]:
    """Search what was built, and plain FAISS over the same vectors."""
    if arguments.kind == MILVUS:
        client = _milvus(arguments.folder)
        client.load_collection(NAME)

        async def ask_milvus(query: NDArray[np.float32]) -> tuple[list[str], NDArray[np.float32]]:
            (found,) = client.search(NAME, [query.tolist()], limit=arguments.depth, output_fields=["vector"])
            return [hit["id"] for hit in found], np.array([hit["entity"]["vector"] for hit in found], np.float32)

        return await compared(arguments, ask_milvus)

    with processes.retriever(arguments.folder) as server:
        remote = RemoteRetriever(server.url, timeout=600)
        orders = []

        async def ask(query: NDArray[np.float32]) -> tuple[list[str], NDArray[np.float32]]:
            pool = (await remote.retrieve(NAME, retriever.Search("", arguments.depth, query))).pool
            orders.append(bool((np.diff(pool.scores) <= 0).all()))
            return list(pool.ids), pool.embeddings

        own, mapped = server.resident("RssAnon"), server.resident("RssFile")
        row = await compared(arguments, ask)
        row |= {
            "own_MiB": server.resident("RssAnon") - own,
            "mapped_MiB": server.resident("RssFile") - mapped,
            "in_order": all(orders),
        }
        await remote.close()
    catalog = LocalCatalog(arguments.folder / "indexes")
    structure = catalog.describe(NAME).structure
    catalog.close()
    recall = {} if structure is None else structure.recall
    return row | {"told_recall": recall.get(max(recall, default=0), 1.0)}


async def compared(arguments: argparse.Namespace, ask: Search) -> dict[str, Any]:
    queries = next(clustered(BLOCK, arguments.dimension, arguments.clusters, arguments.seed, first=10**6))
    queries = queries[: arguments.queries]
    start = time.perf_counter()
    await ask(queries[-1])
    opening = time.perf_counter() - start

    matrix = np.concatenate([rows for _, rows in documents(arguments)])
    plain = faiss.IndexFlatIP(arguments.dimension)
    plain.add(matrix)
    names = [f"document-{number}" for number in range(arguments.documents)]
    ours, theirs, recalls, their_recalls, same = [], [], [], [], True
    for query in queries:
        start = time.perf_counter()
        _, (rows,) = plain.search(query[None], arguments.depth)
        ids, vectors = [names[row] for row in rows], matrix[rows]
        theirs.append(time.perf_counter() - start)
        start = time.perf_counter()
        found, their = await ask(query)
        ours.append(time.perf_counter() - start)
        order = np.argsort(-exact_scores(matrix, query), kind="stable")[: arguments.depth]
        exact = {names[row] for row in order}
        recalls.append(len(exact & set(found)) / len(exact))
        their_recalls.append(len(exact & set(ids)) / len(exact))
        same &= np.array_equal(their, matrix[[int(id.rpartition("-")[2]) for id in found]])
        assert vectors.shape == their.shape
    return {
        "open_seconds": opening,
        "p50_ms": 1e3 * float(np.percentile(ours, 50)),
        "p99_ms": 1e3 * float(np.percentile(ours, 99)),
        "faiss_p50_ms": 1e3 * float(np.percentile(theirs, 50)),
        "faiss_p99_ms": 1e3 * float(np.percentile(theirs, 99)),
        "recall": float(np.mean(recalls)),
        "worst_recall": float(np.min(recalls)),
        "faiss_recall": float(np.mean(their_recalls)),
        "true_vectors": same,
    }


def in_another_process(step: str, kind: str, folder: Path, given: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "load_tests.bench_retrieval", "--step", step, "--kind", kind]
    output = subprocess.run([*command, "--folder", str(folder), *given], check=True, stdout=subprocess.PIPE).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--clusters", type=int, default=2_000)
    parser.add_argument("--depth", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, MILVUS], default=[*KINDS, MILVUS])
    parser.add_argument("--seed", type=int, default=0)
    for internal in ("--step", "--kind", "--folder"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        arguments.folder = Path(arguments.folder)
        print(json.dumps(build(arguments) if arguments.step == "build" else asyncio.run(search(arguments))))
        return

    given = [
        f"--{name}={getattr(arguments, name)}"
        for name in ("documents", "dimension", "clusters", "depth", "queries", "seed")
    ]
    rows = report.Rows("retrieval")
    unlike = {"own_MiB": 0, "mapped_MiB": 0, "in_order": True, "told_recall": 1.0}  # what milvus does not tell
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            row = {"kind": kind, "documents": arguments.documents, "depth": arguments.depth, "cores": os.cpu_count()}
            row |= in_another_process("build", kind, Path(folder), given)
            row |= unlike | in_another_process("search", kind, Path(folder), given)
            rows.append(row)
    ratios = {f"bare_faiss_over_ours_{row['kind']}": row["faiss_p50_ms"] / row["p50_ms"] for row in rows}
    if "flat" in arguments.kinds:
        ratios["bare_faiss_over_ours"] = ratios["bare_faiss_over_ours_flat"]
    report.write("retrieval", rows, ratios)


if __name__ == "__main__":
    report.run(main)
