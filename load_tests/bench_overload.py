"""`make bench NAME=overload`: many clients at twice the capacity. Who is admitted is answered in time.

The service runs in one process, over an index of the standard library's docstrings. Its capacity is measured first,
with a few clients that never pause. Then all clients together send twice that rate, each at random times; a refused
client waits for `Retry-After` and a little longer at random, and tries again. Every query is different. One row per
minute.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from load_tests import report
from load_tests.processes import Server, serving
from load_tests.workload import INDEX, fill, outcome, queries_of

STATUSES = ("complete", "partial", "retrieval_only", "refused", "failed")


@dataclass
class Ended:
    """The requests that ended in one minute. seconds: of each answer, without the refusals before it."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def row(self, minute: int, deadline: float, resident: int) -> dict[str, Any]:
        """Return a row of the table."""
        return {
            "minute": minute,
            **{status: self.statuses[status] for status in STATUSES},
            **report.percentiles(self.seconds, shares=(50, 99, 100)),
            "late": sum(taken > deadline for taken in self.seconds),
            **report.percentiles(self.refusals, shares=(99,), of="refused_p{}_ms"),
            "resident_MiB": resident,
        }

    def add(self, other: Ended) -> None:
        """Add what ended later."""
        self.statuses.update(other.statuses)
        for name in ("seconds", "refusals", "failures"):
            getattr(self, name).extend(getattr(other, name))


class Clients:
    """Callers of one service. wanted: fields of their requests; documents: that each set must have."""

    def __init__(
        self, client: httpx.AsyncClient, wanted: dict[str, Any], queries: Iterator[str], documents: int
    ) -> None:
        self._client, self._wanted, self._queries, self._documents = client, wanted, queries, documents
        self.ended = Ended()

    async def ask(self, rng: random.Random) -> None:
        """Send a request with a new query, and repeat it after each refusal."""
        body = self._wanted | {"query": next(self._queries)}
        while True:
            start = time.perf_counter()
            try:
                response = await self._client.post("/select", json=body)
            except httpx.TransportError as error:
                what = f"failed: {error!r}"
            else:
                what = outcome(response, self._documents)
            taken = time.perf_counter() - start
            self.ended.statuses[what.partition(":")[0]] += 1
            if what.startswith("failed"):
                self.ended.failures.append(what)
            elif what != "refused":
                self.ended.seconds.append(taken)
            if what != "refused":
                return
            self.ended.refusals.append(taken)
            await asyncio.sleep(float(response.headers["retry-after"]) * rng.uniform(1, 2))

    async def at_random(self, rate: float, seed: int) -> None:
        """Send requests at random times, so many a second on average, but never two at once."""
        rng = random.Random(seed)
        due = time.perf_counter()
        while True:
            due = max(due + rng.expovariate(rate), time.perf_counter())
            await asyncio.sleep(due - time.perf_counter())
            await self.ask(rng)

    async def without_pause(self, count: int, seconds: float) -> float:
        """Return the answers a second to so many clients."""
        stop = time.perf_counter() + seconds

        async def one(seed: int) -> None:
            rng = random.Random(seed)
            while time.perf_counter() < stop:
                await self.ask(rng)

        await asyncio.gather(*(one(number) for number in range(count)))
        if self.ended.failures:
            raise RuntimeError(f"without any overload: {self.ended.failures[0]}")
        return len(self.ended.seconds) / seconds


async def measured(server: Server, given: argparse.Namespace) -> None:
    """Measure the capacity, exceed it, and report."""
    limits = httpx.Limits(max_connections=given.clients)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
        texts = await fill(client, given.documents)
        wanted = {"index": INDEX, "depth": given.depth, "budget": given.budget, "k": given.k}
        wanted["deadline_ms"] = given.deadline * 1e3
        clients = Clients(client, wanted, queries_of(texts), min(given.k, given.depth, len(texts)))
        capacity = await clients.without_pause(given.capacity_clients, given.capacity_seconds)
        print(f"capacity: {capacity:.1f} requests a second", flush=True)
        clients.ended, all = Ended(), Ended()
        rate = given.times * capacity / given.clients
        running = [asyncio.create_task(clients.at_random(rate, number)) for number in range(given.clients)]
        rows = report.Rows("overload")
        for minute in range(1, max(1, round(given.minutes)) + 1):
            done, _ = await asyncio.wait(running, timeout=60 * min(1.0, given.minutes), return_when="FIRST_COMPLETED")
            for task in done:
                task.result()
            rows.append(clients.ended.row(minute, given.deadline, server.resident()))
            all.add(clients.ended)
            clients.ended = Ended()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    print(*all.failures[:10], sep="\n", end="\n" if all.failures else "")
    answered, attempts = len(all.seconds), len(all.seconds) + len(all.refusals)
    rows.write(
        {
            "capacity_per_second": capacity,
            "attempts_per_second_over_capacity": attempts / (60 * given.minutes * capacity),
            "answers_per_second_over_capacity": answered / (60 * given.minutes * capacity),
            "failed": len(all.failures),
            "p99_over_deadline": report.percentiles(all.seconds)["p99_ms"] / (1e3 * given.deadline),
            "memory_last_over_second_minute": rows[-1]["resident_MiB"] / rows[min(1, len(rows) - 1)]["resident_MiB"],
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--times", type=float, default=2, help="the capacity")
    parser.add_argument("--capacity-clients", type=int, default=4)
    parser.add_argument("--capacity-seconds", type=float, default=30)
    parser.add_argument("--documents", type=int, default=3_000)
    parser.add_argument("--depth", type=int, default=1_000)
    parser.add_argument("--budget", type=int, default=10)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--deadline", type=float, default=5, help="seconds of each request")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        serving(["serve", "--data-directory", directory]) as server,
    ):
        asyncio.run(measured(server, given))


if __name__ == "__main__":
    report.run(main)
