"""Where the time of the current request goes, for its Server-Timing header."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_stages: ContextVar[dict[str, float] | None] = ContextVar("stages", default=None)


@contextmanager
def collecting() -> Iterator[dict[str, float]]:
    """Collect what is recorded within the block, in its tasks too: seconds by stage."""
    stages: dict[str, float] = {}
    token = _stages.set(stages)
    try:
        yield stages
    finally:
        _stages.reset(token)


def add(stage: str, seconds: float) -> None:
    """Add to a stage of the current request; nothing outside of one."""
    if (stages := _stages.get()) is not None:
        stages[stage] = stages.get(stage, 0.0) + seconds


def tell(seconds: Mapping[str, float]) -> None:
    """Say for all stages of the current request what they took, in place of what was added."""
    if (stages := _stages.get()) is not None:
        stages.clear()
        stages.update(seconds)


def header(seconds: Mapping[str, float]) -> str:
    """The value of a Server-Timing header, in milliseconds. The names of the stages are words."""
    return ", ".join(f"{stage};dur={value * 1e3:.3f}" for stage, value in seconds.items())


class Stopwatch:
    """Seconds by stage."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add what the block takes to a stage."""
        start = self._clock()
        try:
            yield
        finally:
            self._stages[name] = self._stages.get(name, 0.0) + self._clock() - start

    def read(self) -> dict[str, float]:
        """Every stage so far, and the total since the beginning."""
        return {**self._stages, "total": self._clock() - self._start}
