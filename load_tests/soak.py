"""`make soak NAME=index` and `NAME=batch`: minutes of load in which every answer is checked.

index: upserts and deletions under readers, over a real `boundarymorph retriever` with vectors from the caller; then
kill -9 at random times. Each write gives its documents a new version, which their texts and vectors contain. An answer
is right if every document in it has the version that was acknowledged when the request was sent, or a later one whose
write had begun when the answer came; a version may be a deletion. Memory may not grow by more than MOST_GROWTH in the
last three minutes.

batch: one POST /select/batch, whose service is killed in the middle; what then has no answer is sent to another one.
Each line must have one answer, and neither service may grow by more than MOST_OF_A_BATCH.
"""

import argparse
import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import httpx
import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.retrieval.document import Search
from boundarymorph.retrieval.remote import RemoteRetriever
from load_tests import report
from load_tests.processes import Server, retriever, serving
from load_tests.workload import passages

DIMENSION, BATCH, DEPTH = 64, 10, 20
DELETED = 0.3  # of the writes
INDEX = "soak"
FLAT_SECONDS = 180.0  # at the end, during which memory must be flat
MOST_GROWTH = 5.0  # MiB a minute
MOST_OF_A_BATCH = 200  # MiB
NDJSON = {"content-type": "application/x-ndjson"}


@dataclass(slots=True)
class Ledger:
    """The versions of each document, from 1.

    acknowledged: the last one that was; written: what is found of the document after each write that was begun, None
    after a deletion and before all.
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
        """Check a result. version: as found, None if not found; before: acknowledged before the request."""
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
    """Writes its own documents, a batch at a time. open: ids of a batch that is not acknowledged."""

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
    """Write until the process is killed, some time after the first acknowledgement. Returns the interrupted batches."""
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
    """Check that each document is as acknowledged, and that interrupted batches took effect completely or not at all.
    Returns how many of them did."""
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


def batch(given: argparse.Namespace) -> None:
    """Soak a batch."""
    rows, came = report.Rows("soak-batch"), Counter[int]()
    with TemporaryDirectory() as directory:
        for until in (given.lines // 2, given.lines):
            with serving(["serve", "--data-directory", directory]) as server:
                asyncio.run(_answered(server, given, came, until, rows))
    growth = max(row["resident_MiB"] - row["idle_MiB"] for row in rows)
    twice, missing = sum(count > 1 for count in came.values()), given.lines - len(came)
    rows.write({"answered_twice": twice, "unanswered": missing, "memory_growth_MiB": growth})
    if twice or missing or growth > MOST_OF_A_BATCH:
        raise SystemExit("a line was not answered once, or memory grew by too much")


async def _answered(
    server: Server, given: argparse.Namespace, came: Counter[int], until: int, rows: report.Rows
) -> None:
    """Send the lines without an answer as one batch, and kill the server when there are so many answers, unless these
    are all. came: counts the answers of each line."""
    pool = [{"text": text, "cross_encoder_score": 0.5} for text in passages(given.pool, words=2 * (given.words,))]
    asked: dict[str, Any] = {"pool": pool, "budget": 0, "k": 1, "return_documents": True}
    idle, begun = server.resident(), time.monotonic()

    async def lines() -> AsyncIterator[bytes]:
        for number in set(range(given.lines)) - came.keys():
            yield orjson.dumps({"id": number, "query": f"query {number}", **asked}) + b"\n"

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(), read_bufsize=2**22) as client:
        try:
            async with client.post(f"{server.url}/select/batch", data=lines(), headers=NDJSON) as response:
                async for line in response.content:
                    if not line.startswith(b'{"id":') or not line.endswith(b"\n"):
                        continue
                    answer = orjson.loads(line)
                    assert answer["status"] == 200, line
                    came[answer["id"]] += 1
                    if came.total() % max(1, given.lines // 20) == 0 and server.process.poll() is None:
                        row = {"answers": came.total(), "seconds": time.monotonic() - begun, "idle_MiB": idle}
                        rows.append(row | {"resident_MiB": server.resident()})
                    if came.total() == until < given.lines:
                        server.process.kill()
                        server.process.wait()
        except aiohttp.ClientError:
            assert until < given.lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("index", "batch"))
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--row", type=float, default=15, help="seconds of a row")
    parser.add_argument("--documents", type=int, default=40_000, help="of the index")
    parser.add_argument("--readers", type=int, default=20, help="of the index")
    parser.add_argument("--writers", type=int, default=4, help="of the index")
    parser.add_argument("--kills", type=int, default=20, help="of the retriever")
    parser.add_argument("--lines", type=int, default=100_000, help="of the batch")
    parser.add_argument("--pool", type=int, default=3, help="documents of a line")
    parser.add_argument("--words", type=int, default=30, help="of a document of a line")
    given = parser.parse_args()
    {"index": index, "batch": batch}[given.what](given)


if __name__ == "__main__":
    report.run(main)
