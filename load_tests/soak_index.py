"""`make soak-index`: upserts and deletions under readers, with every answer checked; then kill -9 at random times.

Uses a real `boundarymorph retriever` with vectors from the caller. Each write gives its documents a new version, which
their texts and vectors contain. An answer is right if every document in it has the version that was acknowledged when
the request was sent, or a later one whose write had begun when the answer came; a version may be a deletion. One row
per minute.

Fails if an answer was wrong, or if the memory of the process grew by more than MOST_GROWTH in the last three minutes
before the kills.
"""

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.retrieval.retriever import Search
from load_tests import report
from load_tests.processes import Server, retriever

DIMENSION = 64
BATCH = 10
DEPTH = 20
DELETED = 0.3  # of the writes
INDEX = "soak"
FLAT_SECONDS = 180.0  # at the end of reading and writing, during which memory must be flat
MOST_GROWTH = 5.0  # MiB a minute
NDJSON = {"content-type": "application/x-ndjson"}


@dataclass(frozen=True, slots=True)
class Plan:
    """The length of a run: seconds of reading and writing, seconds per row, and the number of kills."""

    seconds: float = 300.0
    row_seconds: float = 60.0
    readers: int = 20
    writers: int = 4
    documents: int = 40_000
    kills: int = 20
    seed: int = 1


