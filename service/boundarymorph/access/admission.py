"""Who may come in, and whose turn it is: bounds the work in hand, and is fair between callers."""

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

MEMORY = 0.9  # of the seconds that requests took lately, against those of the last one
PATIENCE = 0.5  # of the time until its deadline that a request may wait for its turn: the rest is for the work
FEWER = 2  # requests inside that a caller has less than another one whose request makes room for its own


@dataclass(slots=True, eq=False)
class Visit:
    """A request that has come in, and the task that it is. pushed_out: its place is another's already."""

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
    """At most `running` requests at a time, and `waiting` more that have come in.

    Between callers, the one with the fewest running has the next turn, among equals the one whose last turn is the
    longest ago. Among one caller's own requests it is the one of the highest priority, then the first. Where there is
    no room, the newest that had no turn, of the caller with the most inside, makes room for a request whose caller has
    at least two fewer.
    """

    def __init__(
        self,
        *,
        running: int,
        waiting: int,
        of_caller: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """of_caller: requests of one caller at a time, running and waiting together; None for no bound of its own."""
        self._most_running = running
        self._most_inside = running + waiting
        self._most_of_caller = of_caller
        self._clock = clock
        self._visits: list[Visit] = []
        self._running: Counter[str] = Counter()
        self._turns = itertools.count(1)
        self._last_turn: dict[str, int] = {}  # by caller; callers are the configured keys, so it stays small
        self._waiters: list[_Waiter] = []
        self._seconds = 1.0  # that a turn took lately

    @property
    def inside(self) -> int:
        """Requests that have come in and not left."""
        return len(self._visits)

    @property
    def running(self) -> int:
        """Requests whose turn it is."""
        return self._running.total()

    @property
    def waiting(self) -> int:
        """Requests that have come in and whose turn it is not, or no more."""
        return self.inside - self.running

    @contextmanager
    def enter(self, caller: str) -> Iterator[Visit]:
        """Come in, before anything of the request is read.

        Raises Overloaded where there is no room, and when it makes room for another: the task is then cancelled.
        """
        own = sum(visit.caller == caller for visit in self._visits)
        if self._most_of_caller is not None and own >= self._most_of_caller:
            raise _refused(
                "key",
                f"this key has {own} selections under way, as many as limits.key_sessions allows; try again later",
                self._seconds,
            )
        if self.inside >= self._most_inside and not self._make_room(caller):
            raise _refused(
                "full",
                f"{self.inside} requests are in hand already; try again later",
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
                "this caller has the most requests in hand, and another one came; try again later",
                self.inside / self._most_running * self._seconds,
            ) from None
        finally:
            if not visit.pushed_out:
                self._visits.remove(visit)

    @asynccontextmanager
    async def turn(self, visit: Visit, *, priority: int = 0, deadline: float | None = None) -> AsyncIterator[None]:
        """Wait for a turn, and have it. deadline: on the clock.

        Raises Overloaded: at once, where the turn is expected too late to be of use, or when the deadline comes first.
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
        """Push one out, if it is fair."""
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
        """Seconds until the turn of a request that comes now, if turns go on to take as long as lately."""
        if self.running < self._most_running:
            return 0.0
        own = sum(waiter.visit.caller == caller and waiter.priority >= priority for waiter in self._waiters)
        others = Counter(waiter.visit.caller for waiter in self._waiters if waiter.visit.caller != caller)
        level = self._running[caller] + own + 1  # turns that this caller has had by then; nobody gets ahead of that
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
            elif waiter.turn.done() and not waiter.turn.cancelled():
                self._leave(waiter.visit.caller)  # its turn came as it gave up
            if isinstance(error, TimeoutError):
                raise _refused(
                    "deadline",
                    "the deadline came before the request's turn did; try again later",
                    self._expected_wait(waiter.visit.caller, waiter.priority),
                ) from None
            raise

    def _call(self) -> None:
        while self.running < self._most_running:
            there = [waiter for waiter in self._waiters if not (waiter.turn.done() or waiter.visit.pushed_out)]
            if not there:  # the others are giving up
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
        self._running += Counter()  # forgets callers who have none
        self._call()


def _refused(reason: str, message: str, wait: float) -> Overloaded:
    """wait: seconds until it is worth another try."""
    metrics.select_refused.labels(reason).inc()
    return Overloaded(message, retry_after=max(1.0, wait))
