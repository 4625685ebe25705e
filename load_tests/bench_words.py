"""The cost of an index's words: BM25 and the terms of every candidate of a pool, and hybrid retrieval, compared with
the search.

python -m load_tests.bench_words --documents 1000000

The texts are passages of the standard library's docstrings of 20 to 60 words, each with a unique number; the vectors
have few dimensions, so that the store is measured and not the search.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from boundarymorph.cli.demo import docstrings
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.retriever import Search
from load_tests import report
from load_tests.sessions import QUERIES

BATCH = 1_000
DIMENSION = 32


def texts(count: int, seed: int = 0) -> Iterator[str]:
    rng = random.Random(seed)
    words = [word for document in docstrings() for word in document.content.split()]
    for number in range(count):
        start, length = rng.randrange(len(words) - 60), rng.randint(20, 60)
        yield " ".join([*words[start : start + length], f"number{number}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--depth", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=20, help="of each query, each with another vector")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        catalog = LocalCatalog(Path(folder))
        index = catalog.create("bench", encoder=None, dimension=DIMENSION)
        documents = (Document(f"document-{number}", text) for number, text in enumerate(texts(arguments.documents)))
        writing = 0.0
        while batch := list(itertools.islice(documents, BATCH)):
            vectors = rng.standard_normal((len(batch), DIMENSION))
            start = time.perf_counter()
            index.upsert(batch, vectors)
            writing += time.perf_counter() - start
        index.compact()
        catalog.close()
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        index = (catalog := LocalCatalog(Path(folder))).get("bench")
        index.retrieve(Search("", 1, np.ones(DIMENSION)))
        rows = report.Rows("words")
        for query in QUERIES:
            searching, bm25, terms, hybrid = [], [], [], []
            for _ in range(arguments.repeats):
                vector = rng.standard_normal(DIMENSION, np.float32)
                vector /= np.linalg.norm(vector)
                start = time.perf_counter()
                view = index.refresh().view()
                found = view.search(vector, arguments.depth).rows
                searched = time.perf_counter()
                assert view.words is not None
                view.words.scores(query, found)
                scored = time.perf_counter()
                view.words.terms(query, found)
                looked_up = time.perf_counter()
                index.retrieve(Search(query, arguments.depth, vector, hybrid=True))
                hybrid.append(time.perf_counter() - looked_up)
                searching.append(searched - start)
                bm25.append(scored - searched)
                terms.append(looked_up - scored)
            rows.append(
                {
                    "query": query,
                    "documents": arguments.documents,
                    "depth": arguments.depth,
                    "documents_per_second": arguments.documents / writing,
                    "disk_MiB": size // 2**20,
                    "search_p50_ms": 1e3 * float(np.percentile(searching, 50)),
                    "bm25_p50_ms": 1e3 * float(np.percentile(bm25, 50)),
                    "bm25_p99_ms": 1e3 * float(np.percentile(bm25, 99)),
                    "terms_p50_ms": 1e3 * float(np.percentile(terms, 50)),
                    "terms_p99_ms": 1e3 * float(np.percentile(terms, 99)),
                    "hybrid_p50_ms": 1e3 * float(np.percentile(hybrid, 50)),
                    "hybrid_p99_ms": 1e3 * float(np.percentile(hybrid, 99)),
                }
            )
        catalog.close()
    report.write("words", rows, {"slowest_bm25_p50_ms": max(row["bm25_p50_ms"] for row in rows)})


if __name__ == "__main__":
    report.run(main)
