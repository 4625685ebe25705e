"""Run concurrent work within its limits: deadlines, fair shares, threads, and tasks."""

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

RETURN, LONGEST_RETURN = (
    0.05,
    0.25,
)  # time reserved for sending the answer: a fraction of the whole, and seconds at most
RESERVE = 0.01  # seconds before the deadline reserved for reading the selected texts
LATE = 0.25  # seconds for reading the selected texts once the deadline has passed
EXCEEDED = "the deadline passed; allow more time, or ask for less"


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """The time for one request.

    Attributes:
        seconds: Seconds that it may take.
        last: Whether the deadline is then, so that a retry would be too late.
    """

    seconds: float
    last: bool


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time by which a request must be answered.

    Attributes:
        at: Seconds on the clock; infinite for no deadline.
    """

    at: float = math.inf
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def from_request(cls, arrival: float, seconds: float) -> Self:
        """Return the deadline of a caller that waits `seconds` from `arrival`.

        `arrival` is in seconds on `time.monotonic()`.
        """
        return cls(arrival + seconds - min(RETURN * seconds, LONGEST_RETURN))

    @property
    def moment(self) -> float | None:
        """Seconds on the clock, or None for no deadline."""
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

    def budget(self, seconds: float) -> TimeBudget:
        """Return the budget of a request that may itself take this long. Raises DeadlineExceeded."""
        remaining = self.remaining()
        return TimeBudget(min(seconds, remaining), remaining <= seconds)

    @asynccontextmanager
    async def enforced(self) -> AsyncIterator[None]:
        """Cancel the block and raise DeadlineExceeded when the deadline has passed."""
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
    """Cancel the tasks and wait for their end.

    If the caller is cancelled meanwhile, the cancellation is raised when they have ended.
    """
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
            task.exception()  # marks its error as seen
    if cancelled is not None:
        raise cancelled


async def cancel_once(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work, which is cancelled once however often its caller is.

    A result that arrives just as the caller is cancelled is dropped, so it must need no release.
    """
    return (await gather([work]))[0]


