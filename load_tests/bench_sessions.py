"""`make bench-sessions`: sessions a second and core, and what of a request is not scoring.

Sessions of the default method in its own rounds, from the pool to the answer, in one process on one BLAS thread, as a
gateway runs them side by side: by CPU time, so that other work on the machine matters less. Then whole requests to a
service with the embedded scorer. What a request spends outside of the scorer is the time of the gateway: receiving and
parsing, selecting, answering, and waiting for a core.
"""

import argparse
import itertools
import os
import statistics
from collections.abc import Iterator
from pathlib import Path

from boundarymorph.selection.methods import DEFAULT
from load_tests import report
from load_tests.bench_select import passages, request, services, timed
from load_tests.bench_selection import Worker, round_sizes

WORDS = 150  # of a passage


def session_rows(arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    for size, dimension in itertools.product(arguments.pools, arguments.dimensions):
        worker = Worker(Path.cwd(), {"size": size, "dimension": dimension, "seed": 2})
        for rounds, budget in itertools.product(arguments.rounds, arguments.budgets):
            sizes = round_sizes(rounds, budget)
            session = {"method": DEFAULT, "bm25": True, "k": arguments.k, "rounds": sizes}
            seconds = statistics.median(worker.seconds(session) for _ in range(arguments.repeats))
            yield {
                "pool": size,
                "dimension": dimension,
                "budget": budget,
                "rounds": rounds if rounds == "auto" else int(rounds),
                "round_trips": len(sizes),
                "cpu_ms": seconds * 1e3,
                "sessions_a_second_and_core": 1 / seconds,
            }
        worker.close()


def request_rows(arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    os.environ["BOUNDARYMORPH_CACHE__ENABLED"] = "false"  # of the service: every repetition is to be scored
    with services(None) as (client,):
        for size, rounds, budget in itertools.product(arguments.pools, arguments.rounds, arguments.budgets):
            batch_size = rounds if rounds == "auto" else int(rounds)
            body = request(
                passages(size, WORDS), arguments.request_dimension, budget=budget, batch_size=batch_size, method=DEFAULT
            )
            runs = [timed(client, body) for _ in range(arguments.requests)]
            total, stages = sorted(runs, key=lambda run: run[0] - run[1]["score"])[len(runs) // 2]
            rest = total - stages["score"]
            yield {
                "pool": size,
                "budget": budget,
                "batch_size": batch_size,
                "total_ms": total,
                **{f"{stage}_ms": stages[stage] for stage in ("receive", "parse", "retrieve", "select", "score")},
                "not_scoring_ms": rest,
                "not_scoring_share": rest / total,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pools", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[384, 1_024], help="of the sessions")
    parser.add_argument("--budgets", type=int, nargs="+", default=[25, 50, 100])
    parser.add_argument("--rounds", nargs="+", default=["auto"], help='documents of a round, or "auto"')
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=9, help="sessions of each setting, of which the median is taken")
    parser.add_argument("--requests", type=int, default=5, help="requests of each setting; 0 leaves the service out")
    parser.add_argument("--request-dimension", type=int, default=384)
    arguments = parser.parse_args()

    rows = report.Rows("sessions")
    for row in session_rows(arguments):
        rows.append(row)
    report.write("sessions", rows, {})
    if arguments.requests:
        rows = report.Rows("sessions_requests")
        for row in request_rows(arguments):
            rows.append(row)
        cells = {f"not_scoring_N{row['pool']}_B{row['budget']}_round_{row['batch_size']}": row for row in rows}
        report.write("sessions_requests", rows, {name: row["not_scoring_share"] for name, row in cells.items()})


if __name__ == "__main__":
    report.run(main)
