"""Who may come in, and whose turn it is: bounds the work in hand, and is fair between callers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from boundarymorph.errors import Overloaded

MEMORY = 0.9  # of the seconds that requests took lately, against those of the last one
PATIENCE = 0.5  # of the time until its deadline that a request may wait for its turn: the rest is for the work


@dataclass(slots=True, eq=False)
class _Waiter:
    caller: str
    priority: int
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Admission:
    """At most `running` requests at a time, and `waiting` more that have come in.

    Of those that wait, the one of the highest priority is next, among equals the one whose caller has the fewest
    running, among equals the first.
    """

    def __init__(self, *, running: int, waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_running = running
        self._most_inside = running + waiting
        self._clock = clock
        self._inside = 0
        self._running: Counter[str] = Counter()
        self._waiters: list[_Waiter] = []
        self._seconds = 1.0  # that a turn took lately

    @property
    def inside(self) -> int:
        """Requests that have come in and not left."""
        return self._inside

    @property
    def running(self) -> int:
        """Requests whose turn it is."""
        return self._running.total()

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Come in, before anything of the request is read. Raises Overloaded where there is no room."""
        if self._inside >= self._most_inside:
            wait = self._inside / self._most_running * self._seconds
            raise Overloaded(
                f"{self._inside} requests are in hand already; try again later", retry_after=max(1.0, wait)
            )
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    @asynccontextmanager
    async def turn(self, caller: str, *, priority: int = 0, deadline: float | None = None) -> AsyncIterator[None]:
        """Wait for a turn, and have it. deadline: on the clock.

        Raises Overloaded: at once, where the turn is expected too late to be of use, or when the deadline comes first.
        """
        wait = self._expected_wait(priority)
        if deadline is not None and wait > PATIENCE * (deadline - self._clock()):
            raise Overloaded(
                f"its turn would come in about {wait:.1f} s, too late for its deadline; try again later",
                retry_after=max(1.0, wait),
            )
        await self._wait(_Waiter(caller, priority), deadline)
        start = self._clock()
        try:
            yield
        finally:
            self._seconds = MEMORY * self._seconds + (1 - MEMORY) * (self._clock() - start)
            self._leave(caller)

    def _expected_wait(self, priority: int) -> float:
        """Seconds until the turn of a request that comes now, if turns go on to take as long as lately."""
        if self.running < self._most_running:
            return 0.0
        before = sum(waiter.priority >= priority for waiter in self._waiters)
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
                self._leave(waiter.caller)  # its turn came as it gave up
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    "the deadline came before the request's turn did; try again later",
                    retry_after=max(1.0, self._expected_wait(waiter.priority)),
                ) from None
            raise

    def _call(self) -> None:
        while self.running < self._most_running:
            there = [waiter for waiter in self._waiters if not waiter.turn.done()]  # the others are giving up
            if not there:
                return
            chosen = min(there, key=lambda waiter: (-waiter.priority, self._running[waiter.caller]))
            self._waiters.remove(chosen)
            self._running[chosen.caller] += 1
            chosen.turn.set_result(None)

    def _leave(self, caller: str) -> None:
        self._running[caller] -= 1
        self._running += Counter()  # forgets callers who have none
        self._call()
