"""Measure sessions on one thread, without a service: `make bench NAME=selection`.

*literal* compares the paper's method as it runs here with its pseudocode (`tests/selection/literal.py`), whose time
includes its N x N kernel, in one process. *sessions* has the CPU time of whole sessions, in rounds as the service makes
them, from the pool to the expected loss. With `--beside COMMIT` each session runs in the version of that
commit too, in turn.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy; a server runs many sessions side by side

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from boundarymorph.selection import Pool
from boundarymorph.selection.methods import METHODS, PAPER
from load_tests import report
from load_tests.processes import checkout, source
from tests.selection import literal
from tests.selection.pools import Scores, clustered, play

TERMS, SHARE = 8, 0.2  # words of a query, and share of the documents with each


def session(pool: Pool, budget: int, k: int, method: str) -> Any:
    """Return a session, also in a version before sessions were composed."""
    selection = import_module("boundarymorph.selection")
    if hasattr(selection, "Session"):
        create = getattr(selection.Session, "create", None) or selection.Session.of  # its name in earlier versions
        return create(pool, budget=budget, k=k, method=METHODS[method])
    return selection.SelectionSession(pool, budget=budget, k=k, config=METHODS[method])


def literal_rows(size: int, dimension: int, budgets: list[int], k: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Yield seconds of the session and of the pseudocode, and whether their picks are equal."""
    from boundarymorph.selection.process import median_distance  # a version beside this one may lack it

    pool, scores = clustered(size, dimension, 2, np.float32)
    start = time.perf_counter()
    matrix = literal.augmented_kernel(pool, median=median_distance(pool.embeddings))
    kernel = time.perf_counter() - start
    for budget in budgets:
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            played_out = play(session(pool, budget, k, PAPER), scores)
            chosen = played_out.selection().documents.tolist()
            seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        reference = literal.run(pool, scores, budget, k, matrix=matrix)
        whole = kernel + time.perf_counter() - start
        same = [each.document for each in played_out.history] == reference.picks and chosen == reference.selected
        row = {"N": size, "d": dimension, "B": budget, "seconds": min(seconds), "literal_seconds": whole}
        yield row | {"ratio": whole / min(seconds), "same_picks": same}


def with_words(size: int, dimension: int, seed: int) -> tuple[Pool, Scores]:
    """Return a pool with BM25 and words of the query, and the cross-encoder's scores."""
    pool, scores = clustered(size, dimension, seed, np.float32)
    rng = np.random.default_rng(seed)
    features = {"bm25": np.maximum(rng.normal(size=size) + 2 * scores - 1, 0.0)}
    return replace(pool, features=features, terms=rng.uniform(size=(TERMS, size)) < SHARE), scores


def played(pool: Pool, scores: Scores, budget: int, k: int, method: str, rounds: int | None) -> float:
    """Return the CPU seconds of one session.

    `rounds` is None for growing ones, the only ones of older versions.
    """
    start = time.process_time()
    one = session(pool, budget, k, method)
    while (left := budget - one.spent) > 0:
        if hasattr(one, "ask_round"):
            asked = one.ask_round(rounds)
        else:
            growing = import_module("boundarymorph.selection.rounds").growing
            asked = one.ask(growing(one.known, left, budget))
        one.tell(asked, scores[asked])
    one.selection()
    one.expected_loss()
    return time.process_time() - start


def session_rows(given: argparse.Namespace, tree: Path | None) -> Iterator[dict[str, Any]]:
    """Yield the median CPU time of a session of each method, and of the version beside it.

    Each version has a process, which reads a session from a line of JSON, and answers its CPU seconds.
    """
    for size, dimension in product(given.pools, given.dimensions):
        trees = {"": None} if tree is None else {"": None, "before_": tree}
        command = [sys.executable, "-m", "load_tests.bench_selection", "--worker", str(size), str(dimension)]
        workers = {
            name: subprocess.Popen(command, env=source(each), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for name, each in trees.items()
        }
        for method, rounds, budget in product(METHODS, given.rounds, given.budgets):
            session = {"method": method, "budget": budget, "k": given.k, "rounds": rounds or None}
            runs: dict[str, list[float]] = {name: [] for name in workers}
            for _, (name, process) in product(range(given.repeats), workers.items()):
                assert process.stdin is not None and process.stdout is not None
                print(json.dumps(session), file=process.stdin, flush=True)
                runs[name].append(1e3 * float(process.stdout.readline()))
            medians = {f"{name}cpu_ms": statistics.median(times) for name, times in runs.items()}
            row = {"N": size, "d": dimension, "method": method, "rounds": rounds or "growing", "B": budget, **medians}
            yield row | {"sessions_a_second_and_core": 1e3 / medians["cpu_ms"]}
        for process in workers.values():
            process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", type=int, nargs="+", default=[1_000, 10_000], help="the largest: literal")
    parser.add_argument("--dimensions", type=int, nargs="+", default=[384, 1024])
    parser.add_argument("--budgets", type=int, nargs="+", default=[25, 50, 100], help="of sessions")
    parser.add_argument("--rounds", type=int, nargs="+", default=[0, 3], help="of sessions; 0: rounds that grow")
    parser.add_argument("--literal-budgets", type=int, nargs="*", default=[25, 100, 500])
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--beside", metavar="COMMIT", help="or the folder of a checkout")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        earlier: Any = Pool
        if not hasattr(Pool, "from_embeddings"):  # its name in earlier versions is `of`
            earlier.from_embeddings = earlier.of
        pool, scores = with_words(given.worker[0], given.worker[1], seed=2)
        for line in sys.stdin:
            print(played(pool, scores, **json.loads(line)), flush=True)
        return
    rows = report.Rows("selection")
    with checkout(given.beside) as tree:
        for row in session_rows(given, tree):
            rows.append(row)
    for dimension in given.dimensions:
        for row in literal_rows(max(given.pools), dimension, given.literal_budgets, given.k, min(given.repeats, 5)):
            rows.append(row)
    rows.write()


if __name__ == "__main__":
    report.run(main)
