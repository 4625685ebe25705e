"""Measure the time that the service adds to its scores: `make bench NAME=request`.

The scorer costs nothing here: it answers at once, in the process of the benchmark. Every query is new, so nothing is
cached. *index* asks an index, in two layouts: "three" processes (gateway, retriever, and Redis) and "one". *pool* sends
the pool with its vectors, so that a body has many MB. *embedded* is *index* in one process with a scorer that has the
name of the embedded model, so it is trusted as that one, and its pace, but takes no CPU time. With `--beside COMMIT`
the service of that commit gets each block of requests too, in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import random
import statistics
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

from load_tests import report
from load_tests.processes import Server, checkout, retriever, serving
from load_tests.workload import passages
from tests.caching.servers import RedisServer
from tests.fakes import wires
from tests.fakes.upstream import Reply, in_a_thread, well

K = 50
STAGES = ("parse", "retrieve", "fetch", "select", "score")
BLOCK = 5  # requests of one version before those of the other
UPLOAD = 500  # documents per request
EMBEDDED, PACE = "cross-encoder/ms-marco-MiniLM-L-12-v2", 0.01  # the embedded model and its seconds per text
NO_TEST = {"BOUNDARYMORPH_SCORER__SELF_TEST": "false"}  # the scores of the benchmark have no meaning
Size = tuple[int, int, int]
SIZES: dict[str, list[Size]] = {  # (N, B, d) by part
    "index": [(1_000, 0, 384), (1_000, 20, 384), (1_000, 50, 384), (10_000, 0, 384), (10_000, 50, 384),
              (10_000, 50, 1_024)],
    "pool": [(1_000, 25, 384), (10_000, 50, 384), (10_000, 50, 1_024)],
    "embedded": [(1_000, 25, 384), (1_000, 50, 384), (10_000, 50, 384)],
}  # fmt: skip
RATIOS = {"p50_ms", "gateway_cpu_ms", "retriever_cpu_ms"}


@dataclass
class Service:
    """The processes of one version by role, and their measurements.

    They are the seconds of each request, CPU seconds, and answers.
    """

    parts: dict[str, Server]
    client: httpx.Client
    seconds: list[float] = field(default_factory=list)
    cpu: dict[str, float] = field(default_factory=dict)
    answers: list[dict[str, Any]] = field(default_factory=list)

    def fill(self, documents: int, dimensions: set[int]) -> None:
        """Create an index of random vectors for each dimension, such as `d384`, unless it exists."""
        for dimension in dimensions:
            url, texts = f"/indexes/d{dimension}", passages(documents)
            created = self.client.put(url, json={"dimension": dimension}).raise_for_status()
            vectors = np.random.default_rng(dimension).standard_normal((documents, dimension), np.float32)
            for start in range(0, documents if created.status_code == 201 else 0, UPLOAD):
                part = [
                    {"id": str(number), "text": texts[number], "embedding": vectors[number]}
                    for number in range(start, min(start + UPLOAD, documents))
                ]
                body = orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)
                self.client.post(f"{url}/documents", content=body).raise_for_status()

    def ask(self, bodies: Sequence[bytes], budget: int) -> None:
        """Send requests one after another, and add their measurements."""
        before = {role: part.processor_seconds() for role, part in self.parts.items()}
        for body in bodies:
            start = time.perf_counter()
            response = self.client.post("/select", content=body)
            self.seconds.append(time.perf_counter() - start)
            answer = response.raise_for_status().json()
            calls = answer["usage"]["cross_encoder_calls"]
            if (calls, len(answer.pop("documents"))) != (budget, K):
                raise RuntimeError(f"not {budget} calls and {K} documents: {answer}")
            self.answers.append(answer)
        time.sleep(0.2)  # for writes to the cache after the answer
        for role, part in self.parts.items():
            self.cpu[role] = self.cpu.get(role, 0.0) + part.processor_seconds() - before[role]

    def row(self) -> dict[str, float]:
        """Return percentiles of a request and milliseconds by role and stage, and forget all.

        The milliseconds by role are CPU time.
        """
        row = report.percentiles(self.seconds)
        row |= {f"{role}_cpu_ms": spent / len(self.seconds) * 1e3 for role, spent in self.cpu.items()}
        row["rounds"] = statistics.fmean(answer["usage"]["rounds"] for answer in self.answers)
        for name in STAGES:
            row[f"{name}_ms"] = statistics.fmean(answer["timings_ms"].get(name, 0.0) for answer in self.answers)
        self.seconds, self.cpu, self.answers = [], {}, []
        return row


def start(
    stack: ExitStack, layout: str, data: Path, scorer: str, tree: Path | None, settings: Mapping[str, str]
) -> Service:
    """Start the processes of a layout over the indexes in `data`.

    `tree` is the source that they run, None for this one.
    """
    variables = {"BOUNDARYMORPH_SCORER__URL": f'["{scorer}"]', **settings}
    parts, options = {}, ["--data-directory", str(data)]
    if layout == "three":
        parts["retriever"] = stack.enter_context(retriever(data, tree=tree, variables=settings))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = RedisServer(folder / "redis")
        stack.callback(redis.kill)
        variables["BOUNDARYMORPH_CACHE__URL"] = redis.url
        options = ["--retriever-url", parts["retriever"].url, "--data-directory", str(folder)]
    parts["gateway"] = stack.enter_context(serving(["serve", *options], tree=tree, variables=variables))
    client = httpx.Client(base_url=parts["gateway"].url, timeout=120, headers={"content-type": "application/json"})
    return Service(parts, stack.enter_context(client))


async def paced(reply: Reply) -> Reply:
    """Delay a reply by the time that the embedded model takes for its scores."""
    await asyncio.sleep(PACE * len(reply.body["scores"]))
    return reply


def requests(part: str, size: Size) -> Iterator[bytes]:
    """Yield bodies of requests with new queries."""
    (depth, budget, dimension), rng = size, random.Random(str((part, size)))
    fields: dict[str, Any] = {"budget": budget, "k": K, "deadline_ms": 60_000, "return_documents": False}
    if part == "pool":
        vectors = np.random.default_rng(0).standard_normal((depth, dimension)).astype("<f2")
        embeddings = {"data": base64.b64encode(vectors.tobytes()).decode(), "shape": [depth, dimension]}
        texts = [{"text": text} for text in passages(depth, words=(150, 150))]
        fields["pool"] = {"documents": texts, "embeddings": embeddings}
    else:
        fields |= {"index": f"d{dimension}", "depth": depth}
    while True:
        query = {"query": f"how to read archive {rng.getrandbits(60)}"}
        yield orjson.dumps({**query, "query_embedding": [rng.gauss(0, 1) for _ in range(dimension)], **fields})


def compared(versions: dict[str, Service], part: str, size: Size, count: int) -> dict[str, dict[str, float]]:
    """Send `count` requests to each version, in alternating blocks, and return a row of each.

    Some more requests come first, to warm up.
    """
    offered = {name: requests(part, size) for name in versions}
    for name, version in versions.items():
        version.ask(list(itertools.islice(offered[name], 3)), size[1])
        version.row()
    for first in range(0, count, BLOCK):
        for name, version in versions.items():
            version.ask(list(itertools.islice(offered[name], min(BLOCK, count - first))), size[1])
    return {name: version.row() for name, version in versions.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--layouts", nargs="+", choices=("three", "one"), default=["three", "one"], help="of indexes")
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=lambda given: tuple(map(int, given.split(","))),
        metavar="N,B,d",
        help="instead of those of the parts",
    )
    parser.add_argument("--requests", type=int, default=60, help="of each row and version")
    parser.add_argument("--beside", metavar="COMMIT", help="or the folder of a checkout")
    changes: dict[str, Any] = {"nargs": "+", "default": [], "metavar": "SETTING=VALUE"}
    parser.add_argument("--set", **changes, help="of this version, by variable")
    parser.add_argument("--beside-set", **changes, help="this version with these, too, in turn")
    given = parser.parse_args()
    rows, ratios = report.Rows("request"), dict[str, float]()
    settings = NO_TEST | dict(each.split("=", 1) for each in given.set)
    with ExitStack() as whole, checkout(given.beside) as tree:
        trees: dict[str, tuple[Path | None, dict[str, str]]] = {"this": (None, settings)}
        if tree is not None:
            trees["before"] = tree, {}  # older versions do not know all settings
        if given.beside_set:
            trees["beside"] = None, settings | dict(each.split("=", 1) for each in given.beside_set)
        # Each version has a folder of its own, because their formats may differ.
        folders = {name: Path(whole.enter_context(tempfile.TemporaryDirectory())) for name in trees}
        layouts = [("index", layout) for layout in given.layouts] + [("pool", "one"), ("embedded", "one")]
        for part, layout in (each for each in layouts if each[0] in given.parts):
            sizes = given.sizes or SIZES[part]
            server = wires.Server(wires.Ours(EMBEDDED if part == "embedded" else wires.MODEL))
            server.behaviour = paced if part == "embedded" else well
            with ExitStack() as stack, in_a_thread(server):
                scorer = server.endpoint().base
                versions = {name: start(stack, layout, folders[name], scorer, *trees[name]) for name in trees}
                for version in versions.values() if part != "pool" else ():
                    version.fill(max(size[0] for size in sizes), {size[2] for size in sizes})
                for size in sizes:
                    cell = {"part": part, "processes": layout, **dict(zip("NBd", size, strict=True))}
                    measured = compared(versions, part, size, given.requests)
                    for name, row in measured.items():
                        rows.append({**cell, "version": name, **row})
                    for other, key in itertools.product(sorted(measured.keys() - {"this"}), sorted(RATIOS)):
                        if key in measured["this"]:
                            ratio = measured["this"][key] / measured[other][key]
                            ratios[f"{key}_over_{other}_{'_'.join(map(str, cell.values()))}"] = ratio
    rows.write(ratios)


if __name__ == "__main__":
    report.run(main)
