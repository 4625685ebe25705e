"""`make soak NAME=index`, `NAME=scorer` and `NAME=batch`: minutes of load in which every answer is checked.

index: upserts and deletions under readers, over a real `boundarymorph retriever` with vectors from the caller; then
kill -9 at random times. Each write gives its documents a new version, which their texts and vectors contain. An answer
is right if every document in it has the version that was acknowledged when the request was sent, or a later one whose
write had begun when the answer came; a version may be a deletion.

scorer: more sessions than fit into the queue keep `boundarymorph scorer` busy with texts of mixed lengths. Every score
is compared with that of the pair alone, and the queue must stay within its limit.

batch: one POST /select/batch, whose service is killed in the middle; what then has no answer is sent to another one.
Each line must have one answer, and neither service may grow by more than MOST_OF_A_BATCH.

The others fail if an answer was wrong, or if memory grew by more than MOST_GROWTH in the last three minutes.
"""

import argparse
import asyncio
import random
import time
from collections import Counter
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

from boundarymorph.errors import DeadlineExceeded, Overloaded
from boundarymorph.retrieval.document import Search
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.scoring.remote import RemoteScorer, parse
from boundarymorph.scoring.scorer import OnnxCrossEncoder
from load_tests import report
from load_tests.processes import Server, retriever, serving, stopped
from load_tests.workload import QUERIES, passages

DIMENSION, BATCH, DEPTH = 64, 10, 20
DELETED = 0.3  # of the writes
INDEX = "soak"
FLAT_SECONDS = 180.0  # at the end, during which memory must be flat
MOST_GROWTH = 5.0  # MiB a minute
MOST_OF_A_BATCH = 200  # MiB
NDJSON = {"content-type": "application/x-ndjson"}
QUEUE_TOKENS = 20_000


@dataclass(slots=True)
class Ledger:
    """The versions of each document, from 1: the last one acknowledged, the last one begun, and which are deletions."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    deletions: set[tuple[str, int]] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def begin(self, ids: Sequence[str], *, deletion: bool = False) -> None:
        """Record that a write has been sent."""
        for id in ids:
            self.begun[id] = self.begun.get(id, 0) + 1
            if deletion:
                self.deletions.add((id, self.begun[id]))

    def acknowledge(self, ids: Sequence[str]) -> None:
        """Record that the last write that was begun took effect."""
        self.acknowledged.update((id, self.begun[id]) for id in ids)

    def take_back(self, ids: Sequence[str]) -> None:
        """Record that the last write that was begun did not take effect."""
        self.deletions.difference_update((id, self.begun[id]) for id in ids)
        self.begun.update((id, self.acknowledged[id]) for id in ids)

    def holds(self, id: str, version: int, found: int | None) -> bool:
        """Return whether a document that was found with version `found` has this version."""
        return found is None if (id, version) in self.deletions else found == version

    def check(self, id: str, before: int, version: int | None) -> None:
        """Check a result. version: as found, None if not found; before: acknowledged before the request."""
        possible = range(before, self.begun[id] + 1)
        if not any(self.holds(id, number, version) for number in possible):
            self.wrong.append(f"{id}: {version}, where {possible} was possible")


def vector(id: str, version: int) -> NDArray[np.float32]:
    """Return a unit vector, (DIMENSION,), that is unique to a version of a document."""
    drawn = np.random.default_rng([*id.encode(), version]).standard_normal(DIMENSION)
    return (drawn / np.linalg.norm(drawn)).astype(np.float32)


class Memory(list[tuple[float, float]]):
    """What a server takes over time: (second, MiB) samples."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def sample(self) -> None:
        """Add a sample each second."""
        while True:
            self.append((time.monotonic(), self._server.resident()))
            await asyncio.sleep(1)

    def growth(self) -> float | None:
        """Return the growth in MiB a minute over the last FLAT_SECONDS, by least squares; None for a shorter time."""
        seconds, sizes = np.array(self, dtype=np.float64).reshape(-1, 2).T
        if len(self) < 2 or seconds[-1] - seconds[0] < FLAT_SECONDS:
            print(f"it was shorter than {FLAT_SECONDS:.0f} s: whether memory is flat was not judged")
            return None
        late = seconds >= seconds[-1] - FLAT_SECONDS
        return float(60 * np.polyfit(seconds[late] - seconds[-1], sizes[late], 1)[0])


