"""Measure the cost of a pool from each store: `make bench NAME=stores`.

Each store is filled and searched in a process of its own. Documents are those of `make bench NAME=retrieval`. Times are
of `Index.retrieve`: the store, its answer as arrays, the exact ranking and, with words, BM25 over the texts.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg

from boundarymorph.retrieval.document import Search
from boundarymorph.retrieval.interfaces import Catalog
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.stores.catalog import StoreCatalog
from boundarymorph_stores import pgvector
from boundarymorph_stores.lancedb import LanceStore
from load_tests import report
from load_tests.bench_retrieval import clustered, documents
from load_tests.workload import QUERIES
from tests.ports import free_port
from tests.stores import postgres

DIMENSION, SEARCHES, WRITTEN = 384, 7, 5_000
STORES = ("local", "pgvector", "pgvector-hnsw", "lancedb")


@contextmanager
def catalog_of(name: str) -> Iterator[Catalog]:
    """Yield the catalog of an empty store."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        catalog: Catalog
        if name == "local":
            catalog = LocalCatalog(folder)
        elif name == "lancedb":
            catalog = StoreCatalog(LanceStore(str(folder), timeout=120), schema_seconds=600)
        else:
            port = free_port()
            stack.enter_context(postgres.running(stack.enter_context(postgres.folder()), port))
            with psycopg.connect(postgres.url(port), autocommit=True) as connection:
                connection.execute("CREATE EXTENSION vector")
            if name == "pgvector-hnsw":
                vars(pgvector)["EXACT"] = 0  # its index is searched even for few documents
            catalog = StoreCatalog(pgvector.PgvectorStore(postgres.url(port), timeout=120), schema_seconds=600)
        yield catalog
        catalog.close()


def measure(name: str, count: int, depth: int, words: bool) -> dict[str, Any]:
    """Return a row of the table."""
    vectors, texts = np.concatenate(list(clustered(count, DIMENSION))), list(documents(count))
    queries = next(clustered(SEARCHES, DIMENSION, first=10**6))
    exact = [set(np.argsort(-(vectors @ query))[:depth].tolist()) for query in queries]
    kind = {"local": "flat", "pgvector": "flat", "pgvector-hnsw": "hnsw"}.get(name)
    with catalog_of(name) as catalog:
        began = time.perf_counter()
        index = catalog.create("t", encoder=None, dimension=DIMENSION, kind=kind, lexical=words)
        for start in range(0, count, WRITTEN):
            index.upsert(texts[start : start + WRITTEN], vectors[start : start + WRITTEN])
        writing = time.perf_counter() - began
        index.retrieve(Search(QUERIES[0], depth, queries[0]))
        times, recalls = [], []
        for query, best in zip(queries, exact, strict=True):
            began = time.perf_counter()
            found = index.retrieve(Search(QUERIES[0], depth, query))
            times.append(time.perf_counter() - began)
            recalls.append(len(set(map(int, found.pool.ids)) & best) / depth)
        servers = sum(child.memory_info().rss for child in psutil.Process().children(recursive=True))
    row = {
        "store": f"{name}{', words' if words else ''}",
        "filled_s": writing,
        **report.percentiles(times, shares=(50, 100)),
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {**row, "recall": np.mean(recalls), "own_peak_MiB": peak // 2**10, "servers_MiB": servers // 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--depth", type=int, default=10_000)
    parser.add_argument("--stores", nargs="+", default=STORES, choices=STORES)
    parser.add_argument("--words", action="store_true", help="BM25 over the texts too")
    given = parser.parse_args()
    rows = report.Rows("stores")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        for store in given.stores:
            rows.append(processes.submit(measure, store, given.documents, given.depth, given.words).result())
    rows.write()


if __name__ == "__main__":
    report.run(main)
