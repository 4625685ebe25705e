"""`make capacity`: the cores and GPUs for a rate of requests, and which part of a large service is overloaded first.

1. Measures the CPU seconds of a request in gateway, retriever and Redis over a grid of N, B and d, and fits them; and
   those of the embedded cross-encoder per token (`load_tests.costs`).
2. Checks the model's cores with a whole service at a constant rate of requests that are not on the grid.
3. Computes the cores for `--rate` requests a second, on CPUs alone and with GPUs for the scorer.
4. Simulates that many replicas at rates around it (`load_tests.simulation`).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from load_tests import plots, processes, report
from load_tests.costs import STAGES, Costs, Parts, Point, all_costs, requests, running
from load_tests.simulation import Plan, simulated

CHECKED = Point(4_000, 20, 512)
GRID = [Point(*sizes) for sizes in itertools.product((1_000, 5_000, 10_000), (10, 50, 100), (384, 1_024))]
QUICK = [Point(*sizes) for sizes in itertools.product((500, 2_000), (5, 20), (64, 128))]
LOADS = (0.5, 0.8, 1.0, 1.2, 1.4, 1.6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small grid, to try it")
    parser.add_argument("--repeats", type=int, default=8, help="requests of each point of the grid")
    parser.add_argument("--pairs", type=int, default=200, help="scored by the embedded cross-encoder")
    parser.add_argument("--check-seconds", type=float, default=30)
    parser.add_argument("--rate", type=float, default=10_000, help="requests a second")
    parser.add_argument("--depth", type=int, default=1_000, help="N of these")
    parser.add_argument("--budget", type=int, default=20, help="B of these")
    parser.add_argument("--dimension", type=int, default=384, help="d of these")
    parser.add_argument(
        "--utilisation", type=float, default=0.6, help="share of each core and device that is planned for"
    )
    parser.add_argument("--cores", type=int, default=16, help="of a replica")
    parser.add_argument("--gpu-tokens", type=float, default=400_000, help="a second, of one GPU: assumed")
    parser.add_argument("--simulated-seconds", type=float, default=2)
    arguments = parser.parse_args()
    grid = QUICK if arguments.quick else GRID
    costs, rows = all_costs(grid, arguments.repeats, arguments.pairs)
    report.write("capacity-costs", rows, {"scorer_us_a_token": costs.token * 1e6, "tokens_a_pair": costs.tokens_a_pair})
    checked = Point(1_000, 10, 96) if arguments.quick else CHECKED
    figures = check(costs, checked, arguments.check_seconds)
    point = Point(arguments.depth, arguments.budget, arguments.dimension)
    needed = cores(costs, point, arguments.rate, arguments.utilisation, arguments.gpu_tokens)
    report.write("capacity-needed", needed, {})
    plan = planned(costs, point, arguments.rate, arguments.utilisation, arguments.gpu_tokens, arguments.cores)
    print(plan)
    simulations = [simulation(plan, load * arguments.rate, arguments.simulated_seconds) for load in LOADS]
    figures |= broken(simulations)
    series = {share: [(row["rate"], row[share]) for row in simulations] for share in ("p50_ms", "p99_ms")}
    plots.history("capacity", series, ("requests a second", "ms"))
    report.write("capacity", simulations, figures)


def check(costs: Costs, point: Point, seconds: float) -> dict[str, float]:
    """Compare the busy cores of a whole service with its own cross-encoder with those that the model predicts."""
    rate = 0.5 / costs.all(point)  # half a core
    with (
        tempfile.TemporaryDirectory() as directory,
        processes.scorer() as scorer,
        running(Path(directory), 2 * point.depth, [point.dimension], scorer.url) as parts,
    ):
        everything, url = Parts({**parts.pids, "scorer": scorer.process.pid}, parts.client), str(parts.client.base_url)
        asyncio.run(_at_rate(url, point, rate, min(5.0, seconds)))
        before, start = everything.cpu(), time.perf_counter()
        answered = asyncio.run(_at_rate(url, point, rate, seconds))
        taken = time.perf_counter() - start
        spent = {stage: after - before[stage] for stage, after in everything.cpu().items()}
    modelled = {**{stage: costs.of(stage, point) for stage in STAGES}, "scorer": costs.scorer(point)}
    rows = [
        {"stage": stage, "measured_ms": spent[stage] / answered * 1e3, "model_ms": modelled[stage] * 1e3}
        for stage in modelled
    ]
    report.write("capacity-check", rows, {})
    figures = {
        "checked_requests_per_second": answered / taken,
        "measured_cores": sum(spent.values()) / taken,
        "model_cores": answered / taken * costs.all(point),
    }
    return figures | {"model_over_measured": figures["model_cores"] / figures["measured_cores"]}


async def _at_rate(url: str, point: Point, rate: float, seconds: float) -> int:
    """Send requests at a constant rate without waiting for earlier answers, and return their number."""
    bodies, start = requests(point, int(time.time())), time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=120) as client, asyncio.TaskGroup() as group:
        for number in range(max(1, round(rate * seconds))):
            await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
            group.create_task(_ask(client, next(bodies)))
    return max(1, round(rate * seconds))


async def _ask(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    (await client.post("/select", json=body)).raise_for_status()


def cores(costs: Costs, point: Point, rate: float, utilisation: float, gpu_tokens: float) -> list[dict[str, Any]]:
    """Return what each stage needs for a rate, at a utilisation of its cores and devices."""
    rows = [
        {
            "stage": stage,
            "cpu_ms_a_request": costs.of(stage, point) * 1e3,
            "cores": math.ceil(rate * costs.of(stage, point) / utilisation),
            "gpus": 0,
        }
        for stage in STAGES
    ]
    tokens = rate * point.budget * costs.tokens_a_pair
    scorer = costs.scorer(point)
    rows.append(
        {
            "stage": "scorer, on CPUs",
            "cpu_ms_a_request": scorer * 1e3,
            "cores": math.ceil(rate * scorer / utilisation),
            "gpus": 0,
        }
    )
    rows.append(
        {
            "stage": "or on GPUs",
            "cpu_ms_a_request": 0.0,
            "cores": 0,
            "gpus": math.ceil(tokens / gpu_tokens / utilisation),
        }
    )
    return rows


def planned(costs: Costs, point: Point, rate: float, utilisation: float, gpu_tokens: float, replica_cores: int) -> Plan:
    """Return the replicas of a service for a rate, with GPUs for the scorer."""
    retriever = costs.of("retriever", point)
    search = costs.of("retriever", replace(point, budget=0))
    needed = {row["stage"]: row for row in cores(costs, point, rate, utilisation, gpu_tokens)}
    return Plan(
        gateways=math.ceil(needed["gateway"]["cores"] / replica_cores),
        gateway_cores=replica_cores,
        retrievers=math.ceil(needed["retriever"]["cores"] / replica_cores),
        retriever_cores=replica_cores,
        scorers=needed["or on GPUs"]["gpus"],
        redis_shards=max(1, needed["redis"]["cores"]),
        gateway_seconds=costs.of("gateway", point),
        search_seconds=search,
        texts_seconds=retriever - search,
        redis_seconds=costs.of("redis", point),
        rounds=point.rounds,
        round_tokens=costs.tokens_a_pair * point.budget / point.rounds,
        scorer_tokens_per_second=gpu_tokens,
    )


def broken(simulations: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the first rate that overloads the service: fewer answers than requests, or a p99 of twice that at the
    lowest rate. NaN if there is none; the longest wait is then in the table.
    """
    least = simulations[0]["p99_ms"]
    for row in simulations:
        if row["answers_per_second"] < 0.97 * row["rate"] or row["p99_ms"] > 2 * least:
            print(f"the first to break, at {row['rate']:,.0f} a second: the {row['longest_wait_at']}")
            return {"breaks_at_rate": row["rate"]}
    return {"breaks_at_rate": math.nan}


def simulation(plan: Plan, rate: float, seconds: float) -> dict[str, Any]:
    outcome = simulated(plan, rate, seconds)
    row = {
        "rate": rate,
        "replicas": plan.gateways + plan.retrievers + plan.scorers + plan.redis_shards,
        "answers_per_second": len(outcome.seconds) / seconds,
        "p50_ms": outcome.quantile(0.5) * 1e3,
        "p99_ms": outcome.quantile(0.99) * 1e3,
        **{f"{stage}_busy": share for stage, share in outcome.busy.items()},
        **{f"{stage}_wait_ms": wait * 1e3 for stage, wait in outcome.waits.items()},
        "longest_wait_at": outcome.bottleneck,
    }
    print(row, flush=True)
    return row


if __name__ == "__main__":
    report.run(main)