class Writer:
    """Writes its own documents, a batch at a time. open: ids of a batch that is not acknowledged."""

    def __init__(self, server: Server, ids: Sequence[str], ledger: Ledger, seed: int) -> None:
        self.client = httpx.AsyncClient(base_url=server.url, timeout=60)
        self.ids, self._ledger, self.rng = ids, ledger, random.Random(seed)
        self.open: list[str] = []
        self.counts = Counter[str]()

    async def write(self) -> None:
        """Write, or delete, some documents."""
        await self.put(self.rng.sample(self.ids, BATCH), deletion=self.rng.random() < DELETED)

    async def put(self, ids: Sequence[str], *, deletion: bool = False) -> None:
        """Write, or delete, these documents."""
        self.open = list(ids)
        self._ledger.begin(ids, deletion=deletion)
        url = f"/indexes/{INDEX}/documents"
        if deletion:
            response = await self.client.request("DELETE", url, json={"ids": ids})
        else:
            lines = b"\n".join(self._line(id, self._ledger.begun[id]) for id in ids)
            response = await self.client.post(url, content=lines, headers=NDJSON)
        response.raise_for_status()
        self._ledger.acknowledge(ids)
        self.open = []
        self.counts["deleted" if deletion else "upserted"] += len(ids)

    @staticmethod
    def _line(id: str, version: int) -> bytes:
        text = f"{id} {version} " + "words of a document " * 10
        return orjson.dumps({"id": id, "text": text, "embedding": vector(id, version).tolist()})


def index(given: argparse.Namespace) -> None:
    """Soak an index: read and write, and then kill the retriever now and then."""
    ledger, rng, rows = Ledger(), random.Random(1), report.Rows("soak-index")
    ids = [f"d{number}" for number in range(given.documents)]
    cut_off: list[list[str]] = []
    interrupted = there = 0
    with TemporaryDirectory() as folder:
        with retriever(Path(folder)) as server:
            growth = asyncio.run(_read_and_write(server, given, ids, ledger, rows))
        for kill in range(given.kills + 1):
            with retriever(Path(folder)) as server:
                there += asyncio.run(_settle(server, ids, ledger, cut_off))
                if kill < given.kills:
                    cut_off = asyncio.run(_killed(server, given, ids, ledger, rng.uniform(0.0, 1.5)))
                    interrupted += len(cut_off)
    print(*ledger.wrong[:20], sep="\n", end="\n" if ledger.wrong else "")
    _judge(rows, len(ledger.wrong), growth, {"writes_cut_off": interrupted, "of_these_there": there})


async def _read_and_write(
    server: Server, given: argparse.Namespace, ids: Sequence[str], ledger: Ledger, rows: report.Rows
) -> float | None:
    """Return the growth of memory."""
    times, memory = list[float](), Memory(server)
    writers = [Writer(server, ids[at :: given.writers], ledger, at) for at in range(given.writers)]
    remote = RemoteRetriever(server.url)
    (await writers[0].client.put(f"/indexes/{INDEX}", json={"dimension": DIMENSION})).raise_for_status()
    for start in range(0, len(ids), 1_000):
        await writers[0].put(ids[start : start + 1_000])
    stopping, begun = asyncio.Event(), time.monotonic()

    async def write(writer: Writer) -> None:
        while not stopping.is_set():
            await writer.write()
            await _look(remote, writer.rng.choice(writer.ids), ledger)

    async def read(seed: int) -> None:
        rng = random.Random(seed)
        while not stopping.is_set():
            start = time.perf_counter()
            await _look(remote, rng.choice(ids), ledger)
            times.append(time.perf_counter() - start)

    running = [write(writer) for writer in writers] + [read(seed) for seed in range(given.readers)]
    sampling, tasks = asyncio.create_task(memory.sample()), list(map(asyncio.create_task, running))
    writers[0].counts.clear()
    while (left := begun + 60 * given.minutes - time.monotonic()) > 0:
        failed, _ = await asyncio.wait(tasks, timeout=min(given.row, left), return_when=asyncio.FIRST_EXCEPTION)
        for task in failed:
            task.result()
        row = {"seconds": round(time.monotonic() - begun), "reads": len(times), **report.percentiles(times)}
        row |= {what: sum(writer.counts[what] for writer in writers) for what in ("upserted", "deleted")}
        rows.append(row | {"wrong": len(ledger.wrong), "resident_MiB": server.resident()})
        times.clear()
        for writer in writers:
            writer.counts.clear()
    stopping.set()
    await asyncio.gather(*tasks)
    await stopped([sampling])
    await asyncio.gather(*(writer.client.aclose() for writer in writers), remote.close())
    await _settle(server, ids, ledger, [])
    return memory.growth()


async def _killed(
    server: Server, given: argparse.Namespace, ids: Sequence[str], ledger: Ledger, seconds: float
) -> list[list[str]]:
    """Write until the process is killed, some time after the first acknowledgement. Returns the interrupted batches."""
    seed = sum(ledger.begun.values())
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
    pool = (await remote.retrieve(INDEX, Search("", DEPTH, vector(id, before[id])))).pool
    for found, row in zip(pool.ids, pool.embeddings, strict=True):
        possible = range(before[found], ledger.begun[found] + 1)
        matching = [number for number in possible if np.abs(vector(found, number) - row).max() < 2e-3]
        ledger.check(found, before[found], matching[0] if matching else -1)
    if id not in pool.ids and ledger.begun[id] == before[id]:  # a later version would be elsewhere
        ledger.check(id, before[id], None)


