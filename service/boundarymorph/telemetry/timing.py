"""The current request's time by stage, for its Server-Timing header."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_stages: ContextVar[dict[str, float] | None] = ContextVar("stages", default=None)


@contextmanager
def collecting() -> Iterator[dict[str, float]]:
    """Yield a dictionary that collects the seconds by stage recorded within the block and its tasks."""
    stages: dict[str, float] = {}
    token = _stages.set(stages)
    try:
        yield stages
    finally:
        _stages.reset(token)


def add(stage: str, seconds: float) -> None:
    """Add seconds to a stage of the current request; outside of a request, do nothing."""
    if (stages := _stages.get()) is not None:
        stages[stage] = stages.get(stage, 0.0) + seconds


def tell(seconds: Mapping[str, float]) -> None:
    """Replace the seconds of all stages of the current request."""
    if (stages := _stages.get()) is not None:
        stages.clear()
        stages.update(seconds)


def header(seconds: Mapping[str, float]) -> str:
    """Return the value of a Server-Timing header, in milliseconds. The names of stages must be plain words."""
    return ", ".join(f"{stage};dur={value * 1e3:.3f}" for stage, value in seconds.items())


class Stopwatch:
    """Seconds by stage."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        start = self._clock()
        try:
            yield
        finally:
            self._stages[name] = self._stages.get(name, 0.0) + self._clock() - start

    def read(self) -> dict[str, float]:
        """Return the seconds of every stage so far, and the total since the start."""
        return {**self._stages, "total": self._clock() - self._start}
