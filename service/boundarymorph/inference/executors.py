"""Thread pools for blocking work: a bounded one for each kind of work, so that no kind waits for another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol, TypeVar, TypeVarTuple

from boundarymorph.errors import Overloaded
from boundarymorph.telemetry import metrics

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Run(Protocol):
    """Calls a function in another thread and awaits its result."""

    async def __call__(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Result: ...


class Abandoned(Exception):
    """Nobody waits for the result of a thread any more."""


_abandoned: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


def check_awaited() -> None:
    """Raise Abandoned if the caller has gone. Long-running work should call this from time to time."""
    abandoned = _abandoned.get()
    if abandoned is not None and abandoned.is_set():
        raise Abandoned


@contextmanager
def awaited() -> Iterator[Context]:
    """Yield a context for work in another thread, in which `check_awaited` raises once the block has been left."""
    abandoned, context = threading.Event(), copy_context()
    context.run(_abandoned.set, abandoned)
    try:
        yield context
    finally:
        abandoned.set()


async def in_thread(executor: Executor, function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
    """Call the function in a thread of the executor."""
    with awaited() as context:
        return await asyncio.wrap_future(executor.submit(lambda: context.run(function, *args)))


async def in_default_thread(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
    """A `Run` in the event loop's own threads, without a bound, for programs that do one thing at a time."""
    return await asyncio.to_thread(function, *args)


class BoundedExecutor:
    """Runs at most `threads` calls at a time while `waiting` more may wait; rejects any beyond that.

    kind: of work; its name in messages, metrics and in the settings `work.{kind}_threads` and `work.{kind}_waiting`. A
    cancelled call keeps its place until its thread is free again.
    """

    def __init__(self, kind: str, *, threads: int, waiting: int) -> None:
        self._kind = kind
        self._most = threads + waiting
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=kind)
        self._lock = threading.Lock()
        self._taken = 0

    @property
    def taken(self) -> int:
        """Number of places taken by calls that run or wait, and by `place`."""
        return self._taken

    async def run(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        """Call the function in a thread. Raises Overloaded if all places are taken, and what the function raises."""
        with self.place() as run:
            return await run(function, *args)

    @contextmanager
    def place(self) -> Iterator[Run]:
        """Reserve one place for several calls in sequence, none of which is rejected. Raises Overloaded."""
        self._take()
        latest: Future[Any] | None = None

        async def run(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
            nonlocal latest
            with awaited() as context:
                latest = future = self._threads.submit(lambda: context.run(function, *args))
                return await asyncio.wrap_future(future)

        try:
            yield run
        finally:
            if latest is None:
                self._give_back()
            else:
                latest.add_done_callback(self._give_back)

    async def close(self) -> None:
        """Wait for running calls, and cancel waiting ones."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    def _take(self) -> None:
        with self._lock:
            if self._taken >= self._most:
                metrics.work_refused.labels(self._kind).inc()
                raise Overloaded(
                    f"{self._taken} calls of the kind '{self._kind}' are running or waiting, as many as "
                    f"work.{self._kind}_threads and work.{self._kind}_waiting allow; try again later"
                )
            self._taken += 1

    def _give_back(self, _: object = None) -> None:
        with self._lock:
            self._taken -= 1