def scorer(given: argparse.Namespace) -> None:
    """Soak a scorer."""
    texts, model = passages(given.texts, words=(1, 400)), OnnxCrossEncoder.embedded()
    truth = {
        (query, text): float(model.run([pair])[0])
        for query in QUERIES
        for text, pair in zip(texts, model.tokenize(query, texts), strict=True)
    }
    with serving(["scorer", "--queue-tokens", str(QUEUE_TOKENS)]) as server:
        asyncio.run(_saturate(server, truth, texts, given))


async def _saturate(
    server: Server, truth: dict[tuple[str, str], float], texts: list[str], given: argparse.Namespace
) -> None:
    rng, counts, memory, rows = random.Random(1), Counter[str](), Memory(server), report.Rows("soak-scorer")
    remote = RemoteScorer([parse(server.url)], connections=given.sessions)
    wrong, most = 0, 0.0

    async def session() -> None:
        nonlocal wrong
        while True:
            query, chosen = rng.choice(QUERIES), rng.sample(texts, rng.randint(1, 9))
            try:
                scores = (await remote.score(query, chosen)).values.tolist()
            except (Overloaded, DeadlineExceeded) as refusal:
                counts[refusal.slug] += 1
                continue
            counts["pairs"] += len(chosen)
            wrong += sum(truth[query, text] != score for text, score in zip(chosen, scores, strict=True))

    async def watch() -> None:
        async with httpx.AsyncClient(base_url=server.url) as client:
            while True:
                for line in (await client.get("/metrics")).text.splitlines():
                    if line.startswith("boundarymorph_scorer_queue_tokens{"):
                        counts["queued"] = max(counts["queued"], int(float(line.rpartition(" ")[2])))
                await asyncio.sleep(0.5)

    running = [session() for _ in range(given.sessions)]
    tasks = [asyncio.create_task(each) for each in (watch(), memory.sample(), *running)]
    begun = time.monotonic()
    while (left := begun + 60 * given.minutes - time.monotonic()) > 0:
        counts.clear()
        span = min(given.row, left)
        failed, _ = await asyncio.wait(tasks, timeout=span, return_when=asyncio.FIRST_COMPLETED)
        for task in failed:
            task.result()
        most = max(most, counts["queued"] / QUEUE_TOKENS)
        row = {"seconds": round(time.monotonic() - begun), "pairs_a_second": counts["pairs"] / span, "wrong": wrong}
        row |= {"overloaded": counts["overloaded"], "late": counts["deadline-exceeded"]}
        rows.append(row | {"most_queued_tokens": counts["queued"], "resident_MiB": server.resident()})
    await stopped(tasks)
    await remote.close()
    _judge(rows, wrong + (most > 1), memory.growth(), {"most_queued_over_limit": most})


def _judge(rows: report.Rows, wrong: int, growth: float | None, ratios: dict[str, float]) -> None:
    """Write the report. Exits if answers were wrong, or memory grew."""
    memory = {} if growth is None else {"memory_growth_MiB_a_minute": growth}
    rows.write({"wrong_answers": wrong, **memory, **ratios})
    if wrong or (growth or 0) > MOST_GROWTH:
        raise SystemExit("answers were wrong" if wrong else "memory was not flat in the last three minutes")


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
    wanted = [number for number in range(given.lines) if not came[number]]
    texts = passages(given.pool, words=(given.words, given.words))
    pool = [{"text": text, "cross_encoder_score": 0.5} for text in texts]
    asked: dict[str, Any] = {"pool": pool, "budget": 0, "k": 1, "return_documents": True}
    idle, begun = server.resident(), time.monotonic()

    async def lines() -> AsyncIterator[bytes]:
        for number in wanted:
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
    parser.add_argument("what", choices=("index", "scorer", "batch"))
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--row", type=float, default=60, help="seconds of a row")
    parser.add_argument("--documents", type=int, default=40_000, help="of the index")
    parser.add_argument("--readers", type=int, default=20, help="of the index")
    parser.add_argument("--writers", type=int, default=4, help="of the index")
    parser.add_argument("--kills", type=int, default=20, help="of the retriever")
    parser.add_argument("--sessions", type=int, default=100, help="of the scorer")
    parser.add_argument("--texts", type=int, default=500, help="for the scorer")
    parser.add_argument("--lines", type=int, default=100_000, help="of the batch")
    parser.add_argument("--pool", type=int, default=3, help="documents of a line")
    parser.add_argument("--words", type=int, default=30, help="of a document of a line")
    given = parser.parse_args()
    {"index": index, "scorer": scorer, "batch": batch}[given.what](given)


if __name__ == "__main__":
    report.run(main)
