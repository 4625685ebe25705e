"""Clocks and event loops whose time the tests set."""

import asyncio
import selectors
from typing import Any


class Clock:
    """A clock that stands still until `now` is set."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class StoppedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still until `now` is set."""

    now = 1_000.0

    def time(self) -> float:
        return self.now


class VirtualLoop(StoppedLoop):
    """An event loop whose time jumps to the next timer when no task can run.

    Without a timer it waits for the threads.
    """

    def __init__(self) -> None:
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                loop.now += timeout or 0.0
                return super().select(None if timeout is None else 0)

        super().__init__(Selector())
