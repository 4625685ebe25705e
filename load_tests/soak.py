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
from collections.abc import AsyncIterator, Mapping, Sequence
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
from load_tests.processes import Server, retriever, serving
from load_tests.workload import QUERIES, passages

DIMENSION, BATCH, DEPTH = 64, 10, 20
DELETED = 0.3  # of the writes
INDEX = "soak"
FLAT_SECONDS = 180.0  # at the end of reading and writing, during which memory must be flat
MOST_GROWTH = 5.0  # MiB a minute
MOST_OF_A_BATCH = 200  # MiB
NDJSON = {"content-type": "application/x-ndjson"}
QUEUE_TOKENS = 20_000
Rows = list[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The length of a run: seconds of reading and writing, seconds per row, and the number of kills."""

    seconds: float = 300.0
    row_seconds: float = 60.0
    readers: int = 20
    writers: int = 4
    documents: int = 40_000
    kills: int = 20


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
        for id in ids:
            self.acknowledged[id] = self.begun[id]

    def take_back(self, ids: Sequence[str]) -> None:
        """Record that the last write that was begun did not take effect."""
        for id in ids:
            self.deletions.discard((id, self.begun[id]))
            self.begun[id] = self.acknowledged[id]

    def holds(self, id: str, version: int, found: int | None) -> bool:
        """Return whether a document that was found with version `found` has this version."""
        return found is None if (id, version) in self.deletions else found == version

    def check(self, id: str, before: int, version: int | None) -> None:
        """Check a result. version: as found, None if not found; before: acknowledged before the request."""
        possible = range(before, self.begun[id] + 1)
        if not any(self.holds(id, number, version) for number in possible):
            self.wrong.append(f"{id}: {version}, where {possible} was possible")


@dataclass(slots=True)
class Outcome:
    """rows: one for each `row_seconds`; growth: of memory in the last FLAT_SECONDS, in MiB a minute, None for a shorter
    run; wrong: wrong answers; cut_off: writes that a kill interrupted; there: of these, how many took effect."""

    rows: Rows
    growth: float | None = None
    wrong: list[str] = field(default_factory=list)
    cut_off: int = 0
    there: int = 0


def vector(id: str, version: int) -> NDArray[np.float32]:
    """Return a unit vector, (DIMENSION,), that is unique to a version of a document."""
    drawn = np.random.default_rng([*id.encode(), version]).standard_normal(DIMENSION)
    return (drawn / np.linalg.norm(drawn)).astype(np.float32)


def growth_of(samples: Sequence[tuple[float, float]]) -> float | None:
    """Return the growth in MiB a minute over the last FLAT_SECONDS of (second, MiB) samples, by least squares; None for
    a shorter time."""
    seconds, sizes = np.array(samples, dtype=np.float64).reshape(-1, 2).T
    if len(samples) < 2 or seconds[-1] - seconds[0] < FLAT_SECONDS:
        return None
    late = seconds >= seconds[-1] - FLAT_SECONDS
    return float(60 * np.polyfit(seconds[late] - seconds[-1], sizes[late], 1)[0])


def run(plan: Plan, directory: Path, rows: Rows | None = None) -> Outcome:
    """Run the plan over an index. rows: receives each row as it is measured. Raises the error of a request."""
    outcome, ledger, rng = Outcome([] if rows is None else rows), Ledger(), random.Random(1)
    ids = [f"d{number}" for number in range(plan.documents)]
    with retriever(directory) as server:
        outcome.growth = asyncio.run(_soak(server, plan, ids, ledger, outcome.rows))
    cut_off: list[list[str]] = []
    for kill in range(plan.kills + 1):
        with retriever(directory) as server:
            outcome.there += asyncio.run(_settle(server, ids, ledger, cut_off))
            if kill < plan.kills:
                cut_off = asyncio.run(_killed(server, plan, ids, ledger, rng.uniform(0.0, 1.5)))
                outcome.cut_off += len(cut_off)
    outcome.wrong = ledger.wrong
    return outcome


class _Writer:
    """Writes its own documents, a batch at a time. open: ids of a batch that is not acknowledged."""

    def __init__(self, server: Server, ids: Sequence[str], ledger: Ledger, counts: Counter[str], seed: int) -> None:
        self.client = httpx.AsyncClient(base_url=server.url, timeout=60)
        self.ids, self._ledger, self._counts, self.rng = ids, ledger, counts, random.Random(seed)
        self.open: list[str] = []

    async def write(self) -> None:
        await self.put(self.rng.sample(self.ids, BATCH), deletion=self.rng.random() < DELETED)

    async def put(self, ids: Sequence[str], *, deletion: bool = False) -> None:
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
        self._counts["deleted" if deletion else "upserted"] += len(ids)

    @staticmethod
    def _line(id: str, version: int) -> bytes:
        text = f"{id} {version} " + "words of a document " * 10
        return orjson.dumps({"id": id, "text": text, "embedding": vector(id, version).tolist()})


def _writers(
    server: Server, plan: Plan, ids: Sequence[str], ledger: Ledger, counts: Counter[str], seed: int
) -> list[_Writer]:
    return [_Writer(server, ids[at :: plan.writers], ledger, counts, seed + at) for at in range(plan.writers)]


async def _soak(server: Server, plan: Plan, ids: Sequence[str], ledger: Ledger, rows: Rows) -> float | None:
    """Read and write, and return the growth of memory. rows: receives one for each `row_seconds`."""
    counts, times, samples = Counter[str](), list[float](), list[tuple[float, float]]()
    writers = _writers(server, plan, ids, ledger, counts, 0)
    remote, stopping = RemoteRetriever(server.url), asyncio.Event()
    (await writers[0].client.put(f"/indexes/{INDEX}", json={"dimension": DIMENSION})).raise_for_status()
    for start in range(0, len(ids), 1_000):
        await writers[0].put(ids[start : start + 1_000])
    counts.clear()

    async def write(writer: _Writer) -> None:
        while not stopping.is_set():
            await writer.write()
            await _look(remote, writer.rng.choice(writer.ids), ledger)

    async def read(seed: int) -> None:
        rng = random.Random(seed)
        while not stopping.is_set():
            start = time.perf_counter()
            await _look(remote, rng.choice(ids), ledger)
            times.append(time.perf_counter() - start)

    async def sample() -> None:
        while not stopping.is_set():
            samples.append((time.monotonic() - begun, server.resident()))
            await asyncio.sleep(1)

    begun = time.monotonic()
    running = [asyncio.create_task(write(writer)) for writer in writers]
    running += [asyncio.create_task(sample()), *(asyncio.create_task(read(seed)) for seed in range(plan.readers))]
    while (passed := time.monotonic() - begun) < plan.seconds:
        left = min(plan.row_seconds, plan.seconds - passed)
        failed, _ = await asyncio.wait(running, timeout=left, return_when=asyncio.FIRST_EXCEPTION)
        for task in failed:
            task.result()
        row = {"seconds": round(time.monotonic() - begun), "reads": len(times), **report.percentiles(times)}
        row |= {"upserted": counts["upserted"], "deleted": counts["deleted"], "wrong": len(ledger.wrong)}
        rows.append(row | {"resident_MiB": server.resident()})
        counts.clear()
        times.clear()
    stopping.set()
    await asyncio.gather(*running)
    await asyncio.gather(*(writer.client.aclose() for writer in writers), remote.close())
    await _settle(server, ids, ledger, [])
    return growth_of(samples)


async def _killed(server: Server, plan: Plan, ids: Sequence[str], ledger: Ledger, seconds: float) -> list[list[str]]:
    """Write until the process is killed, some time after the first acknowledgement. Returns the interrupted batches."""
    writers = _writers(server, plan, ids, ledger, Counter(), sum(ledger.begun.values()))

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


def index(given: argparse.Namespace) -> None:
    """Soak an index."""
    plan = Plan(60 * given.minutes, documents=given.documents, kills=given.kills)
    rows = report.Rows("soak-index")
    with TemporaryDirectory() as directory:
        outcome = run(plan, Path(directory), rows)
    print(*outcome.wrong[:20], sep="\n", end="\n" if outcome.wrong else "")
    growth = {} if outcome.growth is None else {"memory_growth_MiB_a_minute": outcome.growth}
    cut_off = {"writes_cut_off": outcome.cut_off, "of_these_there": outcome.there}
    rows.write({"wrong_answers": len(outcome.wrong), **growth, **cut_off})
    _judged(len(outcome.wrong), outcome.growth)


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
    server: Server, truth: Mapping[tuple[str, str], float], texts: list[str], given: argparse.Namespace
) -> None:
    rng, counts, wrong = random.Random(1), Counter[str](), 0
    remote, rows, samples = (
        RemoteScorer([parse(server.url)], connections=given.sessions),
        report.Rows("soak-scorer"),
        [],
    )

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

    running = [asyncio.create_task(session()) for _ in range(given.sessions)]
    begun = time.monotonic()
    async with httpx.AsyncClient(base_url=server.url) as client:
        while (now := time.monotonic() - begun) < 60 * given.minutes:
            counts.clear()
            queued, span = 0.0, min(60.0, 60 * given.minutes - now)
            while time.monotonic() - begun < now + span:
                for line in (await client.get("/metrics")).text.splitlines():
                    if line.startswith("boundarymorph_scorer_queue_tokens{"):
                        queued = max(queued, float(line.rpartition(" ")[2]))
                samples.append((time.monotonic() - begun, server.resident()))
                done, _ = await asyncio.wait(running, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            row = {"seconds": round(now + span), "pairs_a_second": counts["pairs"] / span, "wrong": wrong}
            row |= {"overloaded": counts["overloaded"], "late": counts["deadline-exceeded"]}
            rows.append(row | {"most_queued_tokens": queued, "resident_MiB": server.resident()})
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await remote.close()
    most = max(row["most_queued_tokens"] for row in rows) / QUEUE_TOKENS
    rows.write({"wrong_answers": wrong, "most_queued_over_limit": most})
    _judged(wrong + (most > 1), growth_of(samples))


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
    pool = [
        {"text": text, "cross_encoder_score": 0.5} for text in passages(given.pool, words=(given.words, given.words))
    ]
    idle, begun = server.resident(), time.monotonic()

    async def lines() -> AsyncIterator[bytes]:
        for number in wanted:
            asked = {
                "id": number,
                "query": f"query {number}",
                "pool": pool,
                "budget": 0,
                "k": 1,
                "return_documents": True,
            }
            yield orjson.dumps(asked) + b"\n"

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


def _judged(wrong: int, growth: float | None) -> None:
    if growth is None:
        print(f"it was shorter than {FLAT_SECONDS:.0f} s: whether memory is flat was not judged")
    if wrong or (growth or 0) > MOST_GROWTH:
        raise SystemExit("answers were wrong" if wrong else "memory was not flat in the last three minutes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("index", "scorer", "batch"))
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--documents", type=int, default=40_000, help="of the index")
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
