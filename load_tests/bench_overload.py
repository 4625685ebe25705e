"""Send requests at a rate that does not wait for answers: `make bench NAME=overload`.

The service runs in one process, over an index of docstrings. Without `--rates`, its capacity is measured first, with a
few clients that never pause, and the rate is twice that. Requests are due at random times (Poisson), and answers are
measured from when a request was due or, after refusals, sent again: a refused client waits for `Retry-After` and a
little longer at random. Every query is different, or, with `--mix`, requests are those of `load_tests.workload`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx

from load_tests import report
from load_tests.processes import Server, serving, stopped
from load_tests.workload import MIX, fill, outcome, requests

ANSWERS = ("complete", "partial", "retrieval_only")
CAPACITY_CLIENTS, TIMES = 4, 2  # default rate, as a multiple of the capacity
DEADLINE = 5.0  # seconds of each request


@dataclass
class Clients:
    """Callers of one service, and the outcomes of the requests that ended in a span.

    Attributes:
        seconds: The time of each answer, without the refusals before it.
        lags: The delays of the generator, in seconds.
    """

    client: httpx.AsyncClient
    requests: Iterator[dict[str, Any]]
    rng: random.Random = field(default_factory=random.Random)
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def ask(self, body: dict[str, Any], due: float) -> None:
        """Send a request, and repeat it after each refusal."""
        while True:
            try:
                response = await self.client.post("/select", json=body)
                what, pause = outcome(response, body["k"]), float(response.headers.get("retry-after", 0))
            except httpx.TransportError as error:
                what, pause = f"failed: {error!r}", 0.0
            taken = time.perf_counter() - due
            self.statuses[what.partition(":")[0]] += 1
            if what in ANSWERS:
                self.seconds.append(taken)
            elif what.startswith("failed"):
                self.failures.append(what)
            if what != "refused":
                return
            self.refusals.append(taken)
            await asyncio.sleep(pause * self.rng.uniform(1, 2))
            due = time.perf_counter()

    async def at_rate(self, rate: float, most: int) -> None:
        """Send `rate` requests per second, but none while `most` requests are underway."""
        due = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            under_way = set[asyncio.Task[None]]()
            while True:
                due += self.rng.expovariate(rate)
                await asyncio.sleep(due - time.perf_counter())
                self.lags.append(time.perf_counter() - due)
                if len(under_way) < most:
                    under_way.add(task := group.create_task(self.ask(next(self.requests), due)))
                    task.add_done_callback(under_way.discard)
                else:
                    self.statuses["unsent"] += 1

    async def capacity(self, seconds: float) -> float:
        """Return the answers per second to clients without a pause."""
        start = time.perf_counter()

        async def one() -> None:
            while time.perf_counter() < start + seconds:
                await self.ask(next(self.requests), time.perf_counter())

        await asyncio.gather(*(one() for _ in range(CAPACITY_CLIENTS)))
        if self.failures:
            raise RuntimeError(f"without any overload: {self.failures[0]}")
        return len(self.seconds) / (time.perf_counter() - start)

    def row(self) -> dict[str, Any]:
        """Return a row of the table, and forget what has ended."""
        row: dict[str, Any] = {what: self.statuses[what] for what in (*ANSWERS, "refused", "unsent", "failed")}
        row |= report.percentiles(self.seconds, shares=(50, 95, 99, 100))
        row |= {"late": sum(taken > DEADLINE for taken in self.seconds)}
        row |= report.percentiles(self.refusals, shares=(99,), of="refused_p{}_ms")
        row |= report.percentiles(self.lags, shares=(99,), of="generator_late_p{}_ms")
        self.statuses, self.seconds, self.refusals, self.lags = Counter(), [], [], []
        return row


async def measured(url: str, server: Server | None, given: argparse.Namespace) -> None:
    """Fill the index, and add the rows of each rate."""
    rows, ratios = report.Rows("overload"), dict[str, float]()
    limits = httpx.Limits(max_connections=given.clients)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        texts = await fill(client, given.documents)
        fields = {"depth": 1_000, "budget": given.budget, "k": min(20, len(texts) * 2 // 3)}
        fields["deadline_ms"] = DEADLINE * 1e3
        clients = Clients(client, requests(texts, fields, MIX if given.mix else {"index": 1}))
        if not given.rates:
            ratios["capacity_per_second"] = await clients.capacity(given.capacity_seconds)
            clients.row()
        for rate in given.rates or [TIMES * ratios["capacity_per_second"]]:
            running = asyncio.create_task(clients.at_rate(rate, given.clients))
            for number in range(1, given.spans + 1):
                await asyncio.wait([running], timeout=given.seconds)
                if running.done():
                    running.result()
                memory = {} if server is None else {"resident_MiB": server.resident()}
                rows.append({"rate": rate, "span": number, **clients.row(), **memory})
            await stopped([running])
    print(*clients.failures[:10], sep="\n", end="\n" if clients.failures else "")
    rows.write(ratios | {"failed": len(clients.failures)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a running service, in which the index is made; one is started without")
    parser.add_argument("--rates", type=float, nargs="+", help="requests a second, instead of twice the capacity")
    parser.add_argument("--mix", action="store_true", help="of several kinds of requests")
    parser.add_argument("--seconds", type=float, default=60, help="of a span")
    parser.add_argument("--spans", type=int, default=10, help="of each rate")
    parser.add_argument("--clients", type=int, default=200, help="that wait for an answer, or to try again")
    parser.add_argument("--capacity-seconds", type=float, default=30)
    parser.add_argument("--documents", type=int, default=3_000)
    parser.add_argument("--budget", type=int, default=10)
    given = parser.parse_args()
    with ExitStack() as stack:
        url, server = given.url, None
        if url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            server = stack.enter_context(serving(["serve", "--data-directory", folder]))
            url = server.url
        asyncio.run(measured(url, server, given))


if __name__ == "__main__":
    report.run(main)
