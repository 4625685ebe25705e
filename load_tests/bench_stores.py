"""`make bench NAME=stores`: what a pool costs from each store; prints a table.

Each store is filled and searched in a process of its own. Documents are those of `make bench NAME=retrieval`. Times are
of `Index.retrieve`: the store, its answer as arrays, the exact ranking and, with words, BM25 over the texts.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psutil
import psycopg
from qdrant_client import QdrantClient

from boundarymorph.retrieval.document import Search
from boundarymorph.retrieval.interfaces import Catalog
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.stores import pgvector
from boundarymorph.retrieval.stores.catalog import StoreCatalog
from boundarymorph.retrieval.stores.lancedb import LanceStore
from boundarymorph.retrieval.stores.milvus import MilvusStore
from boundarymorph.retrieval.stores.milvus_connection import MilvusConnection
from boundarymorph.retrieval.stores.qdrant import QdrantStore
from load_tests.bench_retrieval import clustered, documents
from load_tests.workload import QUERIES
from tests.ports import free_port
from tests.retrieval import milvus, postgres

DIMENSION, SEARCHES, WRITTEN = 384, 7, 5_000
STORES = ("local", "pgvector", "pgvector-hnsw", "lancedb", "qdrant", "milvus")


@contextmanager
def catalog_of(name: str) -> Iterator[Catalog]:
    """Yield the catalog of an empty store."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        port = free_port()
        catalog: Catalog
        if name == "local":
            catalog = LocalCatalog(folder)
        elif name == "lancedb":
            catalog = StoreCatalog(LanceStore(str(folder), timeout=120), schema_seconds=600)
        elif name == "qdrant":
            catalog = StoreCatalog(QdrantStore(QdrantClient(":memory:")), schema_seconds=600)
        elif name == "milvus":
            stack.enter_context(milvus.process(folder, port))
            store = MilvusStore(MilvusConnection(f"http://127.0.0.1:{port}", timeout=120))
            catalog = StoreCatalog(store, schema_seconds=600)
        else:
            stack.enter_context(postgres.running(stack.enter_context(postgres.folder()), port))
            with psycopg.connect(postgres.url(port), autocommit=True) as connection:
                connection.execute("CREATE EXTENSION vector")
            if name == "pgvector-hnsw":
                vars(pgvector)["EXACT"] = 0  # its index is searched, however few documents there are
            catalog = StoreCatalog(pgvector.PgvectorStore(postgres.url(port), timeout=120), schema_seconds=600)
        yield catalog
        catalog.close()


def measure(name: str, count: int, depth: int, words: bool) -> str:
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
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cells = [f"{writing:.0f}", f"{np.median(times):.2f}", f"{max(times):.2f}", f"{np.mean(recalls):.3f}"]
    named = f"{name}{', words' if words else ''}"
    return f"| {named} | {' | '.join(cells)} | {own / 2**10:,.0f} | {servers / 2**20:,.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--depth", type=int, default=10_000)
    parser.add_argument("--stores", nargs="+", default=STORES, choices=STORES)
    parser.add_argument("--one", help="measure this one here, and print its row")
    parser.add_argument("--words", action="store_true", help="BM25 over the texts too")
    given = parser.parse_args()
    if given.one:
        print(measure(given.one, given.documents, given.depth, given.words))
        return
    print("| store | filled in, s | p50, s | slowest, s | recall | peak of the process, MB | its servers, MB |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for store in given.stores:
        options = ["--documents", str(given.documents), "--depth", str(given.depth), *(["--words"] * given.words)]
        subprocess.run([sys.executable, "-m", "load_tests.bench_stores", "--one", store, *options], check=False)


if __name__ == "__main__":
    main()
