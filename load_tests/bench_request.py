"""`make bench NAME=request`: what the service adds to the time of its scores.

The scorer costs nothing here: it answers at once, in the process of the benchmark. Every query is new, so nothing is
cached. Three parts: *index* asks an index, in two layouts: "three" processes (gateway, retriever and Redis) and "one".
*pool* sends the pool with its vectors, so that a body has many MB. *load* first measures the most that eight clients
without a pause get, and then sends requests at random times (Poisson) at shares of it, measured from when they were
due. With `--beside COMMIT` the service of that commit gets each block of requests too, in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson

from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.catalog import LocalCatalog
from load_tests import processes, report
from load_tests.processes import Server, checkout, serving
from load_tests.workload import passages

K = 50
STAGES = ("parse", "retrieve", "fetch", "select", "score")
BLOCK = 5  # requests of one version before those of the other
CLIENTS, WARM_UP = 8, 20
JSON = {"content-type": "application/json"}
NO_TEST = {"BOUNDARYMORPH_SCORER__SELF_TEST": "false"}  # the scores of the benchmark mean nothing
SIZES = {  # (N, B, d) by part
    "index": [(1_000, 0, 384), (1_000, 20, 384), (1_000, 50, 384), (10_000, 0, 384), (10_000, 50, 384),
              (10_000, 50, 1_024)],
    "pool": [(1_000, 25, 384), (10_000, 50, 384), (10_000, 50, 1_024)],
    "load": [(1_000, 20, 384)],
}  # fmt: skip
QUICK = {part: [(200, 10, 16)] for part in SIZES}
Size = tuple[int, int, int]
Bodies = Iterator[bytes]


@dataclass
class Service:
    """The processes of one version by role, and what they took: seconds of each request, CPU seconds, stages in ms."""

    parts: dict[str, Server]
    client: httpx.Client
    seconds: list[float] = field(default_factory=list)
    cpu: dict[str, float] = field(default_factory=dict)
    stages: list[dict[str, float]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def ask(self, bodies: Sequence[bytes], budget: int) -> None:
        """Send requests one after another, and add what they took."""
        before = {role: part.processor_seconds() for role, part in self.parts.items()}
        for body in bodies:
            start = time.perf_counter()
            response = self.client.post("/select", content=body, headers=JSON)
            self.seconds.append(time.perf_counter() - start)
            answer = response.raise_for_status().json()
            calls = answer["usage"]["cross_encoder_calls"]
            if (calls, len(answer["documents"])) != (budget, K):
                found = f"{calls} calls and {len(answer['documents'])} documents, not {budget} and {K}"
                raise RuntimeError(f"{found}: {answer['stop_reason']}, {answer['warnings']}")
            self.stages.append(answer["timings_ms"])
            self.rounds.append(answer["usage"]["rounds"])
        time.sleep(0.2)  # for what is written to the cache after the answer
        for role, part in self.parts.items():
            self.cpu[role] = self.cpu.get(role, 0.0) + part.processor_seconds() - before[role]

    def row(self) -> dict[str, float]:
        """Return percentiles of a request, CPU milliseconds by role, and milliseconds by stage."""
        cpu = {f"{role}_cpu_ms": spent / len(self.seconds) * 1e3 for role, spent in self.cpu.items()}
        stages = {f"{name}_ms": statistics.fmean(each.get(name, 0.0) for each in self.stages) for name in STAGES}
        rounds = {"rounds": statistics.fmean(self.rounds)}
        return report.percentiles(self.seconds) | cpu | rounds | stages

    def reset(self) -> None:
        """Forget what requests took."""
        self.seconds, self.cpu, self.stages, self.rounds = [], {}, [], []


def start(
    stack: ExitStack, layout: str, data: Path, scorer: str, tree: Path | None, settings: Mapping[str, str]
) -> Service:
    """Start the processes of a layout over the indexes in `data`. tree: the source that they run, None for this one."""
    variables = {"BOUNDARYMORPH_SCORER__URL": f'["{scorer}"]', **settings}
    parts, options = {}, ["--data-directory", str(data)]
    if layout == "three":
        parts["retriever"] = stack.enter_context(processes.retriever(data, tree=tree, variables=settings))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        parts["redis"] = stack.enter_context(processes.redis(folder / "redis"))
        variables["BOUNDARYMORPH_CACHE__URL"] = parts["redis"].url
        options = ["--retriever-url", parts["retriever"].url, "--data-directory", str(folder)]
    parts["gateway"] = stack.enter_context(serving(["serve", *options], tree=tree, variables=variables))
    return Service(parts, stack.enter_context(httpx.Client(base_url=parts["gateway"].url, timeout=120)))


def filled(data: Path, documents: int, dimensions: Sequence[int], tree: Path | None) -> None:
    """Make the indexes of `fill` by the version in a source tree, None for this one."""
    source = os.pathsep.join([str((tree or Path.cwd()) / "service"), str(Path(__file__).parents[1])])
    command = [sys.executable, "-m", "load_tests.bench_request", "--fill", str(data), str(documents)]
    subprocess.run([*command, *map(str, dimensions)], env=os.environ | {"PYTHONPATH": source}, check=True)


def fill(data: Path, documents: int, dimensions: Sequence[int]) -> None:
    """Make an index of random vectors for each dimension, such as `d384`, in a data directory."""
    catalog = LocalCatalog(data / "indexes")
    rows = [Document(str(number), text) for number, text in enumerate(passages(documents))]
    for dimension in dimensions:
        vectors = np.random.default_rng(dimension).standard_normal((documents, dimension), np.float32)
        catalog.create(f"d{dimension}", encoder=None, dimension=dimension).upsert(rows, vectors)
    catalog.close()


def requests(part: str, size: Size, seed: int = 0) -> Bodies:
    """Yield bodies of requests with new queries."""
    (depth, budget, dimension), rng = size, random.Random(str((part, size, seed)))
    fields: dict[str, Any] = {"budget": budget, "k": K, "deadline_ms": 60_000}
    if part == "pool":
        vectors = np.random.default_rng(seed).standard_normal((depth, dimension)).astype("<f2")
        embeddings = {"data": base64.b64encode(vectors.tobytes()).decode(), "shape": [depth, dimension]}
        texts = [{"text": text} for text in passages(depth, words=(150, 150))]
        fields["pool"] = {"documents": texts, "embeddings": embeddings}
    else:
        fields |= {"index": f"d{dimension}", "depth": depth}
    while True:
        embedding = [rng.gauss(0, 1) for _ in range(dimension)]
        yield orjson.dumps(
            {"query": f"how to read archive {rng.getrandbits(60)}", "query_embedding": embedding, **fields}
        )


def compared(versions: dict[str, Service], part: str, size: Size, count: int) -> dict[str, dict[str, float]]:
    """Send each version so many requests, in blocks in turn, after some to warm up, and return a row of each."""
    offered = {name: requests(part, size) for name in versions}
    for name, version in versions.items():
        version.ask(list(itertools.islice(offered[name], 3)), size[1])
        version.reset()
    for first in range(0, count, BLOCK):
        for name, version in versions.items():
            version.ask(list(itertools.islice(offered[name], min(BLOCK, count - first))), size[1])
    rows = {name: version.row() for name, version in versions.items()}
    for version in versions.values():
        version.reset()
    return rows


async def saturated(url: str, bodies: Bodies, seconds: float) -> float:
    """Return the answers a second that clients without a pause get."""
    answered = 0
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def one(stop: float) -> None:
            nonlocal answered
            while time.perf_counter() < stop:
                (await client.post("/select", content=next(bodies), headers=JSON)).raise_for_status()
                answered += 1

        await asyncio.gather(*(one(0.0) for _ in range(WARM_UP)))
        start = time.perf_counter()
        await asyncio.gather(*(one(start + seconds) for _ in range(CLIENTS)))
        return answered / (time.perf_counter() - start)


async def at_rate(url: str, bodies: Bodies, rate: float, seconds: float, seed: int) -> list[float]:
    """Return the seconds that each request took, from when it was due."""
    rng, due, taken = random.Random(seed), 0.0, list[float]()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client, asyncio.TaskGroup() as group:

        async def one(due: float) -> None:
            (await client.post("/select", content=next(bodies), headers=JSON)).raise_for_status()
            taken.append(time.perf_counter() - due)

        start = time.perf_counter()
        while (due := due + rng.expovariate(rate)) < seconds:
            await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
            group.create_task(one(start + due))
    return taken


async def loaded(versions: dict[str, Service], size: Size, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Return a row for each version and share of the most that the slower one answers."""
    bodies, urls = requests("load", size), {name: version.parts["gateway"].url for name, version in versions.items()}
    most = {name: await saturated(url, bodies, given.seconds) for name, url in urls.items()}
    rows = []
    for share in given.shares:
        rate = share * min(most.values())
        taken: dict[str, list[float]] = {name: [] for name in versions}
        for turn, (name, url) in itertools.product(range(given.turns), urls.items()):
            taken[name] += await at_rate(url, bodies, rate, given.seconds, seed=turn)
        for name, seconds in taken.items():
            times = report.percentiles(seconds)
            rows.append({"version": name, "share": share, "rate": rate, "most": most[name], **times})
    return iter(rows)


