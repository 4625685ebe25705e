"""How much callers may do: the checks that every request passes, turns at work, and rate limits of keys."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from limits import RateLimitItem, parse_many
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import RateLimiter, SlidingWindowCounterRateLimiter

from boundarymorph.access.callers import CalibrationChoice, CalibrationName, Caller, KeyRing, Origins, Policies
from boundarymorph.caching.redis import CONNECTIONS, CircuitBreaker, Guard, Unanswered, connected
from boundarymorph.errors import InvalidConfiguration, Overloaded
from boundarymorph.inference.concurrency import CALLER, FairExecutor, Shares, Turns
from boundarymorph.selector.documents import Room
from boundarymorph.settings import UNLIMITED, RateLimitSettings, Settings
from boundarymorph.telemetry import metrics

MEMORY = 0.9  # weight of earlier requests in the moving average of their seconds
PATIENCE = 0.5  # the share of its remaining time that a request may wait for its turn: the rest is for the work


class Admission:
    """Runs at most `running` selections at a time. Callers take turns (`Turns`), each within its share (`Shares`)."""

    def __init__(self, running: int, share: float = 1.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._turns = Turns(running, share)
        self._clock = clock
        self._seconds = 1.0  # moving average of the length of a turn

    @property
    def running(self) -> int:
        """The number of selections that have their turn."""
        return self._turns.shares.total

    @property
    def waiting(self) -> int:
        """The number of selections that wait for their turn."""
        return self._turns.waiting().total()

    @asynccontextmanager
    async def turn(self, caller: str, *, deadline: float | None = None) -> AsyncIterator[None]:
        """Wait for a turn and hold it within the block. deadline: on the clock.

        Raises Overloaded at once if the turn is expected too late to be of use, and if the deadline comes first.
        """
        wait = self._expected_wait(caller)
        left = math.inf if deadline is None else deadline - self._clock()
        if left <= 0:
            raise _refused("deadline", "the deadline came before the request was read; try again later", wait)
        if wait > PATIENCE * left:
            raise _refused(
                "too_late",
                f"its turn would come in about {wait:.1f} s, too late for its deadline; try again later",
                wait,
            )
        try:
            async with asyncio.timeout(None if deadline is None else deadline - self._clock()):
                await self._turns.take(caller)
        except TimeoutError:
            raise _refused(
                "deadline",
                "the deadline came before the request's turn; try again later",
                self._expected_wait(caller),
            ) from None
        start = self._clock()
        try:
            yield
        finally:
            self._seconds = MEMORY * self._seconds + (1 - MEMORY) * (self._clock() - start)
            self._turns.give_back(caller)

    def _expected_wait(self, caller: str) -> float:
        """Estimate the seconds until the turn of a request that arrives now, at the recent length of turns."""
        running = self._turns.shares
        if running.allows(caller):
            return 0.0
        others = self._turns.waiting()
        own = others.pop(caller, 0)
        level = running.held(caller) + own + 1  # this caller's turns by then; no other caller gets more before it
        before = own + sum(min(count, max(0, level - running.held(other))) for other, count in others.items())
        return (before + 1) / running.alone * self._seconds


def _refused(reason: str, message: str, wait: float = 1.0) -> Overloaded:
    """Count and return a refusal. wait: seconds after which a retry makes sense."""
    metrics.requests_refused.labels(reason).inc()
    return Overloaded(message, retry_after=max(1.0, wait))


log = logging.getLogger(__name__)
Result = TypeVar("Result")
PREFIX = "boundarymorph:rates"  # of the keys in Redis


class SharedCounters(Guard):
    """Counters in Redis, behind a circuit breaker: if Redis fails often, it is not asked for a while."""

    def __init__(self, url: str, timeout: float) -> None:
        """url: of Redis, in the format of cache.url; timeout: seconds for each request. Does not connect yet.

        Raises InvalidConfiguration for a malformed url.
        """
        redis = connected(url, timeout, CONNECTIONS)
        pool: Any = redis.connection_pool
        self.storage = RedisStorage("redis://", connection_pool=pool, implementation="redispy", key_prefix=PREFIX)
        super().__init__(redis, timeout, asyncio.Semaphore(CONNECTIONS), self._tell, CircuitBreaker())

    async def ask(self, request: Callable[[], Coroutine[Any, Any, Result]]) -> Result | None:
        """Return the result of a request to the storage, or None if Redis is not asked or does not answer."""
        try:
            return await self.call(request)
        except Unanswered:
            metrics.rate_limit_unshared.inc()
            return None

    async def close(self) -> None:
        """Release the connections."""
        with suppress(Exception):  # the server may be gone
            await self._redis.aclose()

    def _tell(self, error: Exception | None) -> None:
        if error is not None:
            said = "rate limits are counted in this process for a while, since Redis does not answer: %s"
            log.warning(said, type(error).__name__)


class RateLimited(Overloaded):
    """The key has reached its rate limit; no work was done for this request."""


@dataclass(frozen=True, slots=True)
class LimitState:
    """The state of one limit of a caller: `quota` requests in `window` seconds.

    remaining: requests left; reset: seconds until there are more.
    """

    quota: int
    window: int
    remaining: int
    reset: float

    @property
    def name(self) -> str:
        """The name of the limit in response headers."""
        return f'"{self.quota}-in-{self.window}s"'


@dataclass(frozen=True, slots=True)
class Decision:
    """The result for one request. refused: the limit that refused it, if any."""

    limits: tuple[LimitState, ...] = ()
    refused: LimitState | None = None

    def check(self) -> None:
        """Raises RateLimited if the request was refused."""
        if self.refused is not None:
            raise RateLimited(
                f"this key has used up its {self.refused.quota:,} requests in {self.refused.window:,} s; "
                "try again later",
                retry_after=max(1.0, self.refused.reset),
            )


class RateLimits:
    """The limits of every key, over sliding windows.

    If Redis does not answer in time, the request is counted in this process instead. If that happens often, Redis is
    not asked for a while. Until then a limit applies to each process separately.
    """

    def __init__(self, settings: RateLimitSettings, callers: Collection[str], *, url: str | None) -> None:
        """callers: the names of all keys. url: of Redis, in the format of cache.url; None counts in this process.

        Does not connect yet. Raises InvalidConfiguration for a limit of an unknown key, and for a malformed url.
        """
        if unknown := sorted(set(settings.keys) - set(callers)):
            raise InvalidConfiguration(f"rate_limits.keys: there is no key named {unknown[0]!r}")
        self._default = _items(settings.default)
        self._of_key = {name: _items(text) for name, text in settings.keys.items()}
        self._own = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._counters: SharedCounters | None = None
        if url is not None and any((self._default, *self._of_key.values())):
            self._counters = SharedCounters(url, settings.timeout_seconds)
            self._shared = SlidingWindowCounterRateLimiter(self._counters.storage)

    async def take(self, caller: str) -> Decision:
        """Count one request in every limit, the shortest window first, up to the one that refuses it."""
        items = self._of_key.get(caller, self._default)
        if not items:
            return Decision()
        decision = None
        if self._counters is not None:
            decision = await self._counters.ask(partial(self._take, self._shared, caller, items))
        if decision is None:
            decision = await self._take(self._own, caller, items)
        metrics.rate_limited.labels(caller, "admitted" if decision.refused is None else "refused").inc()
        return decision

    async def close(self) -> None:
        """Release the connections."""
        if self._counters is not None:
            await self._counters.close()

    async def _take(self, limiter: RateLimiter, caller: str, items: Sequence[RateLimitItem]) -> Decision:
        admitted, states = True, []
        for item in items:
            admitted = await limiter.hit(item, caller)
            reset, remaining = await limiter.get_window_stats(item, caller)
            states.append(LimitState(item.amount, item.get_expiry(), max(0, remaining), max(0.0, reset - time.time())))
            if not admitted:
                break
        return Decision(tuple(states), None if admitted else states[-1])


def _items(text: str | None) -> list[RateLimitItem]:
    return [] if text in (None, UNLIMITED) else sorted(parse_many(text), key=RateLimitItem.get_expiry)


PARSING_THREADS, READ_THREADS, WRITE_THREADS = 4, 4, 4


@dataclass(frozen=True, slots=True)
class Work:
    """The threads of a process for each kind of blocking work; a retriever has its own for searches.

    parsing: large bodies of requests and answers; read: descriptions of indexes, and their documents; write: uploads,
    including the parsing of their documents, and other changes to indexes.
    """

    parsing: FairExecutor
    read: FairExecutor
    write: FairExecutor

    @classmethod
    def of(cls, share: float) -> Work:
        """share: of the threads that one caller gets, as in `Shares`."""
        return cls(
            FairExecutor("parsing", threads=PARSING_THREADS, share=share),
            FairExecutor("read", threads=READ_THREADS, share=share),
            FairExecutor("write", threads=WRITE_THREADS, share=share),
        )

    async def close(self) -> None:
        """Wait for running calls, then release the threads."""
        for executor in (self.parsing, self.read, self.write):
            await executor.close()


class Access:
    """The limits on requests to one process, from its settings."""

    def __init__(self, settings: Settings, *, behind_gateways: bool = False) -> None:
        """behind_gateways: whether its callers are gateways, which tell on whose behalf they call.

        Raises InvalidConfiguration for malformed keys, policies and rate limits.
        """
        limits = settings.limits
        self.settings = settings
        self.behind_gateways = behind_gateways
        self.keys = KeyRing(settings.keys)
        self.policies = Policies(settings, self.keys.callers)
        self.origins = Origins(settings.allowed_hosts, with_keys=bool(settings.keys))
        self.rates = RateLimits(settings.rate_limits, self.keys.callers, url=settings.counters_url)
        self.requests = Shares(limits.requests, limits.key_share, what="requests (limits.requests)")
        self.bytes_in_flight = Shares(limits.bytes_in_flight, limits.key_share, what="bytes (limits.bytes_in_flight)")
        self.admission = Admission(settings.sessions, limits.key_share)
        self.work = Work.of(limits.key_share)

    def enter(self, caller: str, until_end: ExitStack) -> None:
        """Count a request as one in progress until its end, before its body is read. Raises Overloaded if this caller,
        or all together, have too many."""
        most, own = self.settings.limits.key_requests, self.requests.held(caller)
        if most is not None and own >= most:
            raise _refused("key", f"this key has {own} requests in progress (limits.key_requests); try again later")
        try:
            until_end.enter_context(self.requests.holding(caller))(1)
        except Overloaded as error:
            raise _refused("full" if self.requests.total == self.requests.most else "share", str(error)) from None

    def charging(self, until_end: ExitStack) -> Callable[[int], None]:
        """Return what charges bytes to the present caller until the end of its request: the one place where bodies,
        texts, answers and the memory of selections are counted. It raises Overloaded or LimitExceeded."""
        return until_end.enter_context(self.bytes_in_flight.holding(CALLER.get()))

    def room(self, until_end: ExitStack) -> Room:
        """Return the room for a selection of the present caller, until the end of its request."""
        return Room(self.charging(until_end), answer=self.settings.limits.body_bytes)

    def calibration(self, wanted: CalibrationName, caller: Caller) -> CalibrationChoice:
        """Return what a caller wants, or the default of its key."""
        return CalibrationChoice(self.settings.calibration.keys.get(caller.name) if wanted is None else wanted, caller)

    async def close(self) -> None:
        """Release threads and connections."""
        await self.work.close()
        await self.rates.close()
