"""Load an index for minutes, and check every answer: `make soak NAME=index`.

Upserts and deletions under readers, over a real `boundarymorph retriever` with vectors from the caller; then
kill -9 at random times. Each write gives its documents a new version, which their texts and vectors contain. An answer
is right if every document in it has the version that was acknowledged when the request was sent, or a later one whose
write had begun when the answer came; a version may be a deletion. Memory may not grow by more than MOST_GROWTH in the
last three minutes.
"""

import argparse
import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.retrieval.document import Search
from boundarymorph.retrieval.remote import RemoteRetriever
from load_tests import report
from load_tests.processes import Server, retriever

DIMENSION, BATCH, DEPTH = 64, 10, 20
DELETED = 0.3  # share of the writes
INDEX = "soak"
FLAT_SECONDS = 180.0  # seconds at the end, during which memory must be flat
MOST_GROWTH = 5.0  # MiB a minute
NDJSON = {"content-type": "application/x-ndjson"}


@dataclass(slots=True)
class Ledger:
    """The versions of each document, from 1.

    Attributes:
        acknowledged: The last version whose write was acknowledged.
        written: The document after each write that was begun, None after a deletion and before the first write.
        wrong: The mistakes found.
    """

    acknowledged: dict[str, int] = field(default_factory=dict)
    written: dict[str, list[int | None]] = field(default_factory=lambda: defaultdict(lambda: [None]))
    wrong: list[str] = field(default_factory=list)

    def begin(self, ids: Sequence[str], *, deletion: bool = False) -> None:
        """Record that a write has been sent."""
        for versions in map(self.written.__getitem__, ids):
            versions.append(None if deletion else len(versions))

    def acknowledge(self, ids: Sequence[str]) -> None:
        """Record that the last write that was begun took effect."""
        self.acknowledged.update((id, len(self.written[id]) - 1) for id in ids)

    def check(self, id: str, before: int, version: int | None) -> None:
        """Check a result.

        Args:
            id: The id of a document.
            before: The version that was acknowledged before the request.
            version: The version that was found, or None.
        """
        if version not in (possible := self.written[id][before:]):
            self.wrong.append(f"{id}: {version}, where {possible} was possible")


def vector(id: str, version: int) -> NDArray[np.float32]:
    """Return a unit vector, (DIMENSION,), that is unique to a version of a document."""
    drawn = np.random.default_rng([*id.encode(), version]).standard_normal(DIMENSION)
    return (drawn / np.linalg.norm(drawn)).astype(np.float32)


def _judge(rows: report.Rows, wrong: int, ratios: dict[str, float]) -> None:
    """Write the report. Exits if answers were wrong, or memory grew."""
    growth = 0.0
    seconds, sizes = np.array([(row["seconds"], row["resident_MiB"]) for row in rows], dtype=np.float64).T
    if seconds[-1] - seconds[0] >= FLAT_SECONDS:
        late = seconds >= seconds[-1] - FLAT_SECONDS
        growth = 60 * np.polyfit(seconds[late], sizes[late], 1)[0]
        ratios = {"memory_growth_MiB_a_minute": growth, **ratios}
    else:
        print(f"it was shorter than {FLAT_SECONDS:.0f} s: whether memory is flat was not judged")
    rows.write({"wrong_answers": wrong, **ratios})
    if wrong or growth > MOST_GROWTH:
        raise SystemExit("answers were wrong" if wrong else "memory was not flat in the last three minutes")


class Writer:
    """Writes its own documents, a batch at a time.

    `open` has the ids of a batch that is not acknowledged.
    """

    def __init__(self, server: Server, ids: Sequence[str], ledger: Ledger, seed: int) -> None:
        self.client = httpx.AsyncClient(base_url=server.url, timeout=60)
        self.ids, self._ledger, self.rng = ids, ledger, random.Random(seed)
        self.open: Sequence[str] = ()
        self.counts = Counter[str]()

    async def write(self) -> None:
        """Write, or delete, some documents."""
        await self.put(self.rng.sample(self.ids, BATCH), deletion=self.rng.random() < DELETED)

    async def put(self, ids: Sequence[str], *, deletion: bool = False) -> None:
        """Write, or delete, these documents."""
        self.open = ids
        self._ledger.begin(ids, deletion=deletion)
        url = f"/indexes/{INDEX}/documents"
        if deletion:
            response = await self.client.request("DELETE", url, json={"ids": ids})
        else:
            texts = {id: f"{id} {len(self._ledger.written[id]) - 1} " + "words of a document " * 10 for id in ids}
            vectors = {id: vector(id, len(self._ledger.written[id]) - 1).tolist() for id in ids}
            lines = b"\n".join(orjson.dumps({"id": id, "text": texts[id], "embedding": vectors[id]}) for id in ids)
            response = await self.client.post(url, content=lines, headers=NDJSON)
        response.raise_for_status()
        self._ledger.acknowledge(ids)
        self.open = ()
        self.counts["deleted" if deletion else "upserted"] += len(ids)


