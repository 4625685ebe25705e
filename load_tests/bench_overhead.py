"""`make bench-overhead`: what the service adds to the time of its scores.

The scorer costs nothing here: it answers at once, in the process of the benchmark. Requests ask an index in growing
rounds, in two layouts: *three* processes (gateway, retriever and Redis) and *one* (with a cache of its own). Every
query is new, so nothing is cached. With `--beside COMMIT` the service of that commit gets each block of requests too,
in turn.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from load_tests import processes, report
from load_tests.costs import K, Parts, Point, indexes, requests, separate
from tests.faults import stand_in

LAYOUTS = ("three", "one")
POINTS = [
    Point(1_000, 0, 384),
    Point(1_000, 20, 384),
    Point(1_000, 50, 384),
    Point(10_000, 0, 384),
    Point(10_000, 50, 384),
    Point(10_000, 50, 1_024),
]
QUICK = [Point(500, 0, 64), Point(500, 10, 64)]
STAGES = ("parse", "retrieve", "fetch", "select", "score")
BLOCK = 5  # requests of one version before those of the other


@dataclass(slots=True)
class Measured:
    """Requests of one version: wall milliseconds of each, CPU seconds by process, milliseconds by stage of each."""

    walls: list[float] = field(default_factory=list)
    cpu: dict[str, float] = field(default_factory=dict)
    stages: list[dict[str, float]] = field(default_factory=list)

    def block(self, parts: Parts, bodies: Sequence[dict[str, Any]], budget: int) -> None:
        """Send requests one after another and add what they took."""
        before = parts.cpu()
        for body in bodies:
            start = time.perf_counter()
            response = parts.client.post("/select", json=body)
            self.walls.append((time.perf_counter() - start) * 1e3)
            answer = response.raise_for_status().json()
            calls = answer["usage"]["cross_encoder_calls"]
            if calls != budget or len(answer["documents"]) != K:
                raise RuntimeError(f"{calls} calls and {len(answer['documents'])} documents, not {budget} and {K}")
            self.stages.append(answer["timings_ms"])
        time.sleep(0.2)  # for what is written to the cache after the answer
        for name, spent in parts.cpu().items():
            self.cpu[name] = self.cpu.get(name, 0.0) + spent - before[name]

    def row(self) -> dict[str, float]:
        count, ordered = len(self.walls), sorted(self.walls)
        return {
            "p50_ms": statistics.median(ordered),
            "p99_ms": ordered[min(count - 1, math.ceil(0.99 * count) - 1)],
            **{f"{name}_cpu_ms": self.cpu.get(name, 0.0) / count * 1e3 for name in ("gateway", "retriever", "redis")},
            **{f"{name}_ms": statistics.fmean(stages.get(name, 0.0) for stages in self.stages) for name in STAGES},
        }


@contextmanager
def alone(data: Path, scorer_url: str, *, tree: Path | None) -> Iterator[Parts]:
    """Start one process with the indexes in it, named `gateway`."""
    command = ["serve", "--data-directory", str(data), "--scorer-url", scorer_url]
    with (
        processes.serving(command, tree=tree) as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        yield Parts({"gateway": server.process.pid}, client)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small indexes, to try it")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--requests", type=int, default=60, help="of each row and version")
    parser.add_argument("--beside", metavar="COMMIT", help="or the folder of a checkout")
    arguments = parser.parse_args()
    points = QUICK if arguments.quick else POINTS
    rows, ratios = report.Rows("overhead"), {}
    for layout in arguments.layouts:
        with ExitStack() as stack:
            trees = (
                [None]
                if arguments.beside is None
                else [None, stack.enter_context(processes.checkout(arguments.beside))]
            )
            versions = [stack.enter_context(running(layout, points, tree)) for tree in trees]
            for number, point in enumerate(points):
                measured = measure(versions, point, arguments.requests, seed=number)
                row = {
                    "processes": layout,
                    "N": point.depth,
                    "B": point.budget,
                    "d": point.dimension,
                    **measured[0].row(),
                }
                if arguments.beside is not None:
                    before = measured[1].row()
                    row |= {"before_p50_ms": before["p50_ms"], "before_gateway_cpu_ms": before["gateway_cpu_ms"]}
                    cell = f"{layout}_N{point.depth}_B{point.budget}_d{point.dimension}"
                    ratios[f"wall_over_before_{cell}"] = row["p50_ms"] / before["p50_ms"]
                    ratios[f"gateway_cpu_over_before_{cell}"] = row["gateway_cpu_ms"] / before["gateway_cpu_ms"]
                rows.append(row)
    report.write("overhead", rows, ratios)


@contextmanager
def running(layout: str, points: Sequence[Point], tree: Path | None) -> Iterator[Parts]:
    """Start the processes of a layout over indexes that hold as many documents as the largest pool."""
    with tempfile.TemporaryDirectory() as folder, stand_in.running() as scorer:
        data = Path(folder) / "data"
        indexes(data, max(point.depth for point in points), sorted({point.dimension for point in points}))
        url = scorer.endpoint().base
        layouts = alone(data, url, tree=tree) if layout == "one" else separate(Path(folder), url, tree=tree)
        with layouts as parts:
            yield parts


def measure(versions: Sequence[Parts], point: Point, count: int, *, seed: int) -> list[Measured]:
    """Send each version so many requests, in blocks in turn, after a few to warm up."""
    measured = [Measured() for _ in versions]
    bodies = [requests(point, seed, batch_size="auto") for _ in versions]
    for parts, offered in zip(versions, bodies, strict=True):
        Measured().block(parts, list(itertools.islice(offered, 3)), point.budget)
    while len(measured[0].walls) < count:
        for result, parts, offered in zip(measured, versions, bodies, strict=True):
            result.block(parts, list(itertools.islice(offered, min(BLOCK, count))), point.budget)
    return measured


if __name__ == "__main__":
    report.run(main)
