"""`make bench-saturation`: how long requests take at a share of the most that a service answers.

The scorer costs nothing, as in `bench_overhead`, and the service is one process. First eight clients that never pause
measure the throughput of this version and of the one `--beside` it. Then each gets requests at random times (Poisson),
at the given shares of the lower of both, in turns. A request is measured from when it was due.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from load_tests import processes, report
from load_tests.bench_overhead import running
from load_tests.costs import Parts, Point, requests
from load_tests.workload import quantile

CLIENTS, WARM_UP = 8, 20
Bodies = Iterator[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.8])
    parser.add_argument("--seconds", type=float, default=10, help="of one turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--depth", type=int, default=1_000)
    parser.add_argument("--budget", type=int, default=20)
    parser.add_argument("--beside", metavar="COMMIT", help="or the folder of a checkout")
    arguments = parser.parse_args()
    point = Point(arguments.depth, arguments.budget, 384)
    with ExitStack() as stack:
        trees: dict[str, Path | None] = {"this": None}
        if arguments.beside is not None:
            trees[arguments.beside] = stack.enter_context(processes.checkout(arguments.beside))
        versions = {name: stack.enter_context(running("one", [point], tree)) for name, tree in trees.items()}
        asyncio.run(compared(versions, point, arguments))


async def compared(versions: dict[str, Parts], point: Point, arguments: argparse.Namespace) -> None:
    bodies = requests(point, batch_size="auto")
    most = {name: await saturated(parts, bodies, arguments.seconds) for name, parts in versions.items()}
    rows = report.Rows("saturation")
    for share in arguments.shares:
        rate = share * min(most.values())
        taken: dict[str, list[float]] = {name: [] for name in versions}
        for turn, (name, parts) in itertools.product(range(arguments.turns), versions.items()):
            taken[name] += await at_rate(parts, bodies, rate, arguments.seconds, seed=turn)
        for name, seconds in taken.items():
            p50, p99 = (quantile(seconds, quantum) * 1e3 for quantum in (0.5, 0.99))
            rows.append(
                {
                    "version": name,
                    "share": share,
                    "rate": rate,
                    "most": most[name],
                    "p50_ms": p50,
                    "p99_ms": p99,
                    "p99_over_p50": p99 / p50,
                }
            )
    report.write("saturation", rows, {})


async def saturated(parts: Parts, bodies: Bodies, seconds: float) -> float:
    """Return the answers a second that clients without a pause get."""
    answered = 0
    async with httpx.AsyncClient(base_url=parts.client.base_url, timeout=60) as client:

        async def one(stop: float) -> None:
            nonlocal answered
            while time.perf_counter() < stop:
                await answer(client, next(bodies))
                answered += 1

        await asyncio.gather(*(answer(client, next(bodies)) for _ in range(WARM_UP)))
        start = time.perf_counter()
        await asyncio.gather(*(one(start + seconds) for _ in range(CLIENTS)))
        return answered / (time.perf_counter() - start)


async def at_rate(parts: Parts, bodies: Bodies, rate: float, seconds: float, seed: int) -> Sequence[float]:
    """Return the seconds that each request took, from when it was due."""
    rng, due, taken = random.Random(seed), 0.0, list[float]()
    async with httpx.AsyncClient(base_url=parts.client.base_url, timeout=60) as client, asyncio.TaskGroup() as group:

        async def one(due: float) -> None:
            await answer(client, next(bodies))
            taken.append(time.perf_counter() - due)

        start = time.perf_counter()
        while (due := due + rng.expovariate(rate)) < seconds:
            await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
            group.create_task(one(start + due))
    return taken


async def answer(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    (await client.post("/select", json=body)).raise_for_status()


if __name__ == "__main__":
    report.run(main)
