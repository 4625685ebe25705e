"""The gain from searches that read the rows together if they wait at the same time.

python -m load_tests.bench_products

Threads compute products of one matrix with their own queries, without a pause: together (`SharedProducts`, as in a flat
index) and separately, in turn within one run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from boundarymorph.inference.models import available_cores
from boundarymorph.retrieval.local.products import SharedProducts
from load_tests import report

Product = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def per_second(product: Product, threads: int, seconds: float, dimension: int) -> float:
    end = time.perf_counter() + seconds

    def ask(number: int) -> int:
        query = np.random.default_rng(number).standard_normal(dimension, dtype=np.float32)
        done = 0
        while time.perf_counter() < end:
            product(query)
            done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(ask, range(threads))) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    threadpool_limits(1, user_api="blas")  # as in the service
    matrix = np.random.default_rng(0).standard_normal((arguments.documents, arguments.dimension), dtype=np.float32)
    together = SharedProducts(matrix, slots=available_cores())
    rows = report.Rows("products")
    for threads in arguments.threads:
        alone, shared = (
            per_second(product, threads, arguments.seconds, arguments.dimension)
            for product in (lambda query: matrix @ query, lambda query: together(query, len(matrix)))
        )
        rows.append({"threads": threads, "alone_per_second": alone, "together_per_second": shared})
    ratios = {
        f"together_over_alone_{row['threads']}": row["together_per_second"] / row["alone_per_second"] for row in rows
    }
    report.write("products", rows, ratios)


if __name__ == "__main__":
    report.run(main)
