"""Thread pools for blocking work: a bounded one for each kind of work, so that no kind waits for another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol, TypeVar, TypeVarTuple

from boundarymorph.errors import Overloaded
from boundarymorph.inference.models import available_cores
from boundarymorph.inference.shares import CALLER, Shares, Turns
from boundarymorph.telemetry import metrics

UNBOUNDED = 2**31
PATIENCE = 1.0  # seconds
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Run(Protocol):
    """Calls a function, most often in another thread, and awaits its result."""

    async def __call__(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Result: ...


class Abandoned(Exception):
    """Nobody waits for the result of a thread any more."""


_cores = threading.Semaphore(available_cores())


@contextmanager
def computing() -> Iterator[None]:
    """Compute in the block, in one of as many threads as there are cores; more would wait for Python's lock most of the
    time. A thread that has waited for PATIENCE goes on all the same, as a disk may keep others from ending."""
    holds = _cores.acquire(timeout=PATIENCE)
    try:
        yield
    finally:
        if holds:
            _cores.release()


_abandoned: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


def is_abandoned() -> bool:
    """Whether nobody waits for the result of this thread's work any more."""
    abandoned = _abandoned.get()
    return abandoned is not None and abandoned.is_set()


def check_awaited() -> None:
    """Raise Abandoned if the caller has gone. Long-running work should call this from time to time."""
    if is_abandoned():
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


async def at_once(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
    """A `Run` on the event loop, for work of a few milliseconds at most, which a thread would delay more. Others go
    first."""
    await asyncio.sleep(0)
    return function(*args)


def at_once_if(short: Callable[[], bool], run: Run) -> Run:
    """A `Run` that is `at_once` whenever `short`, and `run` otherwise."""

    async def chosen(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        return await (at_once if short() else run)(function, *args)

    return chosen


async def in_default_thread(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
    """A `Run` in the event loop's own threads, without a bound, for programs that do one thing at a time."""
    return await asyncio.to_thread(function, *args)


class BoundedExecutor:
    """Runs at most `threads` calls at a time while `waiting` more may wait; rejects any beyond that.

    A caller has a share of threads and places (`Shares`), and callers take turns (`Turns`). kind: of work; its name in
    messages, metrics and in the settings `work.{kind}_threads` and `work.{kind}_waiting`. A cancelled call keeps its
    place until its thread is free again. All calls are made on one event loop.
    """

    def __init__(self, kind: str, *, threads: int, waiting: int = UNBOUNDED, share: float = 1.0) -> None:
        """waiting: unbounded if something else bounds the calls. share: of one caller, as in `Shares`."""
        self._kind = kind
        what = f"places for work of the kind '{kind}' (work.{kind}_threads and work.{kind}_waiting)"
        self._places = Shares(threads + waiting, share, what=what)
        self._turns = Turns(threads, share)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=kind)

    @property
    def taken(self) -> int:
        """Number of places taken by calls that run or wait, and by `place`."""
        return self._places.total

    async def run(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        """Call the function in a thread. Raises Overloaded if there is no place, and what the function raises."""
        with self.place() as run:
            return await run(function, *args)

    @contextmanager
    def place(self) -> Iterator[Run]:
        """Reserve one place for several calls in sequence, none of which is rejected. Raises Overloaded."""
        caller = CALLER.get()
        try:
            self._places.take(caller)
        except Overloaded:
            metrics.work_refused.labels(self._kind).inc()
            raise
        latest: Future[Any] | None = None

        async def run(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
            nonlocal latest
            await self._turns.take(caller)
            with awaited() as context:
                latest = future = self._threads.submit(lambda: context.run(function, *args))
                _when_done(future, self._turns.give_back, caller)
                return await asyncio.wrap_future(future)

        try:
            yield run
        finally:
            if latest is None or latest.done():
                self._places.give_back(caller)
            else:
                _when_done(latest, self._places.give_back, caller)

    async def close(self) -> None:
        """Wait for running calls, and cancel waiting ones."""
        self._turns.close()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)


def _when_done(future: Future[Any], function: Callable[[str], None], caller: str) -> None:
    """Call the function on this event loop once a thread is done with its call."""
    loop = asyncio.get_running_loop()

    def done(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and everything on it has ended
            loop.call_soon_threadsafe(function, caller)

    future.add_done_callback(done)
