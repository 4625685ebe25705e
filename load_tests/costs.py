"""The cost of a request in each stage: CPU seconds of its process, measured over a grid and fitted.

The gateway, the retriever and Redis run in separate processes, in front of a scorer that costs nothing. The embedded
cross-encoder is measured separately, per token.
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from scipy.optimize import nnls

from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.catalog import LocalCatalog
from load_tests import processes
from load_tests.sessions import passages
from tests.caching.servers import RedisServer
from tests.faults import stand_in

BATCH_SIZE, K = 5, 50
STAGES = ("gateway", "retriever", "redis")


@dataclass(frozen=True, slots=True)
class Point:
    """A request: N candidates, B calls in rounds of BATCH_SIZE, vectors of d dimensions."""

    depth: int
    budget: int
    dimension: int

    @property
    def rounds(self) -> int:
        return -(-self.budget // BATCH_SIZE)

    def terms(self) -> list[float]:
        """The terms of the costs: 1, N, N d, B, B N and B N d."""
        n, b, d = float(self.depth), float(self.budget), float(self.dimension)
        return [1.0, n, n * d, b, b * n, b * n * d]


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds of a request by stage, as sums over `Point.terms`; and of a scorer per token."""

    stages: Mapping[str, Sequence[float]]
    token: float
    tokens_a_pair: float

    def of(self, stage: str, point: Point) -> float:
        return float(np.dot(self.stages[stage], point.terms()))

    def scorer(self, point: Point, tokens: float | None = None) -> float:
        """Return the CPU seconds of the embedded cross-encoder. tokens: of a pair, by default as measured."""
        return point.budget * (self.tokens_a_pair if tokens is None else tokens) * self.token

    def all(self, point: Point) -> float:
        return sum(self.of(stage, point) for stage in STAGES) + self.scorer(point)


@dataclass(frozen=True, slots=True)
class Parts:
    """The processes of a service by stage, and its client."""

    pids: Mapping[str, int]
    client: httpx.Client

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds that each process has used."""
        return {stage: cpu_seconds(pid) for stage, pid in self.pids.items()}


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of the threads of a process, without threads that have ended; thread pools keep theirs."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has just ended
            spent += int((task / "schedstat").read_text().split()[0])
    return spent / 1e9


@contextmanager
def running(directory: Path, documents: int, dimensions: Sequence[int], scorer_url: str) -> Iterator[Parts]:
    """Make `indexes` and start the `separate` processes over them."""
    indexes(directory / "data", documents, dimensions)
    with separate(directory, scorer_url) as parts:
        yield parts


def indexes(data: Path, documents: int, dimensions: Sequence[int]) -> None:
    """Make an index of random vectors for each dimension, such as `d384`, in a data directory."""
    texts = passages(documents)
    catalog = LocalCatalog(data / "indexes")
    for dimension in dimensions:
        vectors = np.random.default_rng(dimension).standard_normal((documents, dimension), np.float32)
        rows = [Document(str(number), text) for number, text in enumerate(texts)]
        catalog.create(f"d{dimension}", encoder=None, dimension=dimension).upsert(rows, vectors)
    catalog.close()


@contextmanager
def separate(directory: Path, scorer_url: str, *, tree: Path | None = None) -> Iterator[Parts]:
    """Start a gateway, a retriever over the indexes in `directory / "data"`, and Redis.

    tree: a checkout whose source they run instead of this one.
    """
    with ExitStack() as stack:
        redis = RedisServer(directory / "redis")
        stack.callback(redis.kill)
        assert redis._process is not None
        retriever = stack.enter_context(processes.retriever(directory / "data", tree=tree))
        environment = {"BOUNDARYMORPH_CACHE__URL": redis.url, "BOUNDARYMORPH_SCORER__URL": f'["{scorer_url}"]'}
        os.environ.update(environment)
        try:
            serve = ["serve", "--retriever-url", retriever.url, "--data-directory", str(directory / "gateway")]
            gateway = stack.enter_context(processes.serving(serve, tree=tree))
        finally:
            for name in environment:
                del os.environ[name]
        client = stack.enter_context(httpx.Client(base_url=gateway.url, timeout=120))
        pids = {"gateway": gateway.process.pid, "retriever": retriever.process.pid, "redis": redis._process.pid}
        yield Parts(pids, client)


def requests(point: Point, seed: int = 0, *, batch_size: int | str = BATCH_SIZE) -> Iterator[dict[str, Any]]:
    """Yield bodies of requests with new queries."""
    rng = random.Random(seed)
    while True:
        yield {
            "index": f"d{point.dimension}",
            "query": f"how to read archive {rng.getrandbits(60)}",
            "query_embedding": [rng.gauss(0, 1) for _ in range(point.dimension)],
            "depth": point.depth,
            "budget": point.budget,
            "batch_size": batch_size,
            "k": K,
        }


def measured(parts: Parts, point: Point, count: int) -> dict[str, float]:
    """Return the CPU seconds of a request by stage, the mean of so many after a warm-up request."""
    bodies = requests(point, hash(point))
    _ask(parts.client, next(bodies), point)
    before = parts.cpu()
    for body in itertools.islice(bodies, count):
        _ask(parts.client, body, point)
    time.sleep(0.2)  # for what is written to the cache after the answer
    return {stage: (spent - before[stage]) / count for stage, spent in parts.cpu().items()}


def _ask(client: httpx.Client, body: dict[str, Any], point: Point) -> None:
    answer = client.post("/select", json=body).raise_for_status().json()
    calls = answer["usage"]["cross_encoder_calls"]
    if calls != point.budget or len(answer["documents"]) != K:
        raise RuntimeError(f"{calls} calls and {len(answer['documents'])} documents, not {point.budget} and {K}")


def fitted(points: Sequence[Point], seconds: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return for each stage non-negative coefficients of `Point.terms` with the least relative error."""
    stages = {}
    terms = np.array([point.terms() for point in points])
    scale = terms.max(axis=0)
    for stage in STAGES:
        spent = np.array([row[stage] for row in seconds])
        weight = 1 / np.maximum(spent, 1e-4)
        coefficients, _ = nnls(terms / scale * weight[:, None], spent * weight)
        stages[stage] = (coefficients / scale).tolist()
    return stages


