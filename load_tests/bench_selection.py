"""`make bench-selection`: the incremental session and the paper's literal algorithm, in one process.

Both run on one BLAS thread (set by the Makefile), as a server runs many sessions side by side. The time of the literal
reference includes its N x N kernel, that of the session its bandwidth and everything else it computes. `--look-ahead`
compares the session with and without rows computed ahead instead, by CPU time, in alternation. `--beside COMMIT`
compares sessions in the rounds of `--rounds` with those of another commit, from a checkout of it, in turn.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np

from boundarymorph.selection import Config, Pool, SelectionSession
from boundarymorph.selection.geometry import median_distance
from boundarymorph.selection.methods import DEFAULT, METHODS, PAPER
from boundarymorph.selection.rounds import growing
from boundarymorph.selection.session import LOOK_AHEAD_FROM
from load_tests import report
from load_tests.processes import checkout
from tests.selection import literal
from tests.selection.pools import Scores, clustered, play


def select(pool: Pool, scores: Scores, budget: int, k: int, config: Config | None = None) -> SelectionSession:
    session = play(SelectionSession(pool, budget=budget, k=k, config=config), scores)
    session.selection()
    return session


def seconds_of_select(pool: Pool, scores: Scores, budget: int, k: int) -> float:
    start = time.perf_counter()
    select(pool, scores, budget, k)
    return time.perf_counter() - start


def look_ahead_row(pool: Pool, scores: Scores, budget: int, k: int, method: str, repeats: int) -> dict[str, object]:
    """Return CPU seconds of the fastest of `repeats` selections with and without look-ahead, in alternation."""
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


class Worker:
    """A process that runs sessions of the service from one source tree, on one BLAS thread."""

    def __init__(self, tree: Path, pool: dict[str, int]) -> None:
        path = os.pathsep.join([str(tree / "service"), str(Path.cwd())])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "load_tests.selection_worker"],
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._send(pool)

    def seconds(self, session: dict[str, object]) -> float:
        """Return the CPU seconds of one session."""
        self._send(session)
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()

    def _send(self, line: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()


def round_sizes(rounds: str, budget: int) -> list[int]:
    """Documents of each round: "auto", as the service has them by default, or of this size."""
    sizes: list[int] = []
    while (left := budget - sum(sizes)) > 0:
        sizes.append(growing(sum(sizes), left, budget) if rounds == "auto" else min(int(rounds), left))
    return sizes


def beside_rows(tree: Path, arguments: argparse.Namespace, dimension: int) -> Iterator[dict[str, object]]:
    """Yield CPU seconds of the fastest of `repeats` sessions of each version, in alternation."""
    pool = {"size": arguments.pool, "dimension": dimension, "seed": arguments.seed}
    now, before = Worker(Path.cwd(), pool), Worker(tree, pool)
    methods = ((DEFAULT, True), (DEFAULT, False), (PAPER, False))
    for (method, bm25), rounds, budget in product(methods, arguments.rounds, arguments.budgets):
        session = {"method": method, "bm25": bm25, "k": arguments.k, "rounds": round_sizes(rounds, budget)}
        runs = [(before.seconds(session), now.seconds(session)) for _ in range(arguments.repeats)]
        old, new = (min(seconds) for seconds in zip(*runs, strict=True))
        row = {"pool": arguments.pool, "dimension": dimension, **session, "rounds": rounds, "budget": budget}
        yield {**row, "cpu_seconds_before": old, "cpu_seconds": new, "ratio": old / new}
    now.close()
    before.close()


def peak_bytes_of_select(pool: Pool, scores: Scores, budget: int, k: int) -> int:
    """Return the peak of allocated memory without the pool and its embeddings."""
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
    parser.add_argument("--beside", metavar="COMMIT", help="sessions in rounds beside those of another commit")
    parser.add_argument("--rounds", nargs="+", default=["auto", "5"], help="with --beside: documents of a round")
    arguments = parser.parse_args()

    if arguments.beside:
        rows = report.Rows("selection_beside")
        with checkout(arguments.beside) as tree:
            for dimension in arguments.dimensions:
                for row in beside_rows(tree, arguments, dimension):
                    rows.append(row)
        report.write("selection_beside", rows, {})
        return
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
