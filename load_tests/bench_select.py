"""`make bench-select`: the time of POST /select by stage, for a request with a pool and its embeddings.

Texts are passages of about 150 words from the standard library's docstrings; the embeddings are synthetic, in one
float16 block. Everything but the scoring (including parsing, decoding and the trip over loopback) should stay under a
tenth of the request. `--beside COMMIT` also sends each request to a service of that commit, in turn.
"""

import argparse
import base64
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import numpy as np
import orjson

from boundarymorph.cli.demo import docstrings
from boundarymorph.selection.methods import METHODS
from load_tests import report
from load_tests.processes import checkout, serving
from tests.selection.pools import clustered


def passages(count: int, words: int) -> list[str]:
    """Return passages of about this many words, each of consecutive docstrings."""
    vocabulary = itertools.cycle(word for document in docstrings() for word in document.content.split())
    return [" ".join(itertools.islice(vocabulary, words)) for _ in range(count)]


@contextmanager
def services(commit: str | None) -> Iterator[list[httpx.Client]]:
    """Yield clients of a service of this version and, if a commit is given, of one of that commit."""
    with ExitStack() as stack:
        trees = [None] if commit is None else [None, stack.enter_context(checkout(commit))]
        clients = []
        for tree in trees:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            server = stack.enter_context(serving(["serve", "--data-directory", folder], tree=tree))
            clients.append(stack.enter_context(httpx.Client(base_url=server.url, timeout=300)))
        yield clients


def request(texts: list[str], dimension: int, **fields: object) -> bytes:
    """Return the body of a request with these texts as its pool."""
    pool, _ = clustered(len(texts), dimension, 1, np.float32)
    block = base64.b64encode(pool.embeddings.astype("<f2").tobytes()).decode()
    documents = [{"text": text} for text in texts]
    embeddings = {"data": block, "shape": [len(texts), dimension]}
    body = {
        "query": "read and write compressed archives",
        "query_embedding": pool.query.tolist(),
        "pool": {"documents": documents, "embeddings": embeddings},
        "k": 100,
    }
    return orjson.dumps(body | fields)


def timed(client: httpx.Client, body: bytes) -> tuple[float, dict[str, float]]:
    """Return the milliseconds of one request from the first byte of its body, and those of its stages."""
    start = time.perf_counter()
    answer = client.post("/select", content=body, headers={"Content-Type": "application/json"})
    total = (time.perf_counter() - start) * 1e3
    stages: dict[str, float] = answer.raise_for_status().json()["timings_ms"]
    return total, stages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=int, default=10_000)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[384, 1024])
    parser.add_argument("--budget", type=int, default=50)
    parser.add_argument("--words", type=int, default=150)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--beside", metavar="COMMIT")
    arguments = parser.parse_args()

    os.environ["BOUNDARYMORPH_CACHE__ENABLED"] = "false"  # for the service: every repetition must be scored
    texts = passages(arguments.pool, arguments.words)
    name = "select_beside" if arguments.beside else "select"
    rows, ratios = report.Rows(name), {}
    with services(arguments.beside) as clients:
        for dimension, method, batch_size in itertools.product(
            arguments.dimensions, arguments.methods, arguments.batch_sizes
        ):
            body = request(texts, dimension, budget=arguments.budget, batch_size=batch_size, method=method)
            runs = [[timed(client, body) for client in clients] for _ in range(arguments.repeats)]
            total, stages = sorted((run[0] for run in runs), key=lambda run: run[0])[len(runs) // 2]
            row = {
                "pool": arguments.pool,
                "dimension": dimension,
                "budget": arguments.budget,
                "batch_size": batch_size,
                "method": method,
                "body_megabytes": len(body) / 1e6,
                "total_ms": total,
                **{f"{stage}_ms": stages[stage] for stage in ("receive", "parse", "retrieve", "select", "score")},
                "other_share": 1 - stages["score"] / total,
            }
            cell = f"d{dimension}_{method}_round{batch_size}"
            ratios[f"other_share_{cell}"] = row["other_share"]
            if arguments.beside:
                row["before_ms"] = statistics.median(run[1][0] for run in runs)
                row["before_not_scoring_ms"] = statistics.median(run[1][0] - run[1][1]["score"] for run in runs)
                row["not_scoring_ms"] = statistics.median(run[0][0] - run[0][1]["score"] for run in runs)
                ratios[f"before_over_now_{cell}"] = row["before_ms"] / total
            rows.append(row)
    report.write(name, rows, ratios)


if __name__ == "__main__":
    report.run(main)
