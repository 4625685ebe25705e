"""The moment after which nobody waits for an answer any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from boundarymorph.errors import DeadlineExceeded


@dataclass(frozen=True, slots=True)
class Budget:
    """seconds: that a request may take; last: whether the deadline comes then, so that another would be too late."""

    seconds: float
    last: bool


@dataclass(frozen=True, slots=True)
class Deadline:
    """at: seconds on the clock."""

    at: float
    clock: Callable[[], float]

    def remaining(self) -> float:
        """Seconds, more than 0. Raises DeadlineExceeded."""
        remaining = self.at - self.clock()
        if remaining <= 0:
            raise DeadlineExceeded("the time of the request was over before all texts were done")
        return remaining

    def within(self, seconds: float) -> Budget:
        """The budget of a request that takes at most so long by itself. Raises DeadlineExceeded."""
        remaining = self.remaining()
        return Budget(min(seconds, remaining), remaining <= seconds)
