"""`make bench-selection`: the incremental session beside the paper's literal algorithm, in one process.

Both run on one BLAS thread (the Makefile says so): a server runs many sessions side by side. The literal reference is
charged its N x N kernel, the session its bandwidth and everything else it computes. `--look-ahead` compares the session
with itself instead, with and without rows computed ahead, by CPU time in alternation.
"""

import argparse
import sys
import time
import tracemalloc
from itertools import product
from unittest.mock import patch

import numpy as np

from boundarymorph.selection import Config, Pool, SelectionSession
from boundarymorph.selection.geometry import median_distance
from boundarymorph.selection.methods import METHODS
from boundarymorph.selection.session import LOOK_AHEAD_FROM
from load_tests import report
from tests.selection import literal
from tests.selection.pools import Scores, clustered


def select(pool: Pool, scores: Scores, budget: int, k: int, config: Config | None = None) -> SelectionSession:
    session = SelectionSession(pool, budget=budget, k=k, config=config)
    while (asked := session.ask()).size:
        session.tell(asked, scores[asked])
    session.selection()
    return session


def seconds_of_select(pool: Pool, scores: Scores, budget: int, k: int) -> float:
    start = time.perf_counter()
    select(pool, scores, budget, k)
    return time.perf_counter() - start


def look_ahead_row(pool: Pool, scores: Scores, budget: int, k: int, method: str, repeats: int) -> dict[str, object]:
    """CPU seconds of the fastest of `repeats` selections with and without look-ahead, one after the other."""
    seconds: dict[int, list[float]] = {LOOK_AHEAD_FROM: [], sys.maxsize: []}
    for _ in range(repeats):
        for first, times in seconds.items():
            with patch("boundarymorph.selection.session.LOOK_AHEAD_FROM", first):
                start = time.process_time()
                select(pool, scores, budget, k, METHODS[method])
                times.append(time.process_time() - start)
    ahead, plain = (min(times) for times in seconds.values())
    return {
        "pool": len(pool),
        "dimension": pool.embeddings.shape[1],
        "budget": budget,
        "method": method,
        "cpu_seconds": ahead,
        "cpu_seconds_without": plain,
        "ratio": plain / ahead,
    }


def peak_bytes_of_select(pool: Pool, scores: Scores, budget: int, k: int) -> int:
    """Allocated at the worst moment, the pool (embeddings included) not counted."""
    tracemalloc.start()
    select(pool, scores, budget, k)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=int, default=10_000)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[384, 1024])
    parser.add_argument("--budgets", type=int, nargs="+", default=[25, 50, 100, 200, 500])
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--look-ahead", action="store_true", help="with and without it, of both methods")
    arguments = parser.parse_args()

    rows = report.Rows("selection_look_ahead" if arguments.look_ahead else "selection")
    for dimension in arguments.dimensions:
        pool, scores = clustered(arguments.pool, dimension, arguments.seed, np.float32)
        if arguments.look_ahead:
            for budget, method in product(arguments.budgets, METHODS):
                rows.append(look_ahead_row(pool, scores, budget, arguments.k, method, arguments.repeats))
            continue
        start = time.perf_counter()
        matrix = literal.augmented_kernel(pool, median=median_distance(pool.embeddings))
        kernel_seconds = time.perf_counter() - start
        for budget in arguments.budgets:
            session = select(pool, scores, budget, arguments.k)
            fast = min(seconds_of_select(pool, scores, budget, arguments.k) for _ in range(arguments.repeats))
            start = time.perf_counter()
            reference = literal.run(pool, scores, budget, arguments.k, matrix=matrix)
            loop_seconds = time.perf_counter() - start
            peak = peak_bytes_of_select(pool, scores, budget, arguments.k)
            rows.append(
                {
                    "pool": arguments.pool,
                    "dimension": dimension,
                    "budget": budget,
                    "fast_seconds": fast,
                    "literal_seconds": kernel_seconds + loop_seconds,
                    "ratio": (kernel_seconds + loop_seconds) / fast,
                    "ratio_without_kernel": loop_seconds / fast,
                    "same_picks": [o.document for o in session.history] == reference.picks
                    and session.selection().documents.tolist() == reference.selected,
                    "peak_bytes": peak,
                    "peak_over_8BN": peak / (8 * budget * arguments.pool),
                }
            )
        del matrix
    if arguments.look_ahead:
        report.write("selection_look_ahead", rows, {})
        return
    ratios = {f"literal_over_fast_d{row['dimension']}_B{row['budget']}": float(row["ratio"]) for row in rows}
    report.write("selection", rows, ratios)


if __name__ == "__main__":
    report.run(main)
