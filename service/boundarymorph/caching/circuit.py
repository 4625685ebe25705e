"""A circuit breaker: a server that does not answer is not called for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum


class State(IntEnum):
    """CLOSED: all calls pass; HALF_OPEN: one trial call passes; OPEN: no call passes."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class CircuitBreaker:
    """Opens after `failures` failures in a row; after a pause, which doubles each time, one trial call decides.

    Concurrent calls usually fail for the same reason, so they count as one failure. pause, longest_pause: seconds, the
    first and the longest.
    """

    def __init__(
        self,
        *,
        failures: int = 5,
        pause: float = 1.0,
        longest_pause: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed = failures
        self._first_pause, self._longest_pause = pause, longest_pause
        self._clock = clock
        self._failures = 0
        self._pause = pause
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
            self._until, self._trying, self._pause = None, False, self._first_pause
        self._failures = 0

    def failed(self, ticket: int) -> None:
        """Note that the call was not answered."""
        if ticket != self._turn:
            return
        self._turn += 1
        self._failures += 1
        if self._trying:
            self._pause = min(2 * self._pause, self._longest_pause)
        elif self._failures < self._allowed:
            return
        self._until, self._trying = self._clock() + self._pause, False

    def abandoned(self, ticket: int) -> None:
        """Note that the caller gave up before an answer; the next call may try."""
        if ticket == self._turn:
            self._trying = False
