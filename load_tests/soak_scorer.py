"""`make soak-scorer`: minutes of saturation with mixed lengths; memory must be flat, the queue bounded, answers right.

More sessions than fit into the queue keep `boundarymorph scorer` (the embedded model) busy. Every score is compared
with that of the pair alone, computed beforehand. One row per minute.
"""

import argparse
import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from boundarymorph.errors import DeadlineExceeded, Overloaded
from boundarymorph.scoring.onnx import OnnxCrossEncoder
from boundarymorph.scoring.remote.client import RemoteScorer
from boundarymorph.scoring.remote.urls import parse
from load_tests import report
from load_tests.processes import Server, scorer
from load_tests.sessions import QUERIES, passages

QUEUE_TOKENS = 20_000
SAMPLE_SECONDS = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--texts", type=int, default=500)
    arguments = parser.parse_args()
    texts = passages(arguments.texts, words=(1, 400))
    model = OnnxCrossEncoder.embedded()
    truth = {
        (query, text): float(model.run([pair])[0])
        for query in QUERIES
        for text, pair in zip(texts, model.tokenize(query, texts), strict=True)
    }
    with scorer(["--queue-tokens", str(QUEUE_TOKENS)]) as server:
        rows = asyncio.run(_soak(server, truth, texts, arguments.sessions, arguments.minutes))
    first, last = rows[min(1, len(rows) - 1)], rows[-1]
    report.write(
        "soak-scorer",
        rows,
        {
            "wrong_answers": sum(row["wrong"] for row in rows),
            "most_queued_over_limit": max(row["most_queued_tokens"] for row in rows) / QUEUE_TOKENS,
            "memory_last_over_second_minute": last["resident_mb"] / first["resident_mb"],
        },
    )


async def _soak(
    server: Server, truth: dict[tuple[str, str], Any], texts: list[str], sessions: int, minutes: int
) -> report.Rows:
    rng = random.Random(1)
    counts: Counter[str] = Counter()
    remote = RemoteScorer([parse(server.url)], connections=sessions)

    async def session() -> None:
        while True:
            query, chosen = rng.choice(QUERIES), rng.sample(texts, rng.randint(1, 9))
            try:
                scores = await remote.score(query, chosen)
            except (Overloaded, DeadlineExceeded) as refusal:
                counts[refusal.slug] += 1
                continue
            wrong = sum(truth[query, text] != score for text, score in zip(chosen, scores.values.tolist(), strict=True))
            counts.update({"pairs": len(chosen), "wrong": wrong})

    running = [asyncio.create_task(session()) for _ in range(sessions)]
    rows = report.Rows("soak-scorer")
    async with httpx.AsyncClient(base_url=server.url) as client:
        for minute in range(1, minutes + 1):
            counts.clear()
            most_queued = 0.0
            end = time.monotonic() + 60
            while time.monotonic() < end:
                most_queued = max(most_queued, await _queued_tokens(client))
                assert not any(task.done() for task in running), "a session failed"
                await asyncio.sleep(SAMPLE_SECONDS)
            rows.append(
                {
                    "minute": minute,
                    "pairs_per_second": counts["pairs"] / 60,
                    "wrong": counts["wrong"],
                    "overloaded": counts["overloaded"],
                    "late": counts["deadline-exceeded"],
                    "most_queued_tokens": most_queued,
                    "resident_mb": _resident_bytes(server.process.pid) / 1e6,
                }
            )
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await remote.close()
    return rows


async def _queued_tokens(client: httpx.AsyncClient) -> float:
    for line in (await client.get("/metrics")).text.splitlines():
        if line.startswith("boundarymorph_scorer_queue_tokens{"):
            return float(line.rpartition(" ")[2])
    raise RuntimeError("the scorer does not tell its queue")


def _resident_bytes(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    report.run(main)
