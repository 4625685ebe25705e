"""`make bench NAME=load`: sends requests at a constant rate without waiting for earlier answers.

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
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from load_tests import report
from load_tests.processes import serving
from load_tests.workload import SIZES, Request, Workload, fill, outcome

SHARES = (0.25, 0.5, 0.75, 1.0, 1.25)
ANSWERS = ("complete", "partial", "retrieval_only")
SLOW_PAUSE = 0.2  # seconds between the pieces of a body that is sent slowly


@dataclass
class Run:
    """The results at one rate. seconds: of each answer, from when its request was due; lags: of the generator."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, what: str, seconds: float) -> None:
        """Count an outcome, and the time of an answer."""
        self.outcomes[what.partition(":")[0]] += 1
        if what.startswith("failed"):
            self.failures.append(what)
        elif what in ANSWERS:
            self.seconds.append(seconds)

    def row(self, rate: float, seconds: float) -> dict[str, Any]:
        """Return a row of the table. seconds: of the run."""
        counts = {what: self.outcomes[what] for what in (*ANSWERS, "refused", "aborted", "unsent", "failed")}
        return {
            "rate": rate,
            "answers_per_second": len(self.seconds) / seconds,
            **counts,
            **report.percentiles(self.seconds, shares=(50, 95, 99, 100)),
            **report.percentiles(self.lags, shares=(99,), of="generator_late_p{}_ms"),
        }


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
            run.add("unsent", 0.0)
            continue
        task = asyncio.create_task(_send(client, workload, workload.draw(), due, run))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    return run


async def _send(client: httpx.AsyncClient, workload: Workload, request: Request, due: float, run: Run) -> None:
    try:
        async with asyncio.timeout(workload.patience() if request.kind == "abort" else None):
            headers = {"content-type": "application/json"}
            response = await client.post("/select", content=_sent(request), headers=headers)
        what = outcome(response, request.body["k"])
    except TimeoutError:
        what = "aborted"
    except httpx.TransportError as error:
        what = f"failed: {error!r}"
    run.add(what, time.perf_counter() - due)


async def _sent(request: Request) -> AsyncIterator[bytes]:
    for number, piece in enumerate(request.pieces):
        if number:
            await asyncio.sleep(SLOW_PAUSE)
        yield piece


async def most(client: httpx.AsyncClient, workload: Workload, seconds: float) -> float:
    """Return the answers a second to four clients that never pause."""
    run, start = Run(), time.perf_counter()

    async def one() -> None:
        while time.perf_counter() < start + seconds:
            await _send(client, workload, workload.draw(), time.perf_counter(), run)

    await asyncio.gather(*(one() for _ in range(4)))
    return sum(run.outcomes.values()) / (time.perf_counter() - start)


async def measured(url: str, given: argparse.Namespace) -> None:
    """Fill the index, and add a row for each rate."""
    limits = httpx.Limits(max_connections=given.outstanding, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=given.timeout, limits=limits) as client:
        texts = await fill(client, given.documents)
        workload = Workload(texts, SIZES | {"k": min(SIZES["k"], len(texts) * 2 // 3)})
        rates = given.rates
        if not rates:
            capacity = await most(client, workload, min(given.seconds, 20))
            print(f"four clients without a pause: {capacity:.1f} requests a second", flush=True)
            rates = np.round(capacity * np.array(SHARES), 2).tolist()
        rows, failures = report.Rows("load"), []
        for rate in rates:
            run = await at_rate(client, workload, rate, given.seconds, given.outstanding)
            rows.append(run.row(rate, given.seconds))
            failures += run.failures
    print(*failures[:10], sep="\n", end="\n" if failures else "")
    rows.write({"failed": len(failures)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a running service, in which the index is made; one is started without")
    parser.add_argument("--rates", type=float, nargs="+", help="requests a second")
    parser.add_argument("--seconds", type=float, default=30, help="of each rate")
    parser.add_argument("--documents", type=int, default=3_000)
    parser.add_argument("--outstanding", type=int, default=2_000, help="requests under way, beyond which none is sent")
    parser.add_argument("--timeout", type=float, default=60)
    given = parser.parse_args()
    with ExitStack() as stack:
        url = given.url
        if url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            url = stack.enter_context(serving(["serve", "--data-directory", folder])).url
        asyncio.run(measured(url, given))


if __name__ == "__main__":
    report.run(main)