async def gather(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order, or raise the first error.

    An error is raised after the other tasks have been cancelled and have ended.
    """
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


ON_BEHALF_OF = "X-BoundaryMORPH-Caller"  # the header by which our retrievers and scorers learn the caller
REMEMBERED = 10_000  # callers whose last turn is known


def remaining_share(held: int, total: int, most: int, share: float) -> int:
    """Return how much more a caller may take, as in `Shares`; it may be negative.

    Args:
        held: The amount that the caller holds.
        total: The amount that all callers hold.
        most: The bound on `total`.
        share: The share of a caller that is alone.
    """
    left = most - total
    if not held:
        return left
    part, whole = round(1_000 * share), 1_000  # whole numbers, so that bounds are exact
    return (part * left - (whole - part) * held) // whole


def descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


class Shares:
    """A bounded amount that callers share by Choudhury and Hahne's dynamic thresholds (1998).

    A caller may hold up to share / (1 - share) times the free amount. A single caller gets its `share` of the bound;
    several get equal parts, and some is free for the next. A caller that holds nothing may take the whole free amount.
    Not thread-safe.
    """

    def __init__(self, most: int, share: float = 1.0, *, what: str = "places") -> None:
        """Set the bound.

        Args:
            most: The amount that all callers may hold.
            share: The part, in (0, 1], that a caller may hold when it is alone; with 1 only the bound counts.
            what: The name of the units, for messages.
        """
        self.most = most
        self._share = share
        self._what = what
        self._held: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self._held.total()

    @property
    def most_alone(self) -> int:
        """The amount, at least 1, that a caller can hold while no other holds anything."""
        return max(1, int(self._share * self.most))

    def amount_of(self, caller: str) -> int:
        return self._held.get(caller, 0)

    def allows(self, caller: str, amount: int = 1) -> bool:
        return not amount or amount <= remaining_share(self.amount_of(caller), self.total, self.most, self._share)

    def check(self, caller: str, amount: int = 1) -> None:
        """Raise Overloaded if a caller may not take this much more."""
        if not self.allows(caller, amount):
            raise Overloaded(
                f"{self.total:,} of {self.most:,} {self._what} are taken, {self.amount_of(caller):,} by this caller, "
                "and each caller gets a share (limits.key_share); try again later"
            )

    def take(self, caller: str, amount: int = 1) -> None:
        """Take this much more for a caller, or raise Overloaded and take nothing."""
        self.check(caller, amount)
        self._held[caller] += amount

    def give_back(self, caller: str, amount: int = 1) -> None:
        self._held[caller] -= amount
        if not self._held[caller]:
            del self._held[caller]

    @contextmanager
    def reserve(self, caller: str) -> Iterator[Callable[[int], None]]:
        """Yield a function that takes more, as `take` does; all is given back at the end.

        The function also raises LimitExceeded for an amount that exceeds the share of a caller even if no other holds
        anything.
        """
        taken = 0

        def take(amount: int) -> None:
            nonlocal taken
            if amount and amount > remaining_share(taken, taken, self.most, self._share):
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
    """Turns at a resource with a limited number of places.

    Each caller gets at most its share. The next turn goes to the caller with the fewest turns underway. Among equals,
    it goes to the caller whose last turn began the longest ago. For use on one event loop.
    """

    def __init__(self, most: int, share: float = 1.0) -> None:
        self.shares = Shares(most, share)
        self._waiters: list[_Waiter] = []
        self._count = itertools.count(1)
        self._last: OrderedDict[str, int] = OrderedDict()

    async def take(self, caller: str) -> None:
        """Acquire a turn; release it with `give_back`. A cancelled waiter holds nothing."""
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
        """Cancel all calls that wait."""
        for waiter in self._waiters:
            waiter.turn.cancel()

    def _call(self) -> None:
        while there := [
            waiter for waiter in self._waiters if not waiter.turn.done() and self.shares.allows(waiter.caller)
        ]:
            callers = (waiter.caller for waiter in there)
            caller = min(callers, key=lambda caller: (self.shares.amount_of(caller), self._last.get(caller, 0)))
            chosen = next(waiter for waiter in there if waiter.caller == caller)
            self._waiters.remove(chosen)
            self.shares.take(caller)
            chosen.turn.set_result(None)


PATIENCE = 1.0  # seconds
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Run(Protocol):
    async def __call__(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Result: ...


class CallerGone(Exception):
    """No caller waits for the result of this thread any more."""


def available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_cores = threading.Semaphore(available_cores())


@contextmanager
def compute_slot() -> Iterator[None]:
    """Hold one of as many places for computing threads as there are cores.

    A thread that has waited for PATIENCE goes on without a place, because a slow disk may keep others from ending.
    """
    holds = _cores.acquire(timeout=PATIENCE)
    try:
        yield
    finally:
        if holds:
            _cores.release()


_abandoned: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


def is_abandoned() -> bool:
    """Return whether no caller waits for the result of this thread's work any more."""
    abandoned = _abandoned.get()
    return abandoned is not None and abandoned.is_set()


def check_awaited() -> None:
    """Raise CallerGone if the caller has gone. Long work should call this from time to time."""
    if is_abandoned():
        raise CallerGone


@contextmanager
def awaited_context() -> Iterator[Context]:
    """Yield a context for work in a thread.

    In the context, `check_awaited` raises once the block has ended.
    """
    abandoned, context = threading.Event(), copy_context()
    context.run(_abandoned.set, abandoned)
    try:
        yield context
    finally:
        abandoned.set()


async def run_on_loop(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
    """Run a function on the event loop, after other tasks.

    This suits work of a few milliseconds, which a thread would delay more.
    """
    await asyncio.sleep(0)
    return function(*args)


async def run_in_default_thread(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
    """Run a function in the event loop's own threads, without a bound."""
    return await asyncio.to_thread(function, *args)


class FairExecutor:
    """Runs blocking calls in threads, in which callers take turns (`Turns`).

    Waiting calls are not bounded here, but requests are. A cancelled call keeps its thread until it has ended. For use
    on one event loop.
    """

    def __init__(self, name: str, *, threads: int, share: float = 1.0) -> None:
        """Create threads of this name, of which one caller gets its `share`, as in `Shares`."""
        self._turns = Turns(threads, share)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def bind(self, caller: str) -> Run:
        """Return a `Run` for one caller."""

        async def run(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
            return await self.run(function, *args, caller=caller)

        return run

    async def run(self, function: Callable[[*Arguments], Result], *args: *Arguments, caller: str = "") -> Result:
        """Call the function in a thread for a caller; "" is the service itself."""
        loop = asyncio.get_running_loop()
        await self._turns.take(caller)

        def done(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed, and everything on it has ended
                loop.call_soon_threadsafe(self._turns.give_back, caller)

        with awaited_context() as context:
            future = self._threads.submit(lambda: context.run(function, *args))
            future.add_done_callback(done)
            return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Wait for running calls, and cancel waiting ones."""
        self._turns.close()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