@dataclass(slots=True)
class Ledger:
    """The versions of each document, from 1: the last one acknowledged, the last one begun, and which are deletions."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    deletions: set[tuple[str, int]] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def begin(self, ids: Sequence[str], *, deletion: bool = False) -> None:
        for id in ids:
            self.begun[id] = self.begun.get(id, 0) + 1
            if deletion:
                self.deletions.add((id, self.begun[id]))

    def acknowledge(self, ids: Sequence[str]) -> None:
        for id in ids:
            self.acknowledged[id] = self.begun[id]

    def take_back(self, ids: Sequence[str]) -> None:
        """Record that the last write that was begun did not take effect."""
        for id in ids:
            self.deletions.discard((id, self.begun[id]))
            self.begun[id] = self.acknowledged[id]

    def holds(self, id: str, version: int, found: int | None) -> bool:
        """Whether a document that was found with version `found` has this version."""
        return found is None if (id, version) in self.deletions else found == version

    def check(self, id: str, before: int, version: int | None) -> None:
        """Check a result. version: as found, None if not found; before: acknowledged before the request."""
        possible = range(before, self.begun[id] + 1)
        if not any(self.holds(id, number, version) for number in possible):
            self.wrong.append(f"{id}: {version}, where {possible} was possible")


@dataclass(frozen=True, slots=True)
class Outcome:
    """rows: one for each `row_seconds`; growth: of memory in the last FLAT_SECONDS, in MiB a minute, None for a shorter
    run; wrong: wrong answers; kills: their number, and how many of the interrupted writes took effect."""

    rows: Sequence[Mapping[str, Any]]
    growth: float | None
    wrong: list[str]
    kills: int
    cut_off: int
    cut_off_but_there: int


def vector(id: str, version: int) -> NDArray[np.float32]:
    """Return a unit vector, (DIMENSION,), that is unique to a version of a document."""
    drawn = np.random.default_rng([*id.encode(), version]).standard_normal(DIMENSION)
    return (drawn / np.linalg.norm(drawn)).astype(np.float32)


def run(plan: Plan, directory: Path, rows: list[Mapping[str, Any]] | None = None) -> Outcome:
    """Run the plan. rows: receives each row as it is measured. Raises the error of a request before the kills."""
    rows = [] if rows is None else rows
    rng, ledger = random.Random(plan.seed), Ledger()
    ids = [f"d{number}" for number in range(plan.documents)]
    with retriever(directory) as server:
        growth = asyncio.run(_soak(server, plan, ids, ledger, rows))
    cut_off: list[list[str]] = []
    total = there = 0
    for kill in range(plan.kills + 1):
        with retriever(directory) as server:
            there += asyncio.run(_settle(server, ids, ledger, cut_off))
            if kill < plan.kills:
                cut_off = asyncio.run(_killed(server, plan, ids, ledger, rng.uniform(0.0, 1.5)))
                total += len(cut_off)
    return Outcome(rows, growth, ledger.wrong, plan.kills, total, there)


def growth_of(samples: Sequence[tuple[float, float]]) -> float | None:
    """Return the growth in MiB a minute over the last FLAT_SECONDS of (second, MiB) samples, by least squares; None for
    a shorter time."""
    seconds, sizes = np.array(samples, dtype=np.float64).reshape(-1, 2).T
    if len(samples) < 2 or seconds[-1] - seconds[0] < FLAT_SECONDS:
        return None
    late = seconds >= seconds[-1] - FLAT_SECONDS
    return float(60 * np.polyfit(seconds[late] - seconds[-1], sizes[late], 1)[0])


class _Writer:
    """Writes its own documents, a batch at a time, and searches for each right after."""

    def __init__(self, server: Server, ids: Sequence[str], ledger: Ledger, counts: Counter[str], seed: int) -> None:
        self._client = httpx.AsyncClient(base_url=server.url, timeout=60)
        self._remote = RemoteRetriever(server.url)
        self._ids, self._ledger, self._counts, self._rng = ids, ledger, counts, random.Random(seed)
        self.open: list[str] = []

    async def write(self) -> None:
        deletion = self._rng.random() < DELETED
        await self.put(self._rng.sample(self._ids, BATCH), deletion=deletion)

    async def put(self, ids: Sequence[str], *, deletion: bool = False) -> None:
        self.open = list(ids)
        self._ledger.begin(ids, deletion=deletion)
        url = f"/indexes/{INDEX}/documents"
        if deletion:
            response = await self._client.request("DELETE", url, json={"ids": ids})
        else:
            lines = b"\n".join(self._line(id) for id in ids)
            response = await self._client.post(url, content=lines, headers=NDJSON)
        response.raise_for_status()
        self._ledger.acknowledge(ids)
        self.open = []
        self._counts["deleted" if deletion else "upserted"] += len(ids)

    async def look(self) -> None:
        id = self._rng.choice(self._ids)
        await _look(self._remote, id, self._ledger)

    async def close(self) -> None:
        await self._client.aclose()
        await self._remote.close()

    def _line(self, id: str) -> bytes:
        version = self._ledger.begun[id]
        text = f"{id} {version} " + "words of a document " * 10
        return orjson.dumps({"id": id, "text": text, "embedding": vector(id, version).tolist()})


async def _soak(
    server: Server, plan: Plan, ids: Sequence[str], ledger: Ledger, rows: list[Mapping[str, Any]]
) -> float | None:
    """Read and write, and return the growth of memory. rows: receives one for each `row_seconds`."""
    counts: Counter[str] = Counter()
    times: list[float] = []
    writers = [_Writer(server, ids[start :: plan.writers], ledger, counts, start) for start in range(plan.writers)]
    remotes = [RemoteRetriever(server.url) for _ in range(plan.readers)]
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        (await client.put(f"/indexes/{INDEX}", json={"dimension": DIMENSION})).raise_for_status()
    for start in range(0, len(ids), 1_000):
        await writers[0].put(ids[start : start + 1_000])
    counts.clear()

    stopping = asyncio.Event()

    async def write(writer: _Writer) -> None:
        while not stopping.is_set():
            await writer.write()
            await writer.look()

    async def read(remote: RemoteRetriever, seed: int) -> None:
        rng = random.Random(seed)
        while not stopping.is_set():
            start = time.perf_counter()
            await _look(remote, rng.choice(ids), ledger)
            times.append(time.perf_counter() - start)

    async def sample() -> None:
        while not stopping.is_set():
            samples.append((time.monotonic() - begun, server.resident("RssAnon")))
            await asyncio.sleep(1)

    samples: list[tuple[float, float]] = []
    begun = time.monotonic()
    running = [asyncio.create_task(write(writer)) for writer in writers]
    running.append(asyncio.create_task(sample()))
    running += [asyncio.create_task(read(remote, seed)) for seed, remote in enumerate(remotes)]
    while (passed := time.monotonic() - begun) < plan.seconds:
        await asyncio.wait(
            running, timeout=min(plan.row_seconds, plan.seconds - passed), return_when=asyncio.FIRST_EXCEPTION
        )
        failed = [task for task in running if task.done()]
        if failed:
            await failed[0]
        now = sorted(times)
        rows.append(
            {
                "seconds": round(time.monotonic() - begun),
                "reads": len(now),
                "read_p50_ms": 1e3 * now[len(now) // 2],
                "read_p99_ms": 1e3 * now[len(now) * 99 // 100],
                "upserted": counts["upserted"],
                "deleted": counts["deleted"],
                "wrong": len(ledger.wrong),
                "trained_at": await _trained_at(server),
                "resident_mib": server.resident("RssAnon"),
            }
        )
        counts.clear()
        times.clear()
    stopping.set()
    await asyncio.gather(*running)
    await asyncio.gather(*(writer.close() for writer in writers), *(remote.close() for remote in remotes))
    await _settle(server, ids, ledger, [])
    return growth_of(samples)


async def _trained_at(server: Server) -> int:
    """Return the sequence number at which an index of kind ivf was last trained; 0 for never."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        structure = (await client.get(f"/indexes/{INDEX}")).json()["structure"]
    return 0 if structure is None else int(structure["sequence"])


