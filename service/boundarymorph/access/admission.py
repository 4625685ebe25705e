"""Admission control: bounds the requests in progress and shares turns fairly between callers."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from boundarymorph.errors import Overloaded
from boundarymorph.telemetry import metrics

MEMORY = 0.9  # weight of earlier requests in the moving average of their seconds
PATIENCE = 0.5  # the share of its remaining time that a request may wait for its turn: the rest is for the work
FEWER = 2  # how many requests fewer a caller must have than the one whose request makes room


@dataclass(slots=True, eq=False)
class Visit:
    """An admitted request and its task. pushed_out: its place has been given to another request."""

    caller: str
    task: asyncio.Task[Any]
    had_turn: bool = False
    pushed_out: bool = False


@dataclass(slots=True, eq=False)
class _Waiter:
    visit: Visit
    priority: int
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Admission:
    """Admits at most `running` requests at a time, and `waiting` more that wait for their turn.

    The next turn goes to the caller with the fewest running requests, and among equals to the one whose last turn is
    the longest ago. Of that caller's requests, the one with the highest priority is next, then the oldest. When all
    places are taken, the newest waiting request of the caller with the most requests makes room for a caller with at
    least two fewer.
    """

    def __init__(
        self,
        *,
        running: int,
        waiting: int,
        of_caller: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """of_caller: the most requests of one caller, running and waiting together; None for no such limit."""
        self._most_running = running
        self._most_inside = running + waiting
        self._most_of_caller = of_caller
        self._clock = clock
        self._visits: list[Visit] = []
        self._running: Counter[str] = Counter()
        self._turns = itertools.count(1)
        self._last_turn: dict[str, int] = {}  # by caller; callers are the configured keys, so it stays small
        self._waiters: list[_Waiter] = []
        self._seconds = 1.0  # moving average of the length of a turn

    @property
    def inside(self) -> int:
        """The number of admitted requests, running or not."""
        return len(self._visits)

    @property
    def running(self) -> int:
        """The number of requests that have their turn."""
        return self._running.total()

    @property
    def waiting(self) -> int:
        """The number of admitted requests that wait for their turn or have had it."""
        return self.inside - self.running

    @contextmanager
    def enter(self, caller: str) -> Iterator[Visit]:
        """Take a place, before anything of the request is read.

        Raises Overloaded if there is no place, or later if the request must make room for another one; its task is
        then cancelled.
        """
        own = sum(visit.caller == caller for visit in self._visits)
        if self._most_of_caller is not None and own >= self._most_of_caller:
            raise _refused(
                "key",
                f"this key has {own} selections in progress, as many as limits.key_sessions allows; try again later",
                self._seconds,
            )
        if self.inside >= self._most_inside and not self._make_room(caller):
            raise _refused(
                "full",
                f"{self.inside} requests are in progress already; try again later",
                self.inside / self._most_running * self._seconds,
            )
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        visit = Visit(caller, task)
        self._visits.append(visit)
        try:
            yield visit
        except asyncio.CancelledError:
            if not visit.pushed_out or task.uncancel() > cancelling:
                raise
            raise _refused(
                "pushed_out",
                "this caller has the most requests in progress, and another caller needed a place; try again later",
                self.inside / self._most_running * self._seconds,
            ) from None
        finally:
            if not visit.pushed_out:
                self._visits.remove(visit)

    @asynccontextmanager
    async def turn(self, visit: Visit, *, priority: int = 0, deadline: float | None = None) -> AsyncIterator[None]:
        """Wait for a turn and hold it within the block. deadline: on the clock.

        Raises Overloaded at once if the turn is expected too late to be of use, and if the deadline comes first.
        """
        wait = self._expected_wait(visit.caller, priority)
        left = math.inf if deadline is None else deadline - self._clock()
        if left <= 0:
            raise _refused("deadline", "the deadline came before the request was read; try again later", wait)
        if wait > PATIENCE * left:
            raise _refused(
                "too_late",
                f"its turn would come in about {wait:.1f} s, too late for its deadline; try again later",
                wait,
            )
        await self._wait(_Waiter(visit, priority), deadline)
        self._last_turn[visit.caller] = next(self._turns)
        start = self._clock()
        try:
            yield
        finally:
            self._seconds = MEMORY * self._seconds + (1 - MEMORY) * (self._clock() - start)
            self._leave(visit.caller)

    def _make_room(self, caller: str) -> bool:
        """Remove a waiting request of another caller, if that is fair."""
        inside = Counter(visit.caller for visit in self._visits)
        newest_first = [visit for visit in reversed(self._visits) if not visit.had_turn]
        chosen = max(newest_first, key=lambda visit: inside[visit.caller], default=None)
        if chosen is None or inside[chosen.caller] < inside[caller] + FEWER:
            return False
        self._visits.remove(chosen)
        chosen.pushed_out = True
        chosen.task.cancel()
        return True

    def _expected_wait(self, caller: str, priority: int) -> float:
        """Estimate the seconds until the turn of a request that arrives now, at the recent length of turns."""
        if self.running < self._most_running:
            return 0.0
        own = sum(waiter.visit.caller == caller and waiter.priority >= priority for waiter in self._waiters)
        others = Counter(waiter.visit.caller for waiter in self._waiters if waiter.visit.caller != caller)
        level = self._running[caller] + own + 1  # this caller's turns by then; no other caller gets more before it
        before = own + sum(min(count, max(0, level - self._running[other])) for other, count in others.items())
        return (before + 1) / self._most_running * self._seconds

    async def _wait(self, waiter: _Waiter, deadline: float | None) -> None:
        self._waiters.append(waiter)
        self._call()
        try:
            async with asyncio.timeout(None if deadline is None else deadline - self._clock()):
                await waiter.turn
        except BaseException as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            else:
                self._leave(waiter.visit.caller)  # it got its turn while it gave up
            if isinstance(error, TimeoutError):
                raise _refused(
                    "deadline",
                    "the deadline came before the request's turn; try again later",
                    self._expected_wait(waiter.visit.caller, waiter.priority),
                ) from None
            raise

    def _call(self) -> None:
        while self.running < self._most_running:
            there = [waiter for waiter in self._waiters if not (waiter.turn.done() or waiter.visit.pushed_out)]
            if not there:  # all remaining waiters are about to leave
                return
            caller = min(
                (waiter.visit.caller for waiter in there),
                key=lambda caller: (self._running[caller], self._last_turn.get(caller, 0)),
            )
            own = (waiter for waiter in there if waiter.visit.caller == caller)
            chosen = max(own, key=lambda waiter: waiter.priority)
            self._waiters.remove(chosen)
            self._running[caller] += 1
            chosen.visit.had_turn = True
            chosen.turn.set_result(None)

    def _leave(self, caller: str) -> None:
        self._running[caller] -= 1
        self._call()


def _refused(reason: str, message: str, wait: float) -> Overloaded:
    """Count and return a refusal. wait: seconds after which a retry makes sense."""
    metrics.select_refused.labels(reason).inc()
    return Overloaded(message, retry_after=max(1.0, wait))
