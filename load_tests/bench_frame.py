"""The cost of a retriever in another process, for pools of 10,000 with their vectors.

python -m load_tests.bench_frame

The index holds only the pool, so that hardly anything is searched and the transfer is measured. Each query is answered
in this process, and by a `boundarymorph retriever` over a local socket; then the parts of the transfer are measured
separately.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from boundarymorph.retrieval import frame
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.retrieval.retriever import Search
from load_tests import processes, report
from load_tests.bench_retrieval import clustered

NAME = "bench"


async def measured(folder: Path, dimension: int, arguments: argparse.Namespace) -> dict[str, Any]:
    catalog = LocalCatalog(folder / "indexes")
    index = catalog.create(NAME, encoder=None, dimension=dimension, lexical=False)
    start = 0
    for rows in clustered(arguments.depth, dimension, 100, seed=0):
        index.upsert([Document(f"document-{number}", "") for number in range(start, start + len(rows))], rows)
        start += len(rows)
    queries = next(clustered(arguments.queries, dimension, 100, seed=0, first=10**6))
    here, there = [], []
    with processes.retriever(folder) as server:
        local, remote = IndexRetriever(catalog, None), RemoteRetriever(server.url)
        for turn, query in enumerate([queries[0], *queries]):
            begun = time.perf_counter()
            one = await local.retrieve(NAME, Search("", arguments.depth, query))
            between = time.perf_counter()
            other = await remote.retrieve(NAME, Search("", arguments.depth, query))
            ended = time.perf_counter()
            np.testing.assert_array_equal(one.pool.embeddings, other.pool.embeddings)
            if turn:  # the first turn is a warm-up
                here.append(between - begun)
                there.append(ended - between)
        await local.close()
        await remote.close()
    catalog.close()
    sent = frame.encode_pool(one)
    way = np.array(there) - np.array(here)
    return {
        "depth": arguments.depth,
        "dimension": dimension,
        "frame_MB": len(sent) / 1e6,
        "here_p50_ms": 1e3 * float(np.percentile(here, 50)),
        "there_p50_ms": 1e3 * float(np.percentile(there, 50)),
        "way_p50_ms": 1e3 * float(np.percentile(way, 50)),
        "way_p99_ms": 1e3 * float(np.percentile(way, 99)),
        "encode_p50_ms": _milliseconds(lambda: frame.encode_pool(one), arguments.queries),
        "decode_p50_ms": _milliseconds(lambda: frame.decode_pool(sent), arguments.queries),
    }


def _milliseconds(action: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begun)
    return 1e3 * float(np.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=10_000)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[384, 1024])
    parser.add_argument("--queries", type=int, default=50)
    arguments = parser.parse_args()
    rows = report.Rows("frame")
    for dimension in arguments.dimensions:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(uvloop.run(measured(Path(folder), dimension, arguments)))  # uvicorn runs a gateway with uvloop
    report.write(
        "frame", rows, {f"there_over_here_{row['dimension']}": row["there_p50_ms"] / row["here_p50_ms"] for row in rows}
    )


if __name__ == "__main__":
    report.run(main)
