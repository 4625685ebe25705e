"""Kill and restart one of two scorers under load: `make bench NAME=failover`.

This measures the times of rounds. Sessions use the gateway's own client. There is one row per window: one scorer is
killed with -9 at the end of the second and restarted at the end of the fourth.
"""

import argparse
import asyncio
import contextlib
import itertools
import time
from urllib.parse import urlsplit

from boundarymorph.scoring.remote import RemoteScorer, parse
from load_tests import report
from load_tests.processes import Server, serving, stopped
from load_tests.workload import QUERIES, passages

WINDOWS = ("two", "two", "one killed", "one", "one, other starts", "two", "two")
BATCH_SIZE = 5


async def measured(first: Server, second: Server, sessions: int, seconds: float) -> None:
    """Run the sessions while the second scorer is killed and restarted, and report."""
    remote = RemoteScorer([parse(first.url), parse(second.url)])
    finished: list[float] = []
    failures: list[Exception] = []
    offered = itertools.cycle(passages(500))

    async def session(query: str) -> None:
        while True:
            start = time.perf_counter()
            try:
                await remote.score(query, list(itertools.islice(offered, BATCH_SIZE)))
            except Exception as error:
                failures.append(error)
            else:
                finished.append(time.perf_counter() - start)

    running = [asyncio.create_task(session(QUERIES[number % len(QUERIES)])) for number in range(sessions)]
    rows = report.Rows("failover")
    with contextlib.ExitStack() as stack:
        for number, scorers in enumerate(WINDOWS):
            finished.clear()
            failures.clear()
            await asyncio.sleep(seconds)
            times = report.percentiles(finished, shares=(50, 99, 100))
            span = f"{number * seconds:g} to {(number + 1) * seconds:g}"
            rows.append({"seconds": span, "scorers": scorers, "rounds": len(finished), "failed": len(failures)} | times)
            if number == 1:
                second.process.kill()
            if number == 3:
                again = serving(["scorer"], port=urlsplit(second.url).port)
                await asyncio.to_thread(stack.enter_context, again)
        await stopped(running)
        await remote.close()
    failed = sum(row["failed"] for row in rows)
    rows.write({"failed_rounds": failed, "p99_after_over_before": rows[-1]["p99_ms"] / rows[1]["p99_ms"]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10, help="of a window")
    given = parser.parse_args()
    with serving(["scorer"]) as first, serving(["scorer"]) as second:
        asyncio.run(measured(first, second, given.sessions, given.seconds))


if __name__ == "__main__":
    report.run(main)
