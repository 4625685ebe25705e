"""Shares of bounds: no caller can take all of what others need too."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

from boundarymorph.errors import LimitExceeded, Overloaded

CALLER: ContextVar[str] = ContextVar("caller", default="")
"""On whose behalf something is done: the name of a key or, without keys, an address; empty for the service itself."""
ON_BEHALF_OF = "X-BoundaryMORPH-Caller"  # the header that tells a retriever or scorer of ours
REMEMBERED = 10_000  # callers whose last turn is known


def room(held: int, total: int, most: int, share: float) -> int:
    """Return how much more a caller may take that holds some of a total, as in `Shares`; may be negative."""
    left = most - total
    if not held:
        return left
    part, whole = _exact(share)
    return (part * left - (whole - part) * held) // whole


@cache
def _exact(share: float) -> tuple[int, int]:
    """Return a share as a fraction of whole numbers, by which bounds are exact."""
    return Fraction(share).limit_denominator(1_000).as_integer_ratio()


class Shares:
    """A bounded amount of something, shared between those who hold some of it at the moment.

    A caller may hold up to share / (1 - share) times what is left: alone, it gets its `share` of the bound; several get
    equal parts, and something is left for the next. (These are the dynamic thresholds of Choudhury and Hahne 1998, for
    the queues of a switch.) Whoever holds nothing may take anything that is left. Not thread-safe.
    """

    def __init__(self, most: int, share: float = 1.0, *, what: str = "places") -> None:
        """share: in (0, 1], of a caller that is alone; 1 for no limit but the bound itself. what: it is, with the
        setting of its bound, for the message of `take`."""
        self.most = most
        self._share = share
        self._what = what
        self._held: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """How much is held by all callers together."""
        return self._held.total()

    @property
    def alone(self) -> int:
        """How much a caller can hold while nobody else holds anything; at least 1."""
        return max(1, int(self._share * self.most))

    def held(self, caller: str) -> int:
        """How much a caller holds."""
        return self._held.get(caller, 0)

    def allows(self, caller: str, amount: int = 1) -> bool:
        """Whether a caller may take so much more."""
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
        """Return some of what a caller holds."""
        self._held[caller] -= amount
        if not self._held[caller]:
            del self._held[caller]

    @contextmanager
    def holding(self, caller: str) -> Iterator[Callable[[int], None]]:
        """Yield a function that takes some more, as `take` does; all is given back at the end. It raises LimitExceeded
        for what would be too much even if nobody else held any."""
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
    priority: int
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Turns:
    """Turns at something that only so many can use at a time, each caller within its share.

    The next turn goes to the caller with the fewest, and among equals to the one whose last turn began the longest ago.
    Of that caller's, the one with the highest priority is next, then the oldest. All calls are made on one event loop.
    """

    def __init__(self, most: int, share: float = 1.0) -> None:
        self.shares = Shares(most, share)
        self._waiters: list[_Waiter] = []
        self._count = itertools.count(1)
        self._last: OrderedDict[str, int] = OrderedDict()

    async def take(self, caller: str, priority: int = 0) -> None:
        """Wait for a turn, to be ended with `give_back`. Who is cancelled has none."""
        waiter = _Waiter(caller, priority)
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
        """End a turn."""
        self.shares.give_back(caller)
        self._call()

    def waiting(self, caller: str, priority: int) -> tuple[int, Counter[str]]:
        """Return how many turns of this caller go before one of this priority, and how many others wait for."""
        own = sum(waiter.caller == caller and waiter.priority >= priority for waiter in self._waiters)
        return own, Counter(waiter.caller for waiter in self._waiters if waiter.caller != caller)

    def close(self) -> None:
        """Cancel whoever waits."""
        for waiter in self._waiters:
            waiter.turn.cancel()

    def _call(self) -> None:
        while there := [
            waiter for waiter in self._waiters if not waiter.turn.done() and self.shares.allows(waiter.caller)
        ]:
            callers = (waiter.caller for waiter in there)
            caller = min(callers, key=lambda caller: (self.shares.held(caller), self._last.get(caller, 0)))
            chosen = max((waiter for waiter in there if waiter.caller == caller), key=lambda waiter: waiter.priority)
            self._waiters.remove(chosen)
            self.shares.take(caller)
            chosen.turn.set_result(None)