def token_cost(scorer_url: str, pid: int, pairs: int) -> tuple[float, float]:
    """Return a scorer's CPU seconds per token and tokens per pair, over passages of docstrings."""
    texts = passages(pairs)
    with httpx.Client(base_url=scorer_url, timeout=300) as client:
        _score(client, texts[:BATCH_SIZE])
        tokens, spent = _tokens(client), cpu_seconds(pid)
        for start in range(0, pairs, BATCH_SIZE):
            _score(client, texts[start : start + BATCH_SIZE])
        tokens, spent = _tokens(client) - tokens, cpu_seconds(pid) - spent
    return spent / tokens, tokens / pairs


def _score(client: httpx.Client, texts: Sequence[str]) -> None:
    client.post("/score", json={"query": "how to read an archive", "texts": texts}).raise_for_status()


def _tokens(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("boundarymorph_scorer_batch_tokens_sum"))


def all_costs(points: Sequence[Point], count: int, pairs: int) -> tuple[Costs, list[dict[str, Any]]]:
    """Return the costs, and the grid that they are fitted to: measured and fitted CPU milliseconds of each stage."""
    dimensions = sorted({point.dimension for point in points})
    with tempfile.TemporaryDirectory() as directory, stand_in.running() as scorer:
        documents = max(point.depth for point in points)
        with running(Path(directory), documents, dimensions, scorer.endpoint().base) as parts:
            seconds = []
            for point in points:
                seconds.append(measured(parts, point, count))
                print(point, {stage: f"{spent * 1e3:.1f} ms" for stage, spent in seconds[-1].items()}, flush=True)
    with processes.scorer() as server:
        costs = Costs(fitted(points, seconds), *token_cost(server.url, server.process.pid, pairs))
    rows = [
        {
            "N": point.depth,
            "B": point.budget,
            "d": point.dimension,
            **{f"{stage}_ms": spent[stage] * 1e3 for stage in STAGES},
            **{f"{stage}_fitted_ms": costs.of(stage, point) * 1e3 for stage in STAGES},
        }
        for point, spent in zip(points, seconds, strict=True)
    ]
    return costs, rows
