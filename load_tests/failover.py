"""`make bench-failover`: the times of rounds while one of two scorers is killed under load and restarted.

Sessions use the gateway's own client. One row every ten seconds: one scorer is killed with -9 at the end of the second
and restarted at the end of the fourth.
"""

import argparse
import asyncio
import contextlib
import itertools
import time
from urllib.parse import urlsplit

import numpy as np

from boundarymorph.scoring.remote.client import RemoteScorer
from boundarymorph.scoring.remote.urls import parse
from load_tests import report
from load_tests.processes import Server, scorer
from load_tests.sessions import BATCH_SIZE, QUERIES, passages

WINDOW = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=8)
    arguments = parser.parse_args()
    texts = passages(500)
    with scorer() as first, scorer() as second:
        rows = asyncio.run(_run(first, second, texts, arguments.sessions))
    report.write(
        "failover",
        rows,
        {
            "failed_rounds": sum(row["failed"] for row in rows),
            "p99_after_over_before": rows[-1]["p99_ms"] / rows[1]["p99_ms"],
        },
    )


async def _run(first: Server, second: Server, texts: list[str], sessions: int) -> report.Rows:
    remote = RemoteScorer([parse(first.url), parse(second.url)])
    finished: list[float] = []
    failed = 0
    offered = itertools.cycle(texts)

    async def session(query: str) -> None:
        nonlocal failed
        while True:
            start = time.perf_counter()
            try:
                await remote.score(query, list(itertools.islice(offered, BATCH_SIZE)))
            except Exception:
                failed += 1
            else:
                finished.append(time.perf_counter() - start)

    running = [asyncio.create_task(session(QUERIES[number % len(QUERIES)])) for number in range(sessions)]
    rows = report.Rows("failover")
    with contextlib.ExitStack() as stack:
        for window in range(7):
            finished.clear()
            failed = 0
            await asyncio.sleep(WINDOW)
            rows.append(
                {
                    "seconds": f"{window * WINDOW:.0f} to {(window + 1) * WINDOW:.0f}",
                    "scorers": ("two", "two", "one killed", "one", "one, other starts", "two", "two")[window],
                    "rounds": len(finished),
                    "failed": failed,
                    "p50_ms": float(np.quantile(finished, 0.5)) * 1e3,
                    "p99_ms": float(np.quantile(finished, 0.99)) * 1e3,
                    "longest_ms": max(finished) * 1e3,
                }
            )
            if window == 1:
                second.process.kill()
            if window == 3:
                await asyncio.to_thread(stack.enter_context, scorer(port=urlsplit(second.url).port))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await remote.close()
    return rows


if __name__ == "__main__":
    report.run(main)
