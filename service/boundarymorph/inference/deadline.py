"""The moment after which nobody waits for an answer any more, and what time is kept before and after it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar, Self

from boundarymorph.errors import DeadlineExceeded

RETURN, LONGEST_RETURN = 0.05, 0.25  # of a request's time, but seconds at most: what the answer may need to its caller
RESERVE = 0.01  # seconds before the deadline that are kept for reading the selection
LATE = 0.25  # seconds that reading the selected texts may take when the deadline has come


@dataclass(frozen=True, slots=True)
class Deadline:
    """at: seconds on the clock; infinite where there is none."""

    exceeded: ClassVar[str] = "the deadline came; allow more time, or ask for less"
    at: float = math.inf
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of_request(cls, arrival: float, seconds: float) -> Self:
        """That of a request whose caller waits so many seconds since its arrival, on `time.monotonic()`."""
        return cls(arrival + seconds - min(RETURN * seconds, LONGEST_RETURN))

    @property
    def moment(self) -> float | None:
        """Seconds on the clock; None where there is no deadline."""
        return self.at if math.isfinite(self.at) else None

    @property
    def of_scores(self) -> Deadline:
        """After which no scores are of use: the selection is still to be read."""
        return Deadline(self.at - RESERVE, self.clock)

    @property
    def of_texts(self) -> Deadline:
        """That of reading the selected texts, which begins now."""
        return Deadline(max(self.at, self.clock() + LATE), self.clock)

    def remaining(self) -> float:
        """Seconds, more than 0. Raises DeadlineExceeded."""
        remaining = self.at - self.clock()
        if remaining <= 0:
            raise DeadlineExceeded(self.exceeded)
        return remaining

    @asynccontextmanager
    async def enforced(self) -> AsyncIterator[None]:
        """Raises DeadlineExceeded when the block takes longer, or the deadline has come before it."""
        remaining = self.remaining()
        timeout = asyncio.timeout(remaining if math.isfinite(remaining) else None)
        try:
            async with timeout:
                yield
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise DeadlineExceeded(self.exceeded) from error


NEVER = Deadline()
