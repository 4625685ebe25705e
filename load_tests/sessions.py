"""Load on a scorer like that of the selector: sessions of rounds, each waiting for its answer."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from boundarymorph.cli.demo import docstrings
from boundarymorph.scoring.scorer import Scorer

ROUNDS = 10
BATCH_SIZE = 5
QUERIES = (
    "read and write compressed archives",
    "work with dates, times and time zones",
    "parse command line arguments",
)


def passages(count: int, *, words: tuple[int, int] = (20, 140), seed: int = 0) -> list[str]:
    """Return passages of consecutive docstrings, with numbers of words drawn evenly from the range."""
    rng = random.Random(seed)
    vocabulary = itertools.cycle(_words())
    return [" ".join(itertools.islice(vocabulary, rng.randint(*words))) for _ in range(count)]


@cache
def _words() -> Sequence[str]:
    return [word for document in docstrings() for word in document.content.split()]


@dataclass(frozen=True, slots=True)
class Load:
    """The results of concurrent sessions, in seconds and pairs per second."""

    sessions: int
    pairs_per_second: float
    round_p50: float
    round_p99: float

    @property
    def session(self) -> float:
        """The scoring time of a whole session."""
        return ROUNDS * self.round_p50


async def load(scorer: Scorer, texts: Sequence[str], sessions: int, seconds: float) -> Load:
    """Run so many sessions without a pause, and measure for so long after each has had its first answer."""
    offered = _rounds(texts)
    finished: list[tuple[float, float]] = []
    started = asyncio.Barrier(sessions + 1)

    async def session(number: int) -> None:
        query = QUERIES[number % len(QUERIES)]
        await scorer.score(query, next(offered))
        await started.wait()
        while True:
            start = time.perf_counter()
            await scorer.score(query, next(offered))
            finished.append((time.perf_counter(), time.perf_counter() - start))

    running = [asyncio.create_task(session(number)) for number in range(sessions)]
    await started.wait()
    begin = time.perf_counter()
    await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    end = time.perf_counter()
    failed = [task.exception() for task in running if task.done()]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    if failed:
        raise RuntimeError(f"{len(failed)} of {sessions} sessions failed") from failed[0]
    times = [taken for _, taken in finished]
    return Load(
        sessions,
        BATCH_SIZE * len(finished) / (end - begin),
        float(np.quantile(times, 0.5)),
        float(np.quantile(times, 0.99)),
    )


def _rounds(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    endless = itertools.cycle(texts)
    while True:
        yield list(itertools.islice(endless, BATCH_SIZE))
