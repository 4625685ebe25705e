"""The cost of a new filter, in milliseconds and beside reading all metadata, and of writing, replacing and deleting.

python -m load_tests.bench_filters --documents 200000
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.local.metadata import MatchingReader
from boundarymorph.retrieval.local.store import DocumentStore
from load_tests import report
from load_tests.bench_words import texts

BATCH = 1_000
DIMENSION = 32
TENANTS = 1_000

FILTERS: list[dict[str, Any]] = [
    {"tenant": "tenant-7"},
    {"tenant": "tenant-7", "language": "en"},
    {"tenant": "tenant-7", "year": {"gte": 2000}},
    {"tenant": {"in": [f"tenant-{number}" for number in range(10)]}},
    {"url": "https://example.org/17"},
    {"url": "https://example.org/none"},
    {"year": 1999},
    {"language": "is"},
    {"language": "en"},
    {"year": {"gte": 2000}},
]


def documents(count: int, seed: int = 0) -> Iterator[Document]:
    """Yield documents with one of 1,000 tenants, 4 languages and 70 years, a unique URL, and 3 of 50 tags."""
    rng = random.Random(seed)
    for number, text in enumerate(texts(count, seed)):
        metadata = {
            "tenant": f"tenant-{rng.randrange(TENANTS)}",
            "language": rng.choices(["en", "de", "fr", "is"], [60, 20, 15, 5])[0],
            "year": rng.randrange(1955, 2025),
            "url": f"https://example.org/{number}",
            "tags": rng.sample([f"tag-{tag}" for tag in range(50)], 3),
        }
        yield Document(f"document-{number}", text, metadata=metadata)


def milliseconds(store: DocumentStore, filter: dict[str, Any]) -> tuple[float, int]:
    """Return the time of a reader without a cache, and the number of documents that match."""
    asked = Filter(filter)
    with store.transaction() as connection:
        start = time.perf_counter()
        found = MatchingReader().sequences(connection, asked)
        return 1e3 * (time.perf_counter() - start), len(found)


def scan(store: DocumentStore, filter: dict[str, Any]) -> float:
    """Return the time of reading all metadata."""
    asked = Filter(filter)
    with store.transaction() as connection:
        start = time.perf_counter()
        rows = connection.execute("SELECT metadata FROM documents WHERE embedding IS NOT NULL")
        sum(asked.matches(orjson.loads(metadata)) for (metadata,) in rows)
        return 1e3 * (time.perf_counter() - start)


def write(store: DocumentStore, number: int, batches: list[list[Document]]) -> float:
    """Time a batch in seconds; every tenth also replaces an earlier one, and every twentieth deletes one."""
    vectors = np.random.default_rng(number).standard_normal((BATCH, DIMENSION))
    start = time.perf_counter()
    store.upsert(batches[number], vectors[: len(batches[number])], [b""] * len(batches[number]))
    if number % 10 == 9:
        store.upsert(batches[number - 5], vectors[: len(batches[number - 5])], [b""] * len(batches[number - 5]))
    if number % 20 == 19:
        store.delete([document.id for document in batches[number - 10]])
    return time.perf_counter() - start


def bytes_of(store: DocumentStore) -> int:
    with store.transaction() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    return int(pages) * int(size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=5, help="of each filter each way; the median counts")
    arguments = parser.parse_args()
    every = list(documents(arguments.documents))
    batches = [every[start : start + BATCH] for start in range(0, len(every), BATCH)]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        store = DocumentStore.create(Path(folder) / "store", encoder=None, dimension=DIMENSION)
        writing = sum(write(store, number, batches) for number in range(len(batches)))
        size = bytes_of(store)
        for filter in FILTERS:
            scanned, indexed, count = [], [], 0
            for _ in range(arguments.repeats):
                scanned.append(scan(store, filter))
                took, count = milliseconds(store, filter)
                indexed.append(took)
            scan_ms, index_ms = float(np.median(scanned)), float(np.median(indexed))
            rows.append(
                {
                    "filter": str(filter)[:60],
                    "matches": count,
                    "scan_ms": scan_ms,
                    "index_ms": index_ms,
                    "ratio": scan_ms / index_ms,
                }
            )
        store.close()
    report.write(
        "filters",
        rows,
        {
            "documents_per_second": arguments.documents / writing,
            "disk_bytes_a_document": size / arguments.documents,
            "tenant_filter_ratio": rows[0]["ratio"],
        },
    )


if __name__ == "__main__":
    main()
