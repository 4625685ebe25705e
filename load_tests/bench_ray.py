"""`make bench-ray`: replicas of a scorer on Ray Serve on this machine, and the overhead of a call through Ray.

The scorer is the application of `boundarymorph scorer` over a model that sleeps a fixed time per batch, as if on a
device, and takes no CPU, so more replicas can run than this machine has cores. Each request is one batch, and there are
more clients than replicas. The overhead is measured with a model that does not sleep, against the same application in
its own process.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np
import uvicorn
from fastapi import FastAPI
from numpy.typing import NDArray

from boundarymorph.scoring.batching import BatchingScorer
from boundarymorph.scoring.scorer import Pair
from boundarymorph.server.app import create_scorer_app
from boundarymorph.server.composition import Scoring
from boundarymorph.settings import Settings
from load_tests import report
from load_tests.workload import REFUSALS, quantile
from tests.ports import free_port
from tests.scoring.fakes import SeededCrossEncoder

TEXTS = ["t" * 100] * 5  # one batch of the model below
CLIENTS = 4  # per replica
START_SECONDS = 300.0


class Waiting(SeededCrossEncoder):
    """A model that sleeps so many seconds per batch."""

    def __init__(self, seconds: float) -> None:
        super().__init__(batch_tokens=sum(map(len, TEXTS)))
        self._seconds = seconds

    def run(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        time.sleep(self._seconds)
        return super().run(pairs)


def application(seconds: float) -> FastAPI:
    """Return the scorer's application over that model."""

    def build(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Scoring:
        return Scoring(BatchingScorer(Waiting(seconds)))

    return create_scorer_app(Settings(without_keys=True), build=build)


def on_ray(seconds: float) -> Any:
    """Return the same as an application of Ray Serve."""
    from ray import serve

    def create() -> FastAPI:
        app = application(seconds)
        app.state.lifecycle.listen_when_ready = True
        return app

    class Replica:
        pass

    return serve.deployment(name="scorer")(serve.ingress(create)(Replica))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--batch-seconds", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=30, help="of each row")
    parser.add_argument("--calls", type=int, default=300, help="for the overhead")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)  # the Ray-free scorer, on this port
    arguments = parser.parse_args()
    if arguments.serve:
        uvicorn.run(application(0), host="127.0.0.1", port=arguments.serve, log_level="error")
        return
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions

    port = free_port()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port))
    url, rows = f"http://127.0.0.1:{port}", report.Rows("ray")
    try:
        for replicas in arguments.replicas:
            options = {"num_replicas": replicas, "max_ongoing_requests": CLIENTS, "ray_actor_options": {"num_cpus": 0}}
            serve.run(on_ray(arguments.batch_seconds).options(**options).bind())
            asyncio.run(_ready(url))
            rows.append(_row(url, replicas, arguments))
        serve.run(on_ray(0).options(ray_actor_options={"num_cpus": 0}).bind())
        through_ray = asyncio.run(_calls(url, arguments.calls))
    finally:
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()
    directly = _direct(arguments.calls)
    linear = {
        f"of_linear_{row['replicas']}": row["a_second"] / rows[0]["a_second"] / row["replicas"] * rows[0]["replicas"]
        for row in rows
    }
    overhead = {
        f"{name}_p{share}_ms": quantile(times, share / 100) * 1e3
        for name, times in (("ray", through_ray), ("direct", directly))
        for share in (50, 99)
    }
    report.write("ray", rows, linear | overhead | {"overhead_ms": overhead["ray_p50_ms"] - overhead["direct_p50_ms"]})


def _row(url: str, replicas: int, arguments: argparse.Namespace) -> dict[str, Any]:
    times = asyncio.run(_load(url, CLIENTS * replicas, arguments.seconds))
    return {
        "replicas": replicas,
        "a_second": len(times) / arguments.seconds,
        "ideal_a_second": replicas / arguments.batch_seconds,
        "p50_ms": quantile(times, 0.5) * 1e3,
        "p99_ms": quantile(times, 0.99) * 1e3,
    }


async def _load(url: str, clients: int, seconds: float) -> list[float]:
    """Return the times of answers to so many clients that never pause, after the first answer to each."""
    times: list[float] = []

    async def one(client: httpx.AsyncClient) -> None:
        while True:
            times.append(await _call(client))

    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=clients)) as client:
        await asyncio.gather(*(_call(client) for _ in range(clients)))
        running = [asyncio.create_task(one(client)) for _ in range(clients)]
        await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in running:
            if task.done():
                task.result()
            task.cancel()
        counted = list(times)
        await asyncio.gather(*running, return_exceptions=True)
    return counted


async def _calls(url: str, count: int) -> list[float]:
    """Return the times of consecutive calls."""
    await _ready(url)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        return [await _call(client) for _ in range(count)]


async def _call(client: httpx.AsyncClient) -> float:
    """Return the seconds of a call. It is repeated if it is refused for now, for instance while replicas start."""
    start = time.perf_counter()
    while True:
        response = await client.post("/score", json={"query": "q", "texts": TEXTS})
        if response.status_code not in REFUSALS or "retry-after" not in response.headers:
            response.raise_for_status()
            return time.perf_counter() - start
        await asyncio.sleep(float(response.headers["retry-after"]))


async def _ready(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        while True:
            try:
                (await client.get("/readyz")).raise_for_status()
                return
            except httpx.HTTPError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)


def _direct(count: int) -> list[float]:
    port = free_port()
    with subprocess.Popen([sys.executable, "-m", "load_tests.bench_ray", "--serve", str(port)]) as process:
        try:
            return asyncio.run(_calls(f"http://127.0.0.1:{port}", count))
        finally:
            process.terminate()


if __name__ == "__main__":
    report.run(main)
