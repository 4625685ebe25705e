"""Time limits of a call to a remote model, and of each of its requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from boundarymorph.inference import deadline


@dataclass(frozen=True, slots=True)
class Budget:
    """seconds: time for one request; last: whether the deadline falls then, so that a retry would be too late."""

    seconds: float
    last: bool


@dataclass(frozen=True, slots=True)
class Deadline(deadline.Deadline):
    """The deadline of a call; each of its requests gets a budget."""

    exceeded: ClassVar[str] = "the deadline passed before all texts were done"

    def within(self, seconds: float) -> Budget:
        """Return the budget of a request that may take this long by itself. Raises DeadlineExceeded."""
        remaining = self.remaining()
        return Budget(min(seconds, remaining), remaining <= seconds)
