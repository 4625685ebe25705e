"""Limit the rates of keys over sliding windows, counted in Redis for all processes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from limits import RateLimitItem, parse_many
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import RateLimiter, SlidingWindowCounterRateLimiter

from boundarymorph.caching.redis import CONNECTIONS, CircuitBreaker, Guard, NoAnswer, make_client
from boundarymorph.errors import InvalidConfiguration, Overloaded
from boundarymorph.settings import UNLIMITED, RateLimitSettings
from boundarymorph.telemetry import metrics

log = logging.getLogger(__name__)
Result = TypeVar("Result")
PREFIX = "boundarymorph:rates"  # prefix of the keys in Redis


class SharedCounters(Guard):
    """Counters in Redis, behind a circuit breaker that pauses calls after repeated failures."""

    def __init__(self, url: str, timeout: float) -> None:
        """Prepare a client; it does not connect yet.

        Args:
            url: The address of Redis.
            timeout: Seconds to wait for an answer.

        Raises:
            InvalidConfiguration: If the URL is malformed.
        """
        redis = make_client(url, timeout, CONNECTIONS)
        pool: Any = redis.connection_pool
        self.storage = RedisStorage("redis://", connection_pool=pool, implementation="redispy", key_prefix=PREFIX)
        super().__init__(redis, timeout, asyncio.Semaphore(CONNECTIONS), self._tell, CircuitBreaker())

    async def ask(self, request: Callable[[], Coroutine[Any, Any, Result]]) -> Result | None:
        try:
            return await self.call(request)
        except NoAnswer:
            metrics.rate_limit_unshared.inc()
            return None

    async def close(self) -> None:
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
    """One limit of a caller.

    Attributes:
        quota: Requests that it allows per window.
        window: Seconds.
        remaining: Requests left in the window.
        reset: Seconds until there are more.
    """

    quota: int
    window: int
    remaining: int
    reset: float

    @property
    def name(self) -> str:  # in the headers of responses
        return f'"{self.quota}-in-{self.window}s"'


@dataclass(frozen=True, slots=True)
class Decision:
    limits: tuple[LimitState, ...] = ()
    refused: LimitState | None = None

    def check(self) -> None:
        if (limit := self.refused) is not None:
            used = f"this key has used up its {limit.quota:,} requests in {limit.window:,} s"
            raise RateLimited(f"{used}; try again later", retry_after=max(1.0, limit.reset))


class RateLimits:
    """The limits of every key. Each process counts alone while Redis does not answer in time."""

    def __init__(self, settings: RateLimitSettings, callers: Collection[str], *, url: str | None) -> None:
        """Parse the limits; it does not connect yet.

        Args:
            settings: The limits by key.
            callers: The names of all keys.
            url: The address of Redis; None counts in this process.

        Raises:
            InvalidConfiguration: For a limit of an unknown key, and for a malformed URL.
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
        """Count a request in each limit, shortest window first, until one limit refuses it."""
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
