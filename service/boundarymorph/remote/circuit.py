"""Calling a server that may not answer: within a time limit, and not at all while it seems to be down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from enum import IntEnum
from typing import Any, TypeVar

from boundarymorph.inference.concurrency import owned

FAILURES = 5  # in a row
PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds
Result = TypeVar("Result")


class State(IntEnum):
    """CLOSED: all calls pass; HALF_OPEN: one trial call passes; OPEN: no call passes."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class CircuitBreaker:
    """Opens after `failures` failures in a row; after a pause, which doubles each time, one trial call decides.

    Concurrent calls usually fail for the same reason, so they count as one failure.
    """

    def __init__(self, *, failures: int = FAILURES, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowed, self._clock = failures, clock
        self._failures = 0
        self._pause = PAUSE
        self._until: float | None = None  # None while closed
        self._trying = False
        self._turn = 0  # grows with every failure and trial: calls begun before it do not count again

    @property
    def state(self) -> State:
        if self._until is None:
            return State.CLOSED
        return State.HALF_OPEN if self._trying or self._clock() >= self._until else State.OPEN

    def admit(self) -> int | None:
        """Return a ticket for one call, to be passed once to `succeeded`, `failed` or `abandoned`; None if refused."""
        if self._until is not None:
            if self._trying or self._clock() < self._until:
                return None
            self._trying = True
            self._turn += 1
        return self._turn

    def succeeded(self, ticket: int) -> None:
        """Note that the call was answered."""
        if self._until is not None:
            if ticket != self._turn:
                return
            self._until, self._trying, self._pause = None, False, PAUSE
        self._failures = 0

    def failed(self, ticket: int) -> None:
        """Note that the call was not answered."""
        if ticket != self._turn:
            return
        self._turn += 1
        self._failures += 1
        if self._trying:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        elif self._failures < self._allowed:
            return
        self._until, self._trying = self._clock() + self._pause, False

    def abandoned(self, ticket: int) -> None:
        """Note that the caller gave up before an answer; the next call may try."""
        if ticket == self._turn:
            self._trying = False


class Unanswered(Exception):
    """The server did not answer, returned an error, or was not called."""


class Guard:
    """Calls a server behind a circuit breaker, each time within a time limit.

    timeout: seconds for an answer, and before that for a place among `places`. on_change: called with the error when
    the circuit opens, and with None when it has closed again.
    """

    def __init__(
        self,
        timeout: float,
        places: asyncio.Semaphore,
        on_change: Callable[[Exception | None], None],
        circuit: CircuitBreaker,
    ) -> None:
        self._timeout, self._places, self._on_change = timeout, places, on_change
        self.circuit = circuit

    async def call(self, request: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return the answer. Raises only Unanswered, whatever the request raises."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._places.acquire()
        except TimeoutError as late:
            raise Unanswered from late
        try:
            return await self._call(request)
        finally:
            self._places.release()

    async def _call(self, request: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        ticket, before = self.circuit.admit(), self.circuit.state
        if ticket is None:
            raise Unanswered
        try:
            async with asyncio.timeout(self._timeout):
                answer = await owned(request())
        except asyncio.CancelledError:
            self.circuit.abandoned(ticket)
            raise
        except Exception as error:  # redis-py raises many types on a malformed reply
            self.circuit.failed(ticket)
            if before is State.CLOSED and self.circuit.state is not State.CLOSED:
                self._on_change(error)
            raise Unanswered from error
        before = self.circuit.state
        self.circuit.succeeded(ticket)
        if before is not State.CLOSED and self.circuit.state is State.CLOSED:
            self._on_change(None)
        return answer
