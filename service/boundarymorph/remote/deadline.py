"""How long a call of a model elsewhere may take, and one request of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from boundarymorph.inference import deadline


@dataclass(frozen=True, slots=True)
class Budget:
    """seconds: that a request may take; last: whether the deadline comes then, so that another would be too late."""

    seconds: float
    last: bool


@dataclass(frozen=True, slots=True)
class Deadline(deadline.Deadline):
    """That of a call, of which each request has a budget."""

    exceeded: ClassVar[str] = "the time of the request was over before all texts were done"

    def within(self, seconds: float) -> Budget:
        """The budget of a request that takes at most so long by itself. Raises DeadlineExceeded."""
        remaining = self.remaining()
        return Budget(min(seconds, remaining), remaining <= seconds)
