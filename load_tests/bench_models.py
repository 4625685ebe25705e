"""Measure a model in three servers and without one: `make bench NAME=models`.

The servers are `boundarymorph scorer`, POST /v1/rerank, and Infinity.

All run the same model (MiniLM-L-12 with random weights, float32). Sessions of rounds of 5 texts ask the scorer, 1 to
128 at a time; *bare* is the best of our own forward pass and that of transformers, over batches of pairs tokenised and
sorted beforehand. Then clients rerank lists of documents of 100 to 250 words, in turns: all scored, by Infinity, and
with a budget of a fifth. `--shape smoke --seconds 1 --alone` tries the program, without Infinity.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from boundarymorph.scoring.remote import RemoteScorer, parse
from boundarymorph.scoring.transformer import TransformerCrossEncoder
from load_tests import models, report
from load_tests.processes import Server, ready, serving, stopped
from load_tests.workload import QUERIES, passages
from tests.compatibility.__main__ import Environment, install
from tests.ports import free_port

Route = tuple[Server, str, dict[str, Any]]  # path, and fields of a request
BATCHES, REPEATS = (1, 2, 4, 8, 16), 3
BATCH_SIZE = 5  # texts of a round
WORDS, SHARE = (100, 250), 0.2  # words of a reranked document; share of a list that a budget scores
# Otherwise known scores, deadlines and admission would be measured.
SERVICE = {
    "BOUNDARYMORPH_CACHE__ENABLED": "false",
    "BOUNDARYMORPH_DEADLINE_SECONDS": "36000",
    "BOUNDARYMORPH_LIMITS__DEADLINE_SECONDS": "36000",
}

INFINITY = (
    "infinity-emb[server,torch]==0.0.77",
    "torch==2.13.0",
    # The last that this infinity imports.
    "click==8.1.8",
    "optimum==1.27.0",
    "transformers==4.48.3",
    # infinity asks for numpy before 2; later ones of these do not.
    "numpy==1.26.4",
    "datasets==3.6.0",
    "pandas==2.3.3",
    "pyarrow==20.0.0",
    # Other settings that may change how fast a request is answered.
    "fastapi==0.163.2",
    "prometheus-fastapi-instrumentator==8.1.0",
    "sentence-transformers==3.4.1",
    "starlette==1.10.0",
    "tokenizers==0.21.4",
    "uvicorn==0.32.1",
)
# How the model runs, from the options of `infinity_emb v2 --help`.
RUN = ("--engine", "torch", "--dtype", "float32", "--device", "cpu", "--no-bettertransformer", "--no-compile")
# Answers out of a cache would measure the cache.
OPTIONS = (*RUN, "--batch-size", "32", "--no-model-warmup", "--no-vector-disk-cache", "--no-trust-remote-code")
OFFLINE = dict.fromkeys(("DO_NOT_TRACK", "HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")


@contextmanager
def infinity(model: Path) -> Iterator[Server]:
    """Run Infinity with a model, yield it when it is ready, and stop it at the end.

    Its output is in `server.log` in its environment, which is made again only if INFINITY has changed.
    """
    home, port = install(Environment("infinity-server", INFINITY), fresh=False).parents[1], free_port()
    command = [str(home / "bin" / "infinity_emb"), "v2", "--model-id", str(model.absolute()), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--log-level", "warning", *OPTIONS]
    # Threads that spin at a barrier would take cores from the threads that they wait for.
    variables = os.environ | OFFLINE | {"HF_HOME": str(home / "cache"), "OMP_WAIT_POLICY": "PASSIVE"}
    with (home / "server.log").open("wb") as log:
        started = subprocess.Popen(command, cwd=home, env=variables, stdout=log, stderr=subprocess.STDOUT)
    with ready(started, port, "health") as server:
        yield server


def bare(folder: Path, texts: Sequence[str]) -> float:
    """Return the most pairs per second of a forward pass without a server."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    features = [tokenizer(QUERIES[0], text, truncation=True) for text in texts]

    def plain(batch: Any) -> None:
        with torch.inference_mode():
            model(**tokenizer.pad(batch, return_tensors="pt"))

    ours = TransformerCrossEncoder.load(str(folder), device="cpu", precision="fp32")  # one thread a batch from here
    kinds: list[tuple[Callable[[Any], Any], Sequence[Any]]] = [
        (plain, sorted(features, key=lambda pair: len(pair["input_ids"]))),
        (ours.run, sorted(ours.tokenize(QUERIES[0], texts), key=len)),
    ]
    seconds = []
    with ThreadPoolExecutor(ours.workers) as threads:
        for (run, pairs), batch, _ in itertools.product(kinds, BATCHES, range(REPEATS)):
            start = time.perf_counter()
            list(threads.map(run, [pairs[first : first + batch] for first in range(0, len(pairs), batch)]))
            seconds.append(time.perf_counter() - start)
    ours.close()
    return len(texts) / min(seconds)


