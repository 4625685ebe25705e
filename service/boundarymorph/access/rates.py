"""Rate limits of keys, counted in Redis for all processes together, else in this process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from limits import RateLimitItem, parse_many
from limits.aio.storage import MemoryStorage, RedisClusterStorage, RedisStorage
from limits.aio.strategies import RateLimiter, SlidingWindowCounterRateLimiter

from boundarymorph.caching.circuit import CircuitBreaker, State
from boundarymorph.errors import InvalidConfiguration, Overloaded
from boundarymorph.settings import UNLIMITED, RateLimitSettings
from boundarymorph.telemetry import metrics

PREFIX = "boundarymorph:rates"
CONNECTIONS = 16  # concurrent requests to Redis; waiting for one does not count as a failure of Redis
SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "unix": "redis+unix",
    "redis+cluster": "redis+cluster",
    "rediss+cluster": "redis+cluster",
}
log = logging.getLogger(__name__)


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

    def __init__(
        self,
        settings: RateLimitSettings,
        callers: Collection[str],
        *,
        url: str | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """callers: the names of all keys. url: of Redis, in the format of cache.url; None counts in this process.

        Does not connect yet. Raises InvalidConfiguration for a limit of an unknown key, and for a malformed url.
        """
        if unknown := sorted(set(settings.keys) - set(callers)):
            raise InvalidConfiguration(f"rate_limits.keys: there is no key named {unknown[0]!r}")
        self._default = _items(settings.default)
        self._of_key = {name: _items(text) for name, text in settings.keys.items()}
        self._timeout = settings.timeout_seconds
        self._clock = clock
        self._own = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._connections = asyncio.Semaphore(CONNECTIONS)
        self._circuit = CircuitBreaker()
        self._connecting = asyncio.Lock()  # redis-py breaks connections to a cluster if several tasks open them at once
        self._connected = False
        limited = any((self._default, *self._of_key.values()))
        self._storage = storage_of(url, settings.timeout_seconds, PREFIX) if limited and url is not None else None
        self._shared = None if self._storage is None else SlidingWindowCounterRateLimiter(self._storage)

    async def take(self, caller: str) -> Decision:
        """Count one request in every limit, the shortest window first, up to the one that refuses it."""
        items = self._of_key.get(caller, self._default)
        if not items:
            return Decision()
        decision = await self._take_shared(caller, items)
        if decision is None:
            decision = await self._take(self._own, caller, items)
        metrics.rate_limited.labels(caller, "admitted" if decision.refused is None else "refused").inc()
        return decision

    async def close(self) -> None:
        """Release the connections."""
        if self._storage is not None:
            with suppress(Exception):  # the server may be gone
                await self._storage.bridge.get_connection().aclose()  # type: ignore[attr-defined]

    async def _take_shared(self, caller: str, items: Sequence[RateLimitItem]) -> Decision | None:
        """Return None if Redis is not asked or does not answer."""
        if self._shared is None:
            return None
        async with self._connections, nullcontext() if self._connected else self._connecting:
            decision = await self._ask(self._shared, caller, items)
        if decision is None:
            metrics.rate_limit_unshared.inc()
        return decision

    async def _ask(self, shared: RateLimiter, caller: str, items: Sequence[RateLimitItem]) -> Decision | None:
        ticket = self._circuit.admit()
        if ticket is None:
            return None
        try:
            async with asyncio.timeout(self._timeout):
                decision = await self._take(shared, caller, items)
        except asyncio.CancelledError:
            self._circuit.abandoned(ticket)
            raise
        except Exception as error:  # redis-py fails in many ways on a malformed reply
            self._note_failure(ticket, error)
            return None
        self._circuit.succeeded(ticket)
        self._connected = True
        return decision

    async def _take(self, limiter: RateLimiter, caller: str, items: Sequence[RateLimitItem]) -> Decision:
        admitted, states = True, []
        for item in items:
            admitted = await limiter.hit(item, caller)
            reset, remaining = await limiter.get_window_stats(item, caller)
            states.append(
                LimitState(item.amount, item.get_expiry(), max(0, remaining), max(0.0, reset - self._clock()))
            )
            if not admitted:
                break
        return Decision(tuple(states), None if admitted else states[-1])

    def _note_failure(self, ticket: int, error: Exception) -> None:
        before = self._circuit.state
        self._circuit.failed(ticket)
        if before is State.CLOSED and self._circuit.state is not State.CLOSED:
            log.warning(
                "rate limits are counted in this process for a while, since Redis does not answer: %s",
                type(error).__name__,
            )


def _items(text: str | None) -> list[RateLimitItem]:
    return [] if text in (None, UNLIMITED) else sorted(parse_many(text), key=RateLimitItem.get_expiry)


def storage_of(url: str, timeout: float, prefix: str) -> RedisStorage:
    """Return counters in Redis under a prefix, not connected yet. timeout: seconds for each command.

    Raises InvalidConfiguration for a malformed url.
    """
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    scheme, _, rest = url.partition("://")
    # No message quotes any part of the URL, as it may contain a password.
    if scheme not in SCHEMES:
        raise InvalidConfiguration(
            f"rate_limits.url must begin with one of {', '.join(f'{name}://' for name in SCHEMES)}"
        )
    kind = RedisClusterStorage if scheme.endswith("+cluster") else RedisStorage
    options: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "max_connections": 2 * CONNECTIONS,
        **({"ssl": True} if scheme == "rediss+cluster" else {}),
    }
    try:
        return kind(f"{SCHEMES[scheme]}://{rest}", implementation="redispy", key_prefix=prefix, **options)
    except Exception:
        raise InvalidConfiguration(
            f"rate_limits.url cannot be used; it should be like {scheme}://:password@host:6379"
        ) from None
