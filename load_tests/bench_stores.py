"""`make bench NAME=stores`: what a pool costs from each store; prints a table.

Each store is filled and searched in a process of its own. Vectors are clustered, texts are of 40 words. Times are of
`StoreIndex.retrieve`: the store, its answer as arrays, the exact ranking and, with words, BM25 over the texts.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.interfaces import Index
from boundarymorph.retrieval.stores.catalog import StoreCatalog
from boundarymorph.settings import Attached

DIMENSION, SEARCHES, WRITTEN = 384, 7, 5_000
STORES = ("local", "pgvector", "pgvector-hnsw", "lancedb", "qdrant", "milvus")


def collection(count: int) -> tuple[list[Document], NDArray[np.float32], NDArray[np.float32]]:
    """Return documents, their (n, d) vectors, and the queries."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((200, DIMENSION), np.float32)
    vectors = rng.standard_normal((count, DIMENSION), np.float32)
    vectors *= 0.8
    vectors += centres[rng.integers(200, size=count)]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = vectors[rng.integers(count, size=SEARCHES)] + 0.03 * rng.normal(size=(SEARCHES, DIMENSION))
    vocabulary = np.array([f"word{n}" for n in range(5_000)])
    drawn = np.minimum(rng.zipf(1.3, size=(count, 40)), 5_000) - 1
    documents = [
        Document(f"d{n}", " ".join(vocabulary[row]), metadata={"n": n, "part": n % 10}) for n, row in enumerate(drawn)
    ]
    return documents, vectors.astype(np.float16).astype(np.float32), queries.astype(np.float32)


