"""Admission control: bounds the requests in progress and shares turns fairly between callers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from boundarymorph.errors import Overloaded
from boundarymorph.inference.shares import Shares, Turns
from boundarymorph.telemetry import metrics

MEMORY = 0.9  # weight of earlier requests in the moving average of their seconds
PATIENCE = 0.5  # the share of its remaining time that a request may wait for its turn: the rest is for the work


class Admission:
    """Admits at most `running` requests at a time, and `waiting` more that wait for their turn.

    A caller has a share of both, as `Shares` has it, and callers take turns, as `Turns` has it.
    """

    def __init__(
        self,
        *,
        running: int,
        waiting: int,
        share: float = 1.0,
        of_caller: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """of_caller: the most requests of one caller, running and waiting together; None for no such limit."""
        self._inside = Shares(running + waiting, share)
        self._turns = Turns(running, share)
        self._most_of_caller = of_caller
        self._clock = clock
        self._seconds = 1.0  # moving average of the length of a turn

    @property
    def inside(self) -> int:
        """The number of admitted requests, running or not."""
        return self._inside.total

    @property
    def running(self) -> int:
        """The number of requests that have their turn."""
        return self._turns.shares.total

    @property
    def waiting(self) -> int:
        """The number of admitted requests that wait for their turn or have had it."""
        return self.inside - self.running

    @contextmanager
    def enter(self, caller: str) -> Iterator[None]:
        """Take a place, before anything of the request is read. Raises Overloaded if there is none for this caller."""
        own = self._inside.held(caller)
        if self._most_of_caller is not None and own >= self._most_of_caller:
            raise _refused(
                "key",
                f"this key has {own} selections in progress, as many as limits.key_sessions allows; try again later",
                self._seconds,
            )
        if not self._inside.allows(caller):
            raise _refused(
                "full" if self.inside == self._inside.most else "share",
                f"{self.inside} requests are in progress already, {own} of them of this caller; try again later",
                self.inside / self._turns.shares.most * self._seconds,
            )
        self._inside.take(caller)
        try:
            yield
        finally:
            self._inside.give_back(caller)

    @asynccontextmanager
    async def turn(self, caller: str, *, priority: int = 0, deadline: float | None = None) -> AsyncIterator[None]:
        """Wait for a turn and hold it within the block. deadline: on the clock.

        Raises Overloaded at once if the turn is expected too late to be of use, and if the deadline comes first.
        """
        wait = self._expected_wait(caller, priority)
        left = math.inf if deadline is None else deadline - self._clock()
        if left <= 0:
            raise _refused("deadline", "the deadline came before the request was read; try again later", wait)
        if wait > PATIENCE * left:
            raise _refused(
                "too_late",
                f"its turn would come in about {wait:.1f} s, too late for its deadline; try again later",
                wait,
            )
        try:
            async with asyncio.timeout(None if deadline is None else deadline - self._clock()):
                await self._turns.take(caller, priority)
        except TimeoutError:
            raise _refused(
                "deadline",
                "the deadline came before the request's turn; try again later",
                self._expected_wait(caller, priority),
            ) from None
        start = self._clock()
        try:
            yield
        finally:
            self._seconds = MEMORY * self._seconds + (1 - MEMORY) * (self._clock() - start)
            self._turns.give_back(caller)

    def _expected_wait(self, caller: str, priority: int) -> float:
        """Estimate the seconds until the turn of a request that arrives now, at the recent length of turns."""
        running = self._turns.shares
        if running.allows(caller):
            return 0.0
        own, others = self._turns.waiting(caller, priority)
        level = running.held(caller) + own + 1  # this caller's turns by then; no other caller gets more before it
        before = own + sum(min(count, max(0, level - running.held(other))) for other, count in others.items())
        return (before + 1) / running.alone * self._seconds


def _refused(reason: str, message: str, wait: float) -> Overloaded:
    """Count and return a refusal. wait: seconds after which a retry makes sense."""
    metrics.select_refused.labels(reason).inc()
    return Overloaded(message, retry_after=max(1.0, wait))