def index(given: argparse.Namespace) -> None:
    """Soak an index: read and write, and then kill the retriever now and then."""
    ledger, rng, rows = Ledger(), random.Random(1), report.Rows("soak-index")
    ids = [f"d{number}" for number in range(given.documents)]
    cut_off, interrupted, there = list[Sequence[str]](), 0, 0
    with TemporaryDirectory() as folder:
        with retriever(Path(folder)) as server:
            asyncio.run(_read_and_write(server, given, ids, ledger, rows))
        for _ in range(given.kills):
            with retriever(Path(folder)) as server:
                there += asyncio.run(_settle(server, ids, ledger, cut_off))
                cut_off = asyncio.run(_killed(server, given, ids, ledger, rng.uniform(0.0, 1.5)))
                interrupted += len(cut_off)
        with retriever(Path(folder)) as server:
            there += asyncio.run(_settle(server, ids, ledger, cut_off))
    print(*ledger.wrong[:20], sep="\n", end="\n" if ledger.wrong else "")
    _judge(rows, len(ledger.wrong), {"writes_cut_off": interrupted, "of_these_there": there})


async def _read_and_write(
    server: Server, given: argparse.Namespace, ids: Sequence[str], ledger: Ledger, rows: report.Rows
) -> None:
    times, remote = list[float](), RemoteRetriever(server.url)
    writers = [Writer(server, ids[at :: given.writers], ledger, at) for at in range(given.writers)]
    (await writers[0].client.put(f"/indexes/{INDEX}", json={"dimension": DIMENSION})).raise_for_status()
    for start in range(0, len(ids), 1_000):
        await writers[0].put(ids[start : start + 1_000])
    writers[0].counts.clear()
    end = time.monotonic() + 60 * given.minutes

    async def write(writer: Writer) -> None:
        while time.monotonic() < end:
            await writer.write()
            await _look(remote, writer.rng.choice(writer.ids), ledger)

    async def read(seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < end:
            start = time.perf_counter()
            await _look(remote, rng.choice(ids), ledger)
            times.append(time.perf_counter() - start)

    begun = time.monotonic()
    tasks = list(map(asyncio.create_task, [*map(write, writers), *map(read, range(given.readers))]))
    left = set(tasks)
    while left:
        done, left = await asyncio.wait(tasks, timeout=given.row, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        written = sum((writer.counts for writer in writers), Counter[str]())
        row = {"seconds": round(time.monotonic() - begun), "reads": len(times), **report.percentiles(times)}
        row |= {"wrong": len(ledger.wrong), "upserted": written["upserted"], "deleted": written["deleted"]}
        rows.append(row | {"resident_MiB": server.resident()})
        times.clear()
        for writer in writers:
            writer.counts.clear()
    await asyncio.gather(*(writer.client.aclose() for writer in writers), remote.close())
    await _settle(server, ids, ledger, [])


async def _killed(
    server: Server, given: argparse.Namespace, ids: Sequence[str], ledger: Ledger, seconds: float
) -> list[Sequence[str]]:
    """Write until the process is killed, some time after the first acknowledgement.

    Returns the interrupted batches.
    """
    seed = sum(map(len, ledger.written.values()))
    writers = [Writer(server, ids[at :: given.writers], ledger, seed + at) for at in range(given.writers)]

    async def write(writer: Writer) -> None:
        while True:
            await writer.write()

    await writers[0].write()
    running = [asyncio.create_task(write(writer)) for writer in writers]
    await asyncio.sleep(seconds)
    server.process.kill()
    ended = await asyncio.gather(*running, return_exceptions=True)
    unexpected = [error for error in ended if not isinstance(error, httpx.TransportError)]
    assert not unexpected, unexpected
    await asyncio.gather(*(writer.client.aclose() for writer in writers))
    return [writer.open for writer in writers if writer.open]


async def _settle(server: Server, ids: Sequence[str], ledger: Ledger, batches: Sequence[Sequence[str]]) -> int:
    """Check each document, and that interrupted batches took effect completely or not at all.

    Returns how many of them did.
    """
    remote, applied = RemoteRetriever(server.url), 0
    found: dict[str, int] = {}
    for start in range(0, len(ids), 10_000):
        documents = await remote.documents(INDEX, ids[start : start + 10_000])
        found |= {id: int(document.text.split()[1]) for id, document in documents.items()}
    for batch in batches:
        if all(found.get(id) == ledger.written[id][-1] for id in batch):
            ledger.acknowledge(batch)
            applied += 1
        elif all(found.get(id) == ledger.written[id][-2] for id in batch):
            for id in batch:
                ledger.written[id].pop()
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
    pool = (await remote.retrieve(INDEX, Search("", DEPTH, vector(id, before[id])))).pool
    for found, row in zip(pool.ids, pool.embeddings, strict=True):
        possible = filter(None, ledger.written[found][before[found] :])
        matching = (number for number in possible if np.abs(vector(found, number) - row).max() < 2e-3)
        ledger.check(found, before[found], next(matching, -1))
    if id not in pool.ids and len(ledger.written[id]) - 1 == before[id]:  # a later version would be elsewhere
        ledger.check(id, before[id], None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--row", type=float, default=15, help="seconds of a row")
    parser.add_argument("--documents", type=int, default=40_000, help="of the index")
    parser.add_argument("--readers", type=int, default=20, help="of the index")
    parser.add_argument("--writers", type=int, default=4, help="of the index")
    parser.add_argument("--kills", type=int, default=20, help="of the retriever")
    given = parser.parse_args()
    index(given)


if __name__ == "__main__":
    report.run(main)
