"""The deadline of a request, and the time reserved before and after it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

from boundarymorph.errors import DeadlineExceeded

RETURN, LONGEST_RETURN = 0.05, 0.25  # reserved for sending the answer: a fraction of the time, seconds at most
RESERVE = 0.01  # seconds before the deadline reserved for reading the selected texts
LATE = 0.25  # seconds for reading the selected texts once the deadline has passed
EXCEEDED = "the deadline passed; allow more time, or ask for less"


@dataclass(frozen=True, slots=True)
class Budget:
    """seconds: time for one request; last: whether the deadline falls then, so that a retry would be too late."""

    seconds: float
    last: bool


@dataclass(frozen=True, slots=True)
class Deadline:
    """at: seconds on the clock; infinite for no deadline."""

    at: float = math.inf
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of_request(cls, arrival: float, seconds: float) -> Self:
        """Return the deadline for a caller that waits this long from arrival, in seconds on `time.monotonic()`."""
        return cls(arrival + seconds - min(RETURN * seconds, LONGEST_RETURN))

    @property
    def moment(self) -> float | None:
        """Seconds on the clock; None for no deadline."""
        return self.at if math.isfinite(self.at) else None

    @property
    def of_scores(self) -> Deadline:
        """The deadline for scores, which leaves time to read the selected texts."""
        return Deadline(self.at - RESERVE, self.clock)

    @property
    def of_texts(self) -> Deadline:
        """The deadline for reading the selected texts, starting now."""
        return Deadline(max(self.at, self.clock() + LATE), self.clock)

    def remaining(self) -> float:
        """Return the remaining seconds, more than 0. Raises DeadlineExceeded."""
        remaining = self.at - self.clock()
        if remaining <= 0:
            raise DeadlineExceeded(EXCEEDED)
        return remaining

    def within(self, seconds: float) -> Budget:
        """Return the budget of a request that may take this long by itself. Raises DeadlineExceeded."""
        remaining = self.remaining()
        return Budget(min(seconds, remaining), remaining <= seconds)

    @asynccontextmanager
    async def enforced(self) -> AsyncIterator[None]:
        """Cancel the block and raise DeadlineExceeded when the deadline passes, or at once if it has passed."""
        remaining = self.remaining()
        timeout = asyncio.timeout(remaining if math.isfinite(remaining) else None)
        try:
            async with timeout:
                yield
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise DeadlineExceeded(EXCEEDED) from error


NEVER = Deadline()