async def sessions(url: str, texts: Sequence[str], count: int, seconds: float) -> dict[str, float]:
    """Run `count` sessions without a pause.

    Measure for `seconds` after each has had its first answer.
    """
    scorer = RemoteScorer([parse(url)], timeout=600, attempt_timeout=600, connections=256)
    offered, finished = itertools.cycle(texts), list[float]()
    started = asyncio.Barrier(count + 1)

    async def session(query: str) -> None:
        for turn in itertools.count():
            start = time.perf_counter()
            await scorer.score(query, list(itertools.islice(offered, BATCH_SIZE)))
            if turn == 0:
                await started.wait()
            else:
                finished.append(time.perf_counter() - start)

    running = [asyncio.create_task(session(QUERIES[number % len(QUERIES)])) for number in range(count)]
    await started.wait()
    begin = time.perf_counter()
    await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    rate = BATCH_SIZE * len(finished) / (time.perf_counter() - begin)
    await stopped(running)
    await scorer.close()
    return {"pairs_per_second": rate, **report.percentiles(finished)}


async def reranked(
    routes: dict[str, Route], documents: int, clients: int, repetitions: int
) -> dict[str, dict[str, float]]:
    """Return for each route documents per second, a list's latency, and CPU seconds.

    The CPU seconds are of 1,000 documents.
    """
    lists = [passages(documents, words=WORDS, seed=client) for client in range(clients)]
    seconds: dict[str, list[float]] = {name: [] for name in routes}
    walls, cpu = dict.fromkeys(routes, 0.0), dict.fromkeys(routes, 0.0)
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None), trust_env=False) as client:

        async def one(name: str, texts: Sequence[str], number: int) -> float:
            server, path, fields = routes[name]
            start = time.perf_counter()
            body = {"query": QUERIES[number % len(QUERIES)], "documents": texts, **fields}
            answer = (await client.post(server.url + path, json=body)).raise_for_status().json()
            assert len(answer["results"]) == min(len(texts), fields.get("top_n", len(texts)))
            return time.perf_counter() - start

        for name in routes:
            await one(name, passages(10), 0)  # loads the model
        for turn in range(repetitions):
            names = list(routes)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                start, before = time.perf_counter(), routes[name][0].processor_seconds()
                seconds[name] += await asyncio.gather(*(one(name, lists[at], at) for at in range(clients)))
                walls[name] += time.perf_counter() - start
                cpu[name] += routes[name][0].processor_seconds() - before
    ranked = repetitions * clients * documents
    return {
        name: {
            "documents_per_second": ranked / walls[name],
            **report.percentiles(seconds[name], shares=(50, 95)),
            "cpu_s_per_1000": 1e3 * cpu[name] / ranked,
        }
        for name in routes
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(models.SHAPES), default="minilm")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=float, default=40.0, help="measured for each number of sessions")
    parser.add_argument("--pairs", type=int, default=96, help="texts that sessions ask for")
    parser.add_argument("--documents", type=int, nargs="+", default=[100, 1_000], help="of a list that is reranked")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repetitions", type=int, default=3, help="lists of each client")
    parser.add_argument("--alone", action="store_true", help="without Infinity")
    given = parser.parse_args()
    texts = passages(given.pairs)
    rows, ratios = report.Rows("models"), dict[str, float]()
    with ExitStack() as stack:
        folder = models.SHAPES[given.shape].write(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        at_best = bare(folder, texts)
        rows.append({"what": "bare", "pairs_per_second": at_best})

        def started(role: str, name: str) -> AbstractContextManager[Server]:
            if name == "infinity":
                return infinity(folder)
            data = ["--data-directory", str(folder.parent / "data")] if role == "serve" else []
            return serving([role, *data], variables=SERVICE | {"BOUNDARYMORPH_SCORER__MODEL": str(folder)})

        names = ["ours"] if given.alone else ["ours", "infinity"]
        for name in names:
            with started("scorer", name) as server:
                url = server.url.replace("http", "infinity") if name == "infinity" else server.url
                for count in given.sessions:
                    load = asyncio.run(sessions(url, texts, count, given.seconds))
                    share = load["pairs_per_second"] / at_best
                    rows.append({"what": name, "sessions": count, **load, "of_bare": share})
        servers = {name: stack.enter_context(started("serve", name)) for name in names}
        for documents, clients in itertools.product(given.documents, given.clients):
            paths = {"ours": "/v1/rerank", "infinity": "/rerank"}
            routes: dict[str, Route] = {name: (server, paths[name], {}) for name, server in servers.items()}
            fifth = {"budget": round(SHARE * documents), "top_n": min(50, documents)}
            routes["a fifth"] = (servers["ours"], "/v1/rerank", fifth)
            measured = asyncio.run(reranked(routes, documents, clients, given.repetitions))
            for name, row in measured.items():
                rows.append({"what": f"rerank, {name}", "documents": documents, "clients": clients, **row})
                ratio = measured["ours"]["documents_per_second"] / row["documents_per_second"]
                ratios[f"ours_over_{name}_{documents}_documents_{clients}_clients"] = ratio
    rows.write(ratios)


if __name__ == "__main__":
    report.run(main)
