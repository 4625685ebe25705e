"""Measure pools of a retriever over HTTP, beside FAISS: `make bench NAME=retrieval`.

Documents have clustered vectors, 20 to 60 words and metadata. Each kind of index is filled in a process of its own;
then each request asks for the ids, vectors and exact scores of the nearest, with a new query: by vectors alone, with
the words (BM25 and terms), hybrid, and with filters, whose values are new too. Plain FAISS (IndexFlatIP, ids and
rows) answers each search by vectors in this process, in turn, and with `--beside COMMIT` the retriever of that commit
each request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from boundarymorph.cli.demo import docstrings
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.remote import RemoteRetriever
from load_tests import report
from load_tests.processes import Server, checkout, retriever, source
from load_tests.workload import QUERIES

NAME, BLOCK = "bench", 8_192
CLUSTERS = 2_000
Vectors = NDArray[np.float32]


def clustered(count: int, dimension: int, first: int = 0) -> Iterator[Vectors]:
    """Yield blocks of unit rows of float16 precision around centres of unequal weight.

    Each centre has a cloud that spreads mostly along a tenth of the axes. `first` is the number of the first block; the
    same numbers make the same rows.
    """
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLUSTERS, dimension), dtype=np.float32)
    weights = 1 / np.arange(1, CLUSTERS + 1) ** 0.5
    spread = np.where(np.arange(dimension) < dimension / 10, 2.0, 0.5).astype(np.float32)
    rotation = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0].astype(np.float32)
    for number, start in enumerate(range(0, count, BLOCK), start=first):
        rng = np.random.default_rng((0, number))
        size = min(BLOCK, count - start)
        noise = (rng.standard_normal((size, dimension), dtype=np.float32) * spread) @ rotation
        rows = centres[rng.choice(CLUSTERS, size=size, p=weights / weights.sum())] + noise
        rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16).astype(np.float32)
        yield rows / np.linalg.norm(rows, axis=1, keepdims=True)


def documents(count: int) -> Iterator[Document]:
    """Yield documents with a passage, a tenant, a language, a year, a URL, and 3 of 50 tags.

    There are 1,000 tenants, 4 languages and 70 years.
    """
    rng = random.Random(0)
    words = [word for document in docstrings() for word in document.content.split()]
    for number in range(count):
        start, length = rng.randrange(len(words) - 60), rng.randint(20, 60)
        metadata = {
            "tenant": f"tenant-{rng.randrange(1_000)}",
            "language": rng.choices(["en", "de", "fr", "is"], [60, 20, 15, 5])[0],
            "year": rng.randrange(1955, 2025),
            "url": f"https://example.org/{number}",
            "tags": rng.sample([f"tag-{tag}" for tag in range(50)], 3),
        }
        yield Document(f"{number}", " ".join([*words[start : start + length], f"number{number}"]), metadata=metadata)


def kinds_of_search(number: int, count: int) -> dict[str, dict[str, Any]]:
    """Return the searches of a turn: fields of `Search` by name.

    No other turn has the same values.
    """
    words = {"query": f"{QUERIES[number % len(QUERIES)]} {number}"}
    years = {"gte": 1955 + number % 70, "lt": 2025}
    filters: dict[str, dict[str, Any]] = {
        "a tenant": {"tenant": f"tenant-{number}"},
        "ten tenants": {"tenant": {"in": [f"tenant-{number + 10 * each}" for each in range(10)]}},
        "a tenant from a year on": {"tenant": f"tenant-{number}", "year": years},
        "a url": {"url": f"https://example.org/{number % count}"},
        "a year": {"year": 1955 + number % 70},
        "from a year on": {"year": years},
        "a language, not a tenant": {"and": [{"language": "is"}, {"not": {"tenant": f"tenant-{number}"}}]},
    }
    return {
        "vectors": {"query": ""},
        "words": words,
        "hybrid": {**words, "hybrid": True},
        **{f"filter: {name}": {"query": "", "filter": each} for name, each in filters.items()},
    }


def fill(folder: Path, kind: str, count: int, dimension: int) -> dict[str, Any]:
    """Write all documents, and build the index's search structure. Returns seconds and MiB."""
    catalog = LocalCatalog(folder / "indexes")
    index = catalog.create(NAME, encoder=None, dimension=dimension, kind=kind)
    written, offered = 0.0, documents(count)
    for rows in clustered(count, dimension):
        block = [next(offered) for _ in rows]
        start = time.perf_counter()
        index.upsert(block, rows)
        written += time.perf_counter() - start
    start = time.perf_counter()
    index.compact()
    building = time.perf_counter() - start
    catalog.close()
    disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"documents_a_second": count / written, "build_seconds": building, "disk_MiB": disk // 2**20}