async def _killed(server: Server, plan: Plan, ids: Sequence[str], ledger: Ledger, seconds: float) -> list[list[str]]:
    """Write until the process is killed, some time after the first acknowledgement. Returns the interrupted batches."""
    counts: Counter[str] = Counter()
    seed = sum(ledger.begun.values())
    writers = [
        _Writer(server, ids[start :: plan.writers], ledger, counts, seed + start) for start in range(plan.writers)
    ]

    async def write(writer: _Writer) -> None:
        while True:
            await writer.write()

    await writers[0].write()
    running = [asyncio.create_task(write(writer)) for writer in writers]
    await asyncio.sleep(seconds)
    server.process.kill()
    ended = await asyncio.gather(*running, return_exceptions=True)
    unexpected = [error for error in ended if not isinstance(error, httpx.TransportError)]
    assert not unexpected, unexpected
    for writer in writers:
        await writer.close()
    return [writer.open for writer in writers if writer.open]


async def _settle(server: Server, ids: Sequence[str], ledger: Ledger, batches: Sequence[Sequence[str]]) -> int:
    """Check that each document is as acknowledged, and that interrupted batches took effect completely or not at all.
    Returns how many of them did."""
    remote = RemoteRetriever(server.url)
    found: dict[str, int] = {}
    for start in range(0, len(ids), 10_000):
        documents = await remote.documents(INDEX, ids[start : start + 10_000])
        found |= {id: int(document.text.split()[1]) for id, document in documents.items()}
    applied = 0
    for batch in batches:
        if all(ledger.holds(id, ledger.begun[id], found.get(id)) for id in batch):
            ledger.acknowledge(batch)
            applied += 1
        elif all(ledger.holds(id, ledger.acknowledged[id], found.get(id)) for id in batch):
            ledger.take_back(batch)
        else:
            ledger.wrong.append(f"of {batch} only a part is there")
    for id in ids:
        ledger.check(id, ledger.acknowledged[id], found.get(id))
    for id in ids[:: max(1, len(ids) // 200)]:
        await _look(remote, id, ledger)
    await remote.close()
    return applied


async def _look(remote: RemoteRetriever, id: str, ledger: Ledger) -> None:
    """Search at a document's vector, and check every result, vector by vector."""
    before = dict(ledger.acknowledged)
    query = vector(id, before[id])
    retrieved = await remote.retrieve(INDEX, Search("", DEPTH, query))
    pool = retrieved.pool
    ids = list(pool.ids)
    for found, row in zip(ids, pool.embeddings, strict=True):
        possible = range(before[found], ledger.begun[found] + 1)
        matching = [number for number in possible if np.abs(vector(found, number) - row).max() < 2e-3]
        ledger.check(found, before[found], matching[0] if matching else -1)
    if id not in ids and ledger.begun[id] == before[id]:  # a later version would be elsewhere
        ledger.check(id, before[id], None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    plan = Plan(
        seconds=60 * arguments.minutes,
        readers=arguments.readers,
        writers=arguments.writers,
        documents=arguments.documents,
        kills=arguments.kills,
    )
    with TemporaryDirectory() as directory:
        outcome = run(plan, Path(directory), report.Rows("soak-index"))
    for wrong in outcome.wrong[:20]:
        print(wrong)
    growth = outcome.growth
    report.write(
        "soak-index",
        outcome.rows,
        {
            "wrong_answers": len(outcome.wrong),
            **({} if growth is None else {"memory_growth_mib_a_minute": growth, "bound_of_memory_growth": MOST_GROWTH}),
            "reads": sum(row["reads"] for row in outcome.rows),
            "writes": sum(row["upserted"] + row["deleted"] for row in outcome.rows),
            "kills": outcome.kills,
            "writes_cut_off": outcome.cut_off,
            "of_these_there_whole": outcome.cut_off_but_there,
        },
    )
    if growth is None:
        print(f"it was shorter than {FLAT_SECONDS:.0f} s: whether memory is flat was not judged")
    if outcome.wrong or (growth or 0) > MOST_GROWTH:
        raise SystemExit("answers were wrong" if outcome.wrong else "memory was not flat in the last three minutes")


if __name__ == "__main__":
    report.run(main)
