"""`make test-stores STORE=milvus`: the tests of indexes in Milvus against a server, and what its calls cost.

    python -m tests.retrieval.milvus_run INTERPRETER [PYTEST OPTIONS]

INTERPRETER: of an environment with the package `milvus`, which carries the server. Writes build/milvus.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.stores.catalog import StoreCatalog
from boundarymorph.retrieval.stores.milvus import MilvusConnection, MilvusStore
from tests.contract.vector_index import unit
from tests.ports import free_port
from tests.retrieval import milvus

FILES = ("test_milvus.py", "test_collections.py")
REPORT = Path("build/milvus.md")
COUNT, DIMENSION, DEPTH = 20_000, 384, 10_000
TEXT = "Of the violin there are many tales, and this one is told by a tram on its way to the harbour. " * 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("interpreter")
    arguments, options = parser.parse_known_args()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        milvus.server(arguments.interpreter, Path(directory), port),
    ):
        with closing(MilvusConnection(url)) as connection:
            server = connection.call("get_server_version")
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(report(server, measured(url)))
        print(REPORT.read_text(), flush=True)
        files = [str(Path(__file__).with_name(file)) for file in FILES]
        command = [sys.executable, "-m", "pytest", "-n0", "--timeout", "0", *files, *options]
        code = subprocess.run(
            command, env=os.environ | {"MILVUS_URL": url.replace("http:", "milvus:")}, check=False
        ).returncode
    with REPORT.open("a") as file:
        file.write(f"\n{', '.join(FILES)}: {'passed' if code == 0 else f'FAILED ({code})'}\n")
    sys.exit(code)


def report(server: str, rows: list[tuple[str, float]]) -> str:
    about = f"Milvus {server}, {COUNT:,} documents, d = {DIMENSION}, texts of {len(TEXT)} characters"
    table = "".join(f"| {what} | {1_000 * seconds:,.0f} |\n" for what, seconds in rows)
    return f"{about}; {os.cpu_count()} cores.\n\n| | median of 5, ms |\n|---|---|\n{table}"


def measured(url: str) -> list[tuple[str, float]]:
    """Searches and reads by consistency, and pools with and without words."""
    rows: list[tuple[str, float]] = []
    query, ids = unit(1, DIMENSION, 1)[0], [f"d{n}" for n in range(0, 50 * 7, 7)]
    levels = ("strong", "session", "bounded", "eventually")
    for lexical in (False, True):
        name = "words" if lexical else "plain"
        for level in levels if not lexical else levels[:3:2]:
            store = MilvusStore(MilvusConnection(url, timeout=60), level)
            with closing(StoreCatalog(store, prefix="measured_")) as catalog:
                index = catalog.create(name, encoder=None, dimension=DIMENSION, lexical=lexical)
                if not index.count():
                    documents = [Document(f"d{n}", f"{TEXT} {n}", metadata={"n": n}) for n in range(COUNT)]
                    index.upsert(documents, unit(COUNT, DIMENSION))
                words = ", with BM25 of its texts" if lexical else ""
                for depth in (100, DEPTH):
                    search = Search("the violin tale of 77", depth, query)
                    rows.append((f"pool of {depth:,}{words}, {level}", median(partial(index.retrieve, search))))
                if not lexical:
                    rows.append((f"texts of 50 documents, {level}", median(partial(index.documents, ids))))
    return rows


def median(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


if __name__ == "__main__":
    main()