def filled(folder: Path, kind: str, given: argparse.Namespace, tree: Path | None) -> dict[str, Any]:
    """Return the result of `fill` by the version in a source tree, in a process of its own."""
    command = [sys.executable, "-m", "load_tests.bench_retrieval", "--fill", str(folder), "--kinds", kind]
    command += ["--documents", str(given.documents), "--dimension", str(given.dimension)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=source(tree))
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


async def searched(servers: dict[str, Server], given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each kind of search.

    It has percentiles by version, and those of FAISS, and the recall of the first version.
    """
    matrix = np.concatenate(list(clustered(given.documents, given.dimension)))
    plain = faiss.IndexFlatIP(given.dimension)
    plain.add(matrix)
    queries = next(clustered(BLOCK, given.dimension, first=10**6))[: given.queries]
    remotes = {name: RemoteRetriever(server.url, timeout=600) for name, server in servers.items()}
    seconds, found = defaultdict[tuple[str, str], list[float]](list), defaultdict[str, list[int]](list)
    recalls = list[float]()
    for number, query in enumerate([queries[-1], *queries]):
        for kind, fields in kinds_of_search(number, given.documents).items():
            for name, remote in remotes.items():
                start = time.perf_counter()
                pool = (await remote.retrieve(NAME, Search(depth=given.depth, embedding=query, **fields))).pool
                seconds[kind, name].append(time.perf_counter() - start)
                found[kind].append(len(pool))
                if kind == "vectors" and name == "this":
                    start = time.perf_counter()
                    _, (rows,) = plain.search(query[None], given.depth)
                    ids, _vectors = [str(row) for row in rows], matrix[rows]
                    seconds[kind, "faiss"].append(time.perf_counter() - start)
                    recalls.append(len(set(ids) & set(pool.ids)) / len(ids))
                    assert np.abs(pool.embeddings - matrix[[int(id) for id in pool.ids]]).max() < 2e-3
        for measured in (seconds, found, recalls) if number == 0 else ():  # warms up
            measured.clear()
    for remote in remotes.values():
        await remote.close()
    lines: dict[str, dict[str, Any]] = {}
    for (kind, name), times in seconds.items():
        line = lines.setdefault(kind, {"search": kind, "found": np.mean(found[kind])})
        line |= report.percentiles(times, of="p{}_ms" if name == "this" else name + "_p{}_ms")
    lines["vectors"]["recall"] = float(np.mean(recalls))
    return list(lines.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--depth", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--kinds", nargs="+", default=["flat", "ivf"])
    parser.add_argument("--beside", metavar="COMMIT", help="or the folder of a checkout")
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fill:
        print(json.dumps(fill(given.fill, given.kinds[0], given.documents, given.dimension)))
        return
    rows, ratios = report.Rows("retrieval"), dict[str, float]()
    for kind in given.kinds:
        with ExitStack() as stack, checkout(given.beside) as tree:
            servers = {}
            for name, each in {"this": None, **({} if tree is None else {"before": tree})}.items():
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                rows.append({"kind": kind, "search": f"none, {name}", **filled(folder, kind, given, each)})
                servers[name] = stack.enter_context(retriever(folder, tree=each))
            for row in asyncio.run(searched(servers, given)):
                rows.append({"kind": kind, **row, "own_MiB": servers["this"].resident()})
                if "faiss_p50_ms" in row:
                    ratios[f"ours_over_faiss_{kind}"] = row["p50_ms"] / row["faiss_p50_ms"]
                if tree is not None:
                    ratios[f"over_before_{kind}_{row['search']}"] = row["p50_ms"] / row["before_p50_ms"]
    rows.write(ratios)


if __name__ == "__main__":
    report.run(main)