@contextmanager
def filled(store: str, documents: list[Document], vectors: NDArray[np.float32], words: bool) -> Iterator[Index]:
    """Yield an index over a store that holds the documents."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        match store.partition("-")[0]:
            case "local":
                from boundarymorph.retrieval.local.catalog import LocalCatalog

                catalog = LocalCatalog(Path(folder))
                index = catalog.create("t", encoder=None, dimension=DIMENSION, lexical=words)
                for start in range(0, len(documents), WRITTEN):
                    index.upsert(documents[start : start + WRITTEN], vectors[start : start + WRITTEN])
                yield index
                catalog.close()
            case "pgvector":
                yield from _pgvector(documents, vectors, words, hnsw=store.endswith("hnsw"))
            case "lancedb":
                yield from _lancedb(Path(folder), documents, vectors, words)
            case "qdrant":
                yield from _qdrant(documents, vectors, words)
            case _:
                yield from _milvus(Path(folder), documents, vectors, words)


def _pgvector(documents: list[Document], vectors: Any, words: bool, hnsw: bool) -> Iterator[Index]:
    import orjson
    import psycopg

    from boundarymorph.retrieval.stores.pgvector import PgvectorStore
    from tests.ports import free_port
    from tests.retrieval import postgres

    with postgres.folder() as folder, postgres.running(folder, port := free_port()):
        with psycopg.connect(postgres.url(port), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
            connection.execute(f"CREATE TABLE t (id text, text text, metadata jsonb, embedding vector({DIMENSION}))")
            with connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
                for each, vector in zip(documents, vectors, strict=True):
                    row = "[" + ",".join(map(repr, vector.tolist())) + "]"
                    copy.write_row((each.id, each.text, orjson.dumps(each.metadata).decode(), row))
            connection.execute("CREATE INDEX ON t (id)")
            if hnsw:
                connection.execute("SET maintenance_work_mem = '1GB'")
                connection.execute("CREATE INDEX ON t USING hnsw (embedding vector_cosine_ops)")
            connection.execute("ANALYZE t")
        search: dict[str, Any] = {"exact_up_to": 0} if hnsw else {"exact_up_to": 10**9}
        attached = Attached(table="t", vector="embedding", metadata=("metadata",), words=words, search=search)
        catalog = StoreCatalog(PgvectorStore(postgres.url(port), timeout=120), {"t": attached}, schema_seconds=600)
        yield catalog.get("t")
        catalog.close()


def _lancedb(folder: Path, documents: list[Document], vectors: Any, words: bool) -> Iterator[Index]:
    import lancedb
    import pyarrow as arrow

    from boundarymorph.retrieval.stores.lancedb import LanceStore

    rows = {
        "id": [each.id for each in documents],
        "text": [each.text for each in documents],
        "metadata": [dict(each.metadata) for each in documents],
        "vector": arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.ravel()), DIMENSION),
    }
    lancedb.connect(folder).create_table("t", arrow.table(rows))
    attached = Attached(table="t", metadata=("metadata",), words=words, search={"exact_up_to": 10**9})
    yield StoreCatalog(LanceStore(str(folder), timeout=120), {"t": attached}, schema_seconds=600).get("t")


def _qdrant(documents: list[Document], vectors: Any, words: bool) -> Iterator[Index]:
    from qdrant_client import QdrantClient, models

    from boundarymorph.retrieval.stores.qdrant import QdrantStore

    client = QdrantClient(":memory:")
    client.create_collection("t", models.VectorParams(size=DIMENSION, distance=models.Distance.COSINE))
    for start in range(0, len(documents), WRITTEN):
        part = documents[start : start + WRITTEN]
        points = models.Batch(
            ids=list(range(start, start + len(part))),
            vectors=vectors[start : start + len(part)].tolist(),
            payloads=[{"text": each.text, "metadata": dict(each.metadata)} for each in part],
        )
        client.upsert("t", points)
    attached = Attached(table="t", metadata=("metadata",), words=words)
    yield StoreCatalog(QdrantStore(client), {"t": attached}, schema_seconds=600).get("t")
    client.close()


def _milvus(folder: Path, documents: list[Document], vectors: Any, words: bool) -> Iterator[Index]:
    from boundarymorph.retrieval.stores.milvus import MilvusStore
    from boundarymorph.retrieval.stores.milvus_connection import MilvusConnection
    from tests.ports import free_port
    from tests.retrieval import milvus

    with milvus.process(folder, port := free_port()):
        store = MilvusStore(MilvusConnection(f"http://127.0.0.1:{port}", timeout=120))
        catalog = StoreCatalog(store, schema_seconds=600)
        index = catalog.create("t", encoder=None, dimension=DIMENSION, lexical=words)
        for start in range(0, len(documents), WRITTEN):
            index.upsert(documents[start : start + WRITTEN], vectors[start : start + WRITTEN])
        yield index
        catalog.close()


def measure(store: str, count: int, depth: int, words: bool) -> str:
    """Return a row of the table."""
    documents, vectors, queries = collection(count)
    exact = [set(np.argsort(-(vectors @ query))[:depth].tolist()) for query in queries]
    began = time.perf_counter()
    with filled(store, documents, vectors, words) as index:
        writing = time.perf_counter() - began
        index.retrieve(Search("word1 word7", depth, queries[0]))
        times, recalls, said = [], [], set()
        for query, best in zip(queries, exact, strict=True):
            began = time.perf_counter()
            found = index.retrieve(Search("word1 word7", depth, query))
            times.append(time.perf_counter() - began)
            ids = {int(id.removeprefix("d")) for id in found.pool.ids}
            recalls.append(len(ids & best) / depth)
            said |= set(found.warnings)
        servers = sum(child.memory_info().rss for child in psutil.Process().children(recursive=True))
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    named = f"{store}{', words' if words else ''}"
    cells = [f"{writing:.0f}", f"{np.median(times):.2f}", f"{max(times):.2f}", f"{np.mean(recalls):.3f}"]
    return f"| {named} | {' | '.join(cells)} | {own / 2**10:,.0f} | {servers / 2**20:,.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--depth", type=int, default=10_000)
    parser.add_argument("--stores", nargs="+", default=STORES)
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
