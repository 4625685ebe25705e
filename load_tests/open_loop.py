"""`make load-open`: sends requests at a constant rate without waiting for earlier answers.

Each request is due at a time of a schedule made beforehand, and is measured from then, even if the generator or the
service was late (no coordinated omission). One row per rate; by default the rates are shares of the throughput of four
clients that never pause. The mix is that of `load_tests.workload`.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from load_tests import plots, report
from load_tests.processes import serving
from load_tests.workload import SLOW_PAUSE, Request, Sizes, Workload, fill, outcome, quantile

SHARES = (0.25, 0.5, 0.75, 1.0, 1.25)
ANSWERS = ("complete", "partial", "retrieval_only")


@dataclass
class Run:
    """The results at one rate. seconds: of each answer, with its time, from when the request was due."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[tuple[float, float]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, what: str, due: float, now: float) -> None:
        if what.startswith("failed"):
            self.failures.append(what)
        self.outcomes[what.partition(":")[0]] += 1
        if what in ANSWERS:
            self.seconds.append((due, now - due))

    def row(self, rate: float, seconds: float) -> dict[str, Any]:
        taken = [one for _, one in self.seconds]
        counts = {what: self.outcomes[what] for what in (*ANSWERS, "refused", "aborted", "unsent", "failed")}
        return {
            "rate": rate,
            "answers_per_second": len(taken) / seconds,
            **counts,
            **{f"p{share:g}_ms": quantile(taken, share / 100) * 1e3 for share in (50, 95, 99)},
            "longest_ms": max(taken, default=float("nan")) * 1e3,
            "generator_late_p99_ms": quantile(self.lags, 0.99) * 1e3,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a running service with the index; one is started and filled without")
    parser.add_argument("--rates", type=float, nargs="+", help="requests a second")
    parser.add_argument("--seconds", type=float, default=30, help="of each rate")
    parser.add_argument("--documents", type=int, default=3_000)
    parser.add_argument("--outstanding", type=int, default=2_000, help="requests under way, beyond which none is sent")
    parser.add_argument("--timeout", type=float, default=60)
    arguments = parser.parse_args()
    if arguments.url:
        runs = asyncio.run(_rates(arguments.url, arguments))
    else:
        with tempfile.TemporaryDirectory() as directory, serving(["serve", "--data-directory", directory]) as server:
            runs = asyncio.run(_rates(server.url, arguments))
    rows = [run.row(rate, arguments.seconds) for rate, run in runs.items()]
    plots.latencies("load-open", rows, {rate: run.seconds for rate, run in runs.items()})
    report.write("load-open", rows, {"failed": sum(row["failed"] for row in rows)})
    for run in runs.values():
        for failure in run.failures[:3]:
            print(failure)


async def _rates(url: str, arguments: argparse.Namespace) -> dict[float, Run]:
    limits = httpx.Limits(max_connections=arguments.outstanding, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=arguments.timeout, limits=limits) as client:
        workload = Workload(await fill(client, arguments.documents), sizes=Sizes())
        rates = arguments.rates or await _shares_of_capacity(client, workload, arguments.seconds)
        runs, rows = {}, report.Rows("load-open")
        for rate in rates:
            runs[rate] = await at_rate(client, workload, rate, arguments.seconds, arguments.outstanding)
            rows.append(runs[rate].row(rate, arguments.seconds))
    return runs


async def _shares_of_capacity(client: httpx.AsyncClient, workload: Workload, seconds: float) -> list[float]:
    stop, run = time.perf_counter() + min(seconds, 20), Run()

    async def one() -> None:
        while time.perf_counter() < stop:
            await _send(client, workload, workload.draw(), time.perf_counter(), run)

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(4)))
    capacity = sum(run.outcomes.values()) / (time.perf_counter() - start)
    print(f"four clients without a pause: {capacity:.1f} requests a second", flush=True)
    return [round(share * capacity, 2) for share in SHARES]


async def at_rate(
    client: httpx.AsyncClient, workload: Workload, rate: float, seconds: float, outstanding: int = 2_000
) -> Run:
    """Send so many requests a second for so long, and wait for all answers."""
    run, under_way = Run(), set[asyncio.Task[None]]()
    start = time.perf_counter()
    for number in range(round(rate * seconds)):
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        run.lags.append(time.perf_counter() - due)
        if len(under_way) >= outstanding:
            run.add("unsent", due, due)
            continue
        task = asyncio.create_task(_send(client, workload, workload.draw(), due, run))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    return run


async def _send(client: httpx.AsyncClient, workload: Workload, request: Request, due: float, run: Run) -> None:
    try:
        async with asyncio.timeout(workload.patience() if request.kind == "abort" else None):
            response = await client.post(
                "/select", content=_sent(request), headers={"content-type": "application/json"}
            )
        what = outcome(response.status_code, response.headers, response.content, request)
    except TimeoutError:
        what = "aborted"
    except httpx.TransportError as error:
        what = f"failed: {error!r}"
    run.add(what, due, time.perf_counter())


async def _sent(request: Request) -> AsyncIterator[bytes]:
    for number, piece in enumerate(request.pieces):
        if number:
            await asyncio.sleep(SLOW_PAUSE)
        yield piece


if __name__ == "__main__":
    report.run(main)
