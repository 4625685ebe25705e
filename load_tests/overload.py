"""`make bench-overload`: many clients at twice the capacity. Admitted requests are answered in time, others refused at
once.

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
import orjson

from load_tests import report
from load_tests.processes import Server, serving
from load_tests.workload import INDEX, fill, quantile, queries_of

REFUSALS = (429, 503)  # declared ones come with Retry-After


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
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        serving(["serve", "--data-directory", directory]) as server,
    ):
        rows, figures = asyncio.run(_run(server, arguments))
    report.write("overload", rows, figures)


@dataclass
class Minute:
    """The requests that ended in one minute. seconds: of each answer, without the refusals before it."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    refusal_seconds: list[float] = field(default_factory=list)
    short: int = 0

    def row(self, number: int, deadline: float, resident: int) -> dict[str, Any]:
        return {
            "minute": number,
            "complete": self.statuses["complete"],
            "partial": self.statuses["partial"],
            "retrieval_only": self.statuses["retrieval_only"],
            "refused": self.statuses["refused"],
            "failed": self.statuses["failed"],
            "short": self.short,
            "p50_ms": quantile(self.seconds, 0.5) * 1e3,
            "p99_ms": quantile(self.seconds, 0.99) * 1e3,
            "longest_ms": max(self.seconds, default=0.0) * 1e3,
            "late": sum(taken > deadline for taken in self.seconds),
            "refused_p99_ms": quantile(self.refusal_seconds, 0.99) * 1e3,
            "resident_MiB": resident,
        }


class Clients:
    """Callers of one service. failures: the first answers that were neither a set nor a declared refusal."""

    def __init__(self, client: httpx.AsyncClient, arguments: argparse.Namespace, queries: Iterator[str]) -> None:
        self._client = client
        self._queries = queries
        self._wanted = {
            "index": INDEX,
            "depth": arguments.depth,
            "budget": arguments.budget,
            "k": arguments.k,
            "deadline_ms": arguments.deadline * 1e3,
        }
        self._documents = min(arguments.k, arguments.depth, arguments.documents)
        self.minute = Minute()
        self.all = Minute()
        self.failures: list[str] = []

    async def ask(self, rng: random.Random) -> None:
        """Send a request with a new query, and repeat it after each refusal."""
        body = self._wanted | {"query": next(self._queries)}
        while True:
            pause = await self._attempt(body)
            if pause is None:
                return
            await asyncio.sleep(pause * rng.uniform(1, 2))

    async def _attempt(self, body: dict[str, Any]) -> float | None:
        """Send a request once. Returns the seconds to wait before repeating it, None if it was not refused."""
        start = time.perf_counter()
        try:
            response = await self._client.post("/select", json=body)
        except httpx.TransportError as error:
            self._fail(repr(error))
            return None
        taken = time.perf_counter() - start
        if response.status_code in REFUSALS and "retry-after" in response.headers:
            for minute in (self.minute, self.all):
                minute.statuses["refused"] += 1
                minute.refusal_seconds.append(taken)
            return float(response.headers["retry-after"])
        if response.status_code != 200:
            self._fail(f"{response.status_code} {response.text}")
            return None
        answer = orjson.loads(response.content)
        ids = {document["id"] for document in answer["documents"]}
        for minute in (self.minute, self.all):
            minute.statuses[answer["status"]] += 1
            minute.seconds.append(taken)
            minute.short += len(ids) != self._documents
        return None

    def _fail(self, what: str) -> None:
        for minute in (self.minute, self.all):
            minute.statuses["failed"] += 1
        if len(self.failures) < 10:
            self.failures.append(what)


async def _run(server: Server, arguments: argparse.Namespace) -> tuple[report.Rows, dict[str, float]]:
    limits = httpx.Limits(max_connections=arguments.clients)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
        texts = await fill(client, arguments.documents)
        queries = queries_of(texts)
        capacity = await _capacity(Clients(client, arguments, queries), arguments)
        print(f"capacity: {capacity:.1f} requests a second", flush=True)
        clients = Clients(client, arguments, queries)
        rate = arguments.times * capacity / arguments.clients
        running = [asyncio.create_task(_client(clients, rate, number)) for number in range(arguments.clients)]
        rows = report.Rows("overload")
        for number in range(1, max(1, round(arguments.minutes)) + 1):
            clients.minute = Minute()
            done, _ = await asyncio.wait(
                running, timeout=60 * min(1.0, arguments.minutes), return_when="FIRST_COMPLETED"
            )
            for task in done:
                task.result()
            rows.append(clients.minute.row(number, arguments.deadline, server.resident("RssAnon")))
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    for failure in clients.failures:
        print(failure)
    second = rows[min(1, len(rows) - 1)]
    answered, refused = len(clients.all.seconds), clients.all.statuses["refused"]
    seconds = 60 * arguments.minutes
    return rows, {
        "capacity_per_second": capacity,
        "attempts_per_second_over_capacity": (answered + refused) / seconds / capacity,
        "answers_per_second_over_capacity": answered / seconds / capacity,
        "refused_over_attempts": refused / max(1, answered + refused),
        "failed": clients.all.statuses["failed"],
        "short_answers": clients.all.short,
        "p99_over_deadline": quantile(clients.all.seconds, 0.99) / arguments.deadline,
        "memory_last_over_second_minute": rows[-1]["resident_MiB"] / second["resident_MiB"],
    }


async def _client(clients: Clients, rate: float, seed: int) -> None:
    """Send requests at random times, so many a second on average, but never two at once."""
    rng = random.Random(seed)
    due = time.perf_counter()
    while True:
        due = max(due + rng.expovariate(rate), time.perf_counter())
        await asyncio.sleep(due - time.perf_counter())
        await clients.ask(rng)


async def _capacity(clients: Clients, arguments: argparse.Namespace) -> float:
    """Return the answers a second to a few clients that never pause."""
    stop = time.perf_counter() + arguments.capacity_seconds

    async def one(seed: int) -> None:
        rng = random.Random(seed)
        while time.perf_counter() < stop:
            await clients.ask(rng)

    await asyncio.gather(*(one(number) for number in range(arguments.capacity_clients)))
    if clients.failures:
        raise RuntimeError(f"without any overload: {clients.failures[0]}")
    return len(clients.all.seconds) / float(arguments.capacity_seconds)


if __name__ == "__main__":
    report.run(main)
