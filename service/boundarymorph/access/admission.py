"""Decide how many selections run at a time, and which is next."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from boundarymorph.errors import Overloaded
from boundarymorph.inference.concurrency import Turns
from boundarymorph.telemetry import metrics

MEMORY = 0.9  # weight of earlier requests in the moving average of their seconds
PATIENCE = 0.5  # share of its remaining time that a request may wait for its turn; the work needs the rest


class Admission:
    """Runs at most `running` selections at a time.

    Callers take turns (`Turns`), each within its share (`Shares`).
    """

    def __init__(self, running: int, share: float = 1.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._turns = Turns(running, share)
        self._clock = clock
        self._seconds = 1.0  # moving average of the length of a turn

    @property
    def running(self) -> int:
        return self._turns.shares.total

    @property
    def waiting(self) -> int:
        return self._turns.waiting().total()

    @asynccontextmanager
    async def turn(self, caller: str, *, deadline: float | None = None) -> AsyncIterator[None]:
        """Wait for a turn and hold it within the block.

        Raises:
            Overloaded: If the turn comes too late, or probably will.
        """
        wait = self._expected_wait(caller)
        left = math.inf if deadline is None else deadline - self._clock()
        if left <= 0:
            raise refusal(
                "deadline", "the deadline came before the request was read; allow more time, or try again later", wait
            )
        if wait > PATIENCE * left:
            said = f"its turn would come in about {wait:.1f} s, too late for its deadline; try again later"
            raise refusal("too_late", said, wait)
        try:
            async with asyncio.timeout(None if deadline is None else left):
                await self._turns.take(caller)
        except TimeoutError:
            said, wait = "the deadline came before the request's turn; try again later", self._expected_wait(caller)
            raise refusal("deadline", said, wait) from None
        start = self._clock()
        try:
            yield
        finally:
            self._seconds = MEMORY * self._seconds + (1 - MEMORY) * (self._clock() - start)
            self._turns.give_back(caller)

    def _expected_wait(self, caller: str) -> float:
        """Estimate the seconds until a new request's turn, from the recent length of turns."""
        running = self._turns.shares
        if running.allows(caller):
            return 0.0
        others = self._turns.waiting()
        own = others.pop(caller, 0)
        level = running.amount_of(caller) + own + 1  # this caller's turns by then; no other caller gets more before it
        before = own + sum(min(count, max(0, level - running.amount_of(other))) for other, count in others.items())
        return (before + 1) / running.most_alone * self._seconds


def refusal(reason: str, message: str, wait: float = 1.0) -> Overloaded:
    """Count and return a refusal. A retry makes sense after `wait` seconds."""
    metrics.requests_refused.labels(reason).inc()
    return Overloaded(message, retry_after=max(1.0, wait))
