"""Concurrent work within its limits: deadlines, fair shares, threads, and tasks that end."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import resource
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar, TypeVarTuple

from boundarymorph.errors import DeadlineExceeded, LimitExceeded, Overloaded

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
T = TypeVar("T")

# Closing a connection takes a few turns of the event loop. A second cancellation in one of them leaves it open, and in
# its pool, for good. anyio's cancel scopes cancel at every turn, and a time limit may pass just when the caller leaves.


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait for their end. If this is cancelled meanwhile, so it is when they have ended."""
    for task in tasks:
        task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as again:
            cancelled = again
    for task in tasks:
        if not task.cancelled():
            task.exception()  # marks it as seen
    if cancelled is not None:
        raise cancelled


async def owned(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work, which is cancelled once however often its caller is. A result that arrives just as
    the caller is cancelled is dropped, so it must need no release."""
    return (await together([work]))[0]


async def together(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order, or raise the first error after the others have been cancelled and have ended."""
    if not coroutines:
        return []
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return [task.result() for task in tasks]
    finally:
        await end(tasks)


ON_BEHALF_OF = "X-BoundaryMORPH-Caller"  # the header that tells a retriever or scorer of ours
REMEMBERED = 10_000  # callers whose last turn is known


def room(held: int, total: int, most: int, share: float) -> int:
    """Return how much more a caller may take that holds some of a total, as in `Shares`; may be negative."""
    left = most - total
    if not held:
        return left
    part, whole = round(1_000 * share), 1_000  # whole numbers, by which bounds are exact
    return (part * left - (whole - part) * held) // whole


def descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


class Shares:
    """A bounded amount of something, shared between callers by the dynamic thresholds of Choudhury and Hahne (1998). A
    caller may hold up to share / (1 - share) times the free amount. A single caller gets its `share` of the bound;
    several get equal parts, and some is free for the next. A caller that holds nothing may take the whole free amount.
    Not thread-safe."""

    def __init__(self, most: int, share: float = 1.0, *, what: str = "places") -> None:
        """share: in (0, 1], of a caller that is alone; 1: no limit but the bound. what: for messages."""
        self.most = most
        self._share = share
        self._what = what
        self._held: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self._held.total()

    @property
    def alone(self) -> int:
        """How much a caller can hold while nobody else holds anything; at least 1."""
        return max(1, int(self._share * self.most))

    def held(self, caller: str) -> int:
        return self._held.get(caller, 0)

    def allows(self, caller: str, amount: int = 1) -> bool:
        return not amount or amount <= room(self.held(caller), self.total, self.most, self._share)

    def check(self, caller: str, amount: int = 1) -> None:
        """Raises Overloaded if a caller may not take so much more."""
        if not self.allows(caller, amount):
            raise Overloaded(
                f"{self.total:,} of {self.most:,} {self._what} are taken, {self.held(caller):,} by this caller; "
                "each gets a share (limits.key_share); try again later"
            )

    def take(self, caller: str, amount: int = 1) -> None:
        """Raises Overloaded, and takes nothing, if a caller may not take so much more."""
        self.check(caller, amount)
        self._held[caller] += amount

    def give_back(self, caller: str, amount: int = 1) -> None:
        self._held[caller] -= amount
        if not self._held[caller]:
            del self._held[caller]

    @contextmanager
    def holding(self, caller: str) -> Iterator[Callable[[int], None]]:
        """Yield a function that takes some more, as `take` does; all is given back at the end. It also raises
        LimitExceeded for an amount that exceeds the share of a caller even if nobody else calls."""
        taken = 0

        def take(amount: int) -> None:
            nonlocal taken
            if amount and amount > room(taken, taken, self.most, self._share):
                raise LimitExceeded(
                    f"this request takes more than it can ever get of the {self.most:,} {self._what}; ask for less"
                )
            self.take(caller, amount)
            taken += amount

        try:
            yield take
        finally:
            self.give_back(caller, taken)


@dataclass(slots=True, eq=False)
class _Waiter:
    caller: str
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Turns:
    """Turns at a resource with a limited number of places, of which each caller gets at most its share.

    The next turn goes to the caller with the fewest turns under way. Among equals, it goes to the caller whose last
    turn began the longest ago. For use on one event loop.
    """

    def __init__(self, most: int, share: float = 1.0) -> None:
        self.shares = Shares(most, share)
        self._waiters: list[_Waiter] = []
        self._count = itertools.count(1)
        self._last: OrderedDict[str, int] = OrderedDict()

    async def take(self, caller: str) -> None:
        """Wait for a turn, to be ended with `give_back`. A cancelled caller has none."""
        waiter = _Waiter(caller)
        self._waiters.append(waiter)
        self._call()
        try:
            await waiter.turn
        except BaseException:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            else:  # its turn came while it gave up
                self.give_back(caller)
            raise
        self._last[caller] = next(self._count)
        self._last.move_to_end(caller)
        if len(self._last) > REMEMBERED:
            self._last.popitem(last=False)

    def give_back(self, caller: str) -> None:
        self.shares.give_back(caller)
        self._call()

    def waiting(self) -> Counter[str]:
        return Counter(waiter.caller for waiter in self._waiters)

    def close(self) -> None:
        """Cancel all waiters."""
        for waiter in self._waiters:
            waiter.turn.cancel()

    def _call(self) -> None:
        while there := [
            waiter for waiter in self._waiters if not waiter.turn.done() and self.shares.allows(waiter.caller)
        ]:
            callers = (waiter.caller for waiter in there)
            caller = min(callers, key=lambda caller: (self.shares.held(caller), self._last.get(caller, 0)))
            chosen = next(waiter for waiter in there if waiter.caller == caller)
            self._waiters.remove(chosen)
            self.shares.take(caller)
            chosen.turn.set_result(None)


PATIENCE = 1.0  # seconds
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Run(Protocol):
    async def __call__(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Result: ...


class Abandoned(Exception):
    """Nobody waits for the result of a thread any more."""


def available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_cores = threading.Semaphore(available_cores())


@contextmanager
def computing() -> Iterator[None]:
    """Compute in the block, in one of as many threads as there are cores. A thread that has waited for PATIENCE goes on
    all the same, as a disk may keep others from ending."""
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
    """A `Run` on the event loop, after other tasks, for work of a few milliseconds, which a thread would delay more."""
    await asyncio.sleep(0)
    return function(*args)


async def in_default_thread(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
    """A `Run` in the event loop's own threads, without a bound, for programs that do one thing at a time."""
    return await asyncio.to_thread(function, *args)


class FairExecutor:
    """Runs blocking calls in threads, in which callers take turns (`Turns`). Waiting calls are not bounded here, but
    requests are. A cancelled call keeps its thread until it has ended. For use on one event loop."""

    def __init__(self, name: str, *, threads: int, share: float = 1.0) -> None:
        """name: of the threads; share: of one caller, as in `Shares`."""
        self._turns = Turns(threads, share)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def of(self, caller: str) -> Run:
        """Return what runs calls on behalf of a caller."""

        async def run(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
            return await self.run(function, *args, caller=caller)

        return run

    async def run(self, function: Callable[[*Arguments], Result], *args: *Arguments, caller: str = "") -> Result:
        """Call the function in a thread, on behalf of a caller; "" is the service itself. Raises what it raises."""
        loop = asyncio.get_running_loop()
        await self._turns.take(caller)

        def done(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed, and everything on it has ended
                loop.call_soon_threadsafe(self._turns.give_back, caller)

        with awaited() as context:
            future = self._threads.submit(lambda: context.run(function, *args))
            future.add_done_callback(done)
            return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Wait for running calls, and cancel waiting ones."""
        self._turns.close()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
