"""`make bench-workers`: the memory of processes that search the same large index, with its vectors mapped or copied.

Each process opens the index and searches it once. Memory is the sum of their proportional set sizes, in which a page
that several map counts once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.retriever import Search
from load_tests import report

BATCH = 20_000
NAME = "vectors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4, 8])
    arguments = parser.parse_args()
    rows, ratios = report.Rows("workers"), {}
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), arguments.documents, arguments.dimension)
        for processes in arguments.processes:
            memory = {}
            for mapped in (True, False):
                memory[mapped], seconds = measured(Path(folder), processes, arguments.dimension, mapped)
                vectors = "mapped" if mapped else "copied"
                rows.append({"processes": processes, "vectors": vectors, "GB": memory[mapped], "open_s": seconds})
            ratios[f"memory_over_copies_{processes}"] = memory[True] / memory[False]
    report.write("workers", rows, ratios)


def build(folder: Path, count: int, dimension: int) -> None:
    """Make an index of random vectors, with the file that processes map."""
    catalog = LocalCatalog(folder)
    index = catalog.create(NAME, encoder=None, dimension=dimension, lexical=False)
    rng = np.random.default_rng(0)
    for start in range(0, count, BATCH):
        documents = [Document(str(number), "") for number in range(start, min(start + BATCH, count))]
        index.upsert(documents, rng.standard_normal((len(documents), dimension), np.float32))
    index.settle()
    catalog.close()


def measured(folder: Path, processes: int, dimension: int, mapped: bool) -> tuple[float, float]:
    """Return the memory of so many processes in GB, and the seconds until the last one had found something."""
    context = multiprocessing.get_context("spawn")
    started = []
    begin = time.monotonic()
    for _ in range(processes):
        ours, theirs = context.Pipe()
        process = context.Process(target=search, args=(folder, dimension, mapped, theirs))
        process.start()
        started.append((process, ours))
    for _, ours in started:
        ours.recv()
    seconds = time.monotonic() - begin
    memory = sum(proportional(process.pid) for process, _ in started if process.pid)
    for process, ours in started:
        ours.send("end")
        process.join()
    return memory / 1e9, seconds


def search(folder: Path, dimension: int, mapped: bool, parent: Connection) -> None:
    """Search the index once, and wait for the end."""
    catalog = LocalCatalog(folder)
    if not mapped:
        catalog.get(NAME)._trainer.files.newest = lambda after=0: None  # type: ignore[method-assign]
    catalog.get(NAME).retrieve(Search("", 100, np.ones(dimension)))
    parent.send("found")
    parent.recv()


def proportional(pid: int) -> float:
    """Return the proportional set size of a process in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    report.run(main)
