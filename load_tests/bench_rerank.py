"""`make bench-rerank`: POST /v1/rerank and Infinity, and what a budget of a fifth of the list saves.

The same weights (MiniLM-L-12, float32) run behind `boundarymorph serve` and behind Infinity; with `--layers 1` only the
first of its layers, so that loads of thousands of documents end on two cores. Concurrent clients each send lists of
documents of 100 to 250 words, and wait for the answer. The servers take turns within each repetition, so that other
load on the machine affects all of them.
"""

import argparse
import asyncio
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from load_tests import infinity, report, weights
from load_tests.processes import Server, serving
from load_tests.sessions import QUERIES, passages

PORT = 8972
BUILD = Path("build")
WORDS = (100, 250)
SHARE = 0.2  # of the list, with a budget
# Otherwise known scores, deadlines and admission would be measured.
SERVICE = {
    "BOUNDARYMORPH_CACHE__ENABLED": "false",
    "BOUNDARYMORPH_DEADLINE_SECONDS": "36000",
    "BOUNDARYMORPH_LIMITS__DEADLINE_SECONDS": "36000",
    "BOUNDARYMORPH_LIMITS__SESSIONS": "64",
    "BOUNDARYMORPH_SCORER__QUEUE_TOKENS": "100000000",
}


@dataclass
class Measured:
    """The results of one server under one load: seconds of each request, and of each repetition."""

    documents: int
    requests: list[float] = field(default_factory=list)
    repetitions: list[float] = field(default_factory=list)
    processor: float = 0.0  # seconds of its process, on all cores

    @property
    def processor_seconds(self) -> float:
        """For 1,000 documents. On a machine that does other things too, it says more than the time does."""
        return 1e3 * self.processor / (len(self.requests) * self.documents)

    @property
    def per_second(self) -> float:
        """Documents ranked per second."""
        return len(self.requests) * self.documents / sum(self.repetitions)


@dataclass(frozen=True)
class Route:
    """name: in the table; server: that has it; fields: of each request."""

    name: str
    server: Server
    path: str
    fields: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[100, 1_000])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--repetitions", type=int, default=3, help="requests of each client")
    parser.add_argument("--quick", action="store_true", help="for two cores: only loads of 1,000 documents at most")
    parser.add_argument(
        "--most", type=int, default=None, help="documents of all clients together; larger loads are left out"
    )
    parser.add_argument("--layers", type=int, default=weights.LAYERS, help="of the model, the first so many")
    arguments = parser.parse_args()
    most = 1_000 if arguments.quick else arguments.most

    whole = arguments.layers == weights.LAYERS
    folder = weights.minilm(BUILD / ("minilm" if whole else f"minilm-{arguments.layers}"), arguments.layers)
    os.environ |= SERVICE | {"BOUNDARYMORPH_SCORER__MODEL": str(folder)}
    rows, ratios = report.Rows("rerank"), {}
    environment = infinity.environment(BUILD / "infinity")
    command = ["serve", "--data-directory", str(BUILD / "rerank")]
    with serving(command) as ours, infinity.serving(environment, folder, PORT) as theirs:
        for documents, clients in itertools.product(arguments.documents, arguments.clients):
            if most is not None and documents * clients > most:
                continue
            routes = [
                Route("boundarymorph", ours, "/v1/rerank"),
                Route("infinity", theirs, "/rerank"),
                Route("a fifth", ours, "/v1/rerank", {"budget": round(SHARE * documents), "top_n": 50}),
            ]
            measured = asyncio.run(_take_turns(routes, documents, clients, arguments.repetitions))
            full, other, fifth = (measured[route.name] for route in routes)
            for route in routes:
                rows.append(_row(route.name, clients, measured[route.name]))
            load = f"{documents}_documents_{clients}_clients"
            ratios[f"throughput_over_infinity_{load}"] = full.per_second / other.per_second
            ratios[f"median_latency_of_infinity_{load}"] = _median(full) / _median(other)
            ratios[f"processor_time_of_infinity_{load}"] = full.processor_seconds / other.processor_seconds
            ratios[f"times_faster_with_a_fifth_{load}"] = fifth.per_second / full.per_second
    report.write("rerank", rows, ratios)


async def _take_turns(routes: Sequence[Route], documents: int, clients: int, repetitions: int) -> dict[str, Measured]:
    measured = {route.name: Measured(documents) for route in routes}
    lists = [passages(documents, words=WORDS, seed=client) for client in range(clients)]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as client:
        for route in routes:
            await _request(client, route, passages(10), 0)  # what is loaded for the first request
        for repetition in range(repetitions):
            first = repetition % len(routes)
            for route in (*routes[first:], *routes[:first]):
                start, before = time.perf_counter(), route.server.processor_seconds()
                seconds = await asyncio.gather(
                    *(_request(client, route, lists[number], number) for number in range(clients))
                )
                measured[route.name].repetitions.append(time.perf_counter() - start)
                measured[route.name].processor += route.server.processor_seconds() - before
                measured[route.name].requests += seconds
    return measured


async def _request(client: httpx.AsyncClient, route: Route, texts: Sequence[str], number: int) -> float:
    body = {"query": QUERIES[number % len(QUERIES)], "documents": texts, **route.fields}
    start = time.perf_counter()
    response = await client.post(route.server.url + route.path, json=body)
    response.raise_for_status()
    results = response.json()["results"]
    seconds = time.perf_counter() - start
    assert len(results) == min(len(texts), route.fields.get("top_n", len(texts)))
    return seconds


def _median(measured: Measured) -> float:
    return float(np.median(measured.requests))


def _row(name: str, clients: int, measured: Measured) -> dict[str, Any]:
    return {
        "what": name,
        "documents": measured.documents,
        "clients": clients,
        "documents_per_second": measured.per_second,
        "latency_p50_s": _median(measured),
        "latency_p95_s": float(np.percentile(measured.requests, 95)),
        "processor_s_per_1000": measured.processor_seconds,
    }


if __name__ == "__main__":
    report.run(main)