def _size(given: str) -> Size:
    depth, budget, dimension = map(int, given.split(","))
    return depth, budget, dimension


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--layouts", nargs="+", choices=("three", "one"), default=["three", "one"], help="of indexes")
    parser.add_argument("--quick", action="store_true", help="a small index, to try it")
    parser.add_argument("--sizes", nargs="+", type=_size, metavar="N,B,d", help="instead of those of the parts")
    parser.add_argument("--requests", type=int, default=60, help="of each row and version")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.8], help="of the most")
    parser.add_argument("--seconds", type=float, default=10, help="of one turn under load")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--beside", metavar="COMMIT", help="or the folder of a checkout")
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING=VALUE", help="of this version, by variable")
    parser.add_argument(
        "--beside-set", nargs="+", metavar="SETTING=VALUE", help="this version with these, too, in turn"
    )
    parser.add_argument("--fill", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fill:
        folder, documents, *dimensions = given.fill
        fill(Path(folder), int(documents), list(map(int, dimensions)))
        return
    rows, ratios = report.Rows("request"), dict[str, float]()
    settings = NO_TEST | dict(each.split("=", 1) for each in given.set)
    sizes = QUICK if given.quick else dict.fromkeys(given.parts, given.sizes) if given.sizes else SIZES
    with ExitStack() as whole, processes.instant_scorer() as scorer, checkout(given.beside) as tree:
        trees = {"this": None} if tree is None else {"this": None, "before": tree}
        of_version = {"this": settings, "before": {}}  # older versions do not know all settings
        if given.beside_set:
            trees["beside"] = None
            of_version["beside"] = settings | dict(each.split("=", 1) for each in given.beside_set)
        folders = {}
        for name in trees:  # of each version its own, as their formats may differ
            folders[name] = Path(whole.enter_context(tempfile.TemporaryDirectory()))
            wanted = [size for part in sizes.values() for size in part]
            dimensions = sorted({size[2] for size in wanted})
            filled(folders[name], max(size[0] for size in wanted), dimensions, trees[name])
        layouts = [("index", layout) for layout in given.layouts] + [("pool", "one"), ("load", "one")]
        for part, layout in (each for each in layouts if each[0] in given.parts):
            with ExitStack() as stack:
                versions = {
                    name: start(stack, layout, folders[name], scorer, tree, of_version[name])
                    for name, tree in trees.items()
                }
                for size in sizes[part]:
                    cell = {"part": part, "processes": layout, **dict(zip("NBd", size, strict=True))}
                    if part == "load":
                        for row in asyncio.run(loaded(versions, size, given)):
                            rows.append(cell | row)
                        continue
                    measured = compared(versions, part, size, given.requests)
                    for name, row in measured.items():
                        rows.append({**cell, "version": name, **row})
                    for other in sorted(measured.keys() - {"this"}):
                        for key in sorted(measured["this"].keys() & {"p50_ms", "gateway_cpu_ms", "retriever_cpu_ms"}):
                            ratio = measured["this"][key] / measured[other][key]
                            ratios[f"{key}_over_{other}_{part}_{layout}_N{size[0]}_B{size[1]}_d{size[2]}"] = ratio
    rows.write(ratios)


if __name__ == "__main__":
    report.run(main)
