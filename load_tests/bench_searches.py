"""`make bench-searches`: searches of one index by several threads at a time, as in a retriever under load.

Each search finds the candidates of a new query in an index of 10,000 documents, with their vectors, BM25 and first
texts. As many threads compute as there are cores (`executors.computing`), or all of them, in turn within one run.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_limits

from boundarymorph.inference import executors
from boundarymorph.inference.models import available_cores
from boundarymorph.retrieval.index_retriever import _found
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.local.index import LocalIndex
from boundarymorph.retrieval.retriever import Search
from load_tests import report
from load_tests.costs import indexes

DOCUMENTS, DIMENSION, TEXTS = 10_000, 384, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depths", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 16])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    threadpool_limits(1, user_api="blas")  # as in the service
    rows, ratios = report.Rows("searches"), {}
    with tempfile.TemporaryDirectory() as folder:
        indexes(Path(folder), DOCUMENTS, [DIMENSION])
        catalog = LocalCatalog(Path(folder) / "indexes")
        index = catalog.get(f"d{DIMENSION}")
        for depth, threads in itertools.product(arguments.depths, arguments.threads):
            rates: dict[str, list[float]] = {"limited": [], "unlimited": []}
            for _, kind in itertools.product(range(arguments.turns), rates):
                places = available_cores() if kind == "limited" else 10 * threads
                with patch.object(executors, "_cores", threading.Semaphore(places)):
                    rates[kind].append(per_second(index, depth, threads, arguments.seconds))
            medians = {f"{kind}_per_second": statistics.median(measured) for kind, measured in rates.items()}
            rows.append({"depth": depth, "threads": threads, **medians})
            ratios[f"limited_over_unlimited_{depth}_{threads}"] = (
                medians["limited_per_second"] / medians["unlimited_per_second"]
            )
        catalog.close()
    report.write("searches", rows, ratios)


def per_second(index: LocalIndex, depth: int, threads: int, seconds: float) -> float:
    end = time.perf_counter() + seconds

    def search(number: int) -> int:
        rng, done = np.random.default_rng(number), 0
        while time.perf_counter() < end:
            query = f"how to read archive {rng.integers(2**60)}"
            vector = rng.standard_normal(DIMENSION)
            _found(index, Search(query, depth, vector, documents=TEXTS, directions=True))
            done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(search, range(threads))) / seconds


if __name__ == "__main__":
    report.run(main)
