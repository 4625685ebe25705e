"""Cheap scorers, whose scores come from a random generator with the pair as its seed."""

import asyncio
import threading
import time
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import DeadlineExceeded
from boundarymorph.inference.models import DeviceLost, OutOfMemory, TokenSequence
from boundarymorph.scoring.scorer import Scores
from tests.clocks import Clock


def score_of(query: str, text: str) -> float:
    seed = int.from_bytes(blake2b(f"{query}\0{text}".encode(), digest_size=8).digest())
    return float(np.random.default_rng(seed).uniform())


class SeededScorer:
    """A `Scorer` that draws a pair's score from a generator with the pair as its seed.

    It counts texts of over 100 characters as truncated.

    Args:
        clock: The clock that its rounds move.
        seconds: The time that a round takes. A round that ends after the deadline is lost.
        each: The time that each document of a round takes.
        error: The error that it raises from the round `first` on.
        first: The number of the first failing round, counted from 0.
    """

    takes_instruction = False
    max_length = None
    name = "seeded"

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        seconds: float = 0.0,
        each: float = 0.0,
        error: Exception | None = None,
        first: int = 0,
    ) -> None:
        self.rounds: list[list[str]] = []
        self.clock, self.seconds, self.each = clock or Clock(), seconds, each
        self.error, self.first = error, first

    async def check(self) -> None:
        pass

    async def score(
        self,
        query: str,
        texts: Sequence[str],
        *,
        deadline: float | None = None,
        instruction: str | None = None,
        caller: str = "",
    ) -> Scores:
        if self.error is not None and len(self.rounds) >= self.first:
            raise self.error
        if took := self.seconds + self.each * len(texts):
            self.clock.now += took
            if deadline is not None and self.clock.now > deadline:
                self.clock.now = deadline
                raise DeadlineExceeded("late")
        self.rounds.append(list(texts))
        values = np.array([score_of(query, text) for text in texts], dtype=np.float64)
        return Scores(values, truncated=sum(len(text) > 100 for text in texts))

    async def close(self) -> None:
        pass


def failing(error: Exception, first: int = 0) -> Any:
    """Return a method `score` that fails from the given call on, counted from 0."""
    score, calls = SeededScorer.score, 0

    async def fail(scorer: SeededScorer, query: str, texts: Sequence[str], **options: Any) -> Scores:
        nonlocal calls
        calls += 1
        if calls <= first:
            return await score(scorer, query, texts, **options)
        raise error

    return fail


async def late(scorer: SeededScorer, query: str, texts: Sequence[str], *, deadline: float | None, **_: Any) -> Scores:
    """Score as a scorer that is too slow for the deadline."""
    assert deadline is not None
    await asyncio.sleep(deadline - time.monotonic())
    raise DeadlineExceeded("late")


class SeededCrossEncoder:
    """A `CrossEncoder` with the scores of `SeededScorer`, whose tokens are characters.

    A pair has at most 100 tokens. The batches are recorded. The model waits until `open` is set, runs out of memory
    over `memory` tokens, fails on a text with "poison", and loses its device on one with "lightning".
    """

    takes_instruction = False
    name = "seeded"
    backend = "test"
    max_length = 100

    def __init__(
        self,
        *,
        workers: int = 1,
        parallel: bool = False,
        batch_tokens: int = 50,
        pads: bool = False,
        memory: int = 1_000_000,
        open: bool = True,
    ) -> None:
        self.workers = workers
        self.parallel = parallel
        self.batch_tokens = batch_tokens
        self.pads = pads
        self.memory = memory
        self.open = threading.Event()
        if open:
            self.open.set()
        self.batches: list[list[str]] = []
        self.closed = False
        self.asked: dict[TokenSequence, tuple[str, str]] = {}

    def tokenize(self, query: str, texts: Sequence[str], instruction: str | None = None) -> list[TokenSequence]:
        pairs = [TokenSequence(np.arange(min(100, max(1, len(text)))), len(text) > 100) for text in texts]
        self.asked |= {pair: (query, text) for pair, text in zip(pairs, texts, strict=True)}
        return pairs

    def run(self, pairs: Sequence[TokenSequence]) -> NDArray[np.float64]:
        texts = [self.asked[pair][1] for pair in pairs]
        self.batches.append(texts)
        assert self.open.wait(10)
        if sum(map(len, pairs)) > self.memory:
            raise OutOfMemory
        if any("lightning" in text for text in texts):
            raise DeviceLost("struck")
        if any("poison" in text for text in texts):
            raise ZeroDivisionError
        return np.array([score_of(*self.asked[pair]) for pair in pairs])

    def close(self) -> None:
        self.closed = True
