"""Counters that all processes share in Redis. Each of them keeps its own too, for when Redis does not answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import TypeVar

from limits.aio.storage import RedisClusterStorage, RedisStorage
from prometheus_client import Counter

from boundarymorph.caching.circuit import CircuitBreaker, State
from boundarymorph.caching.link import client_options
from boundarymorph.errors import InvalidConfiguration

CONNECTIONS = 16  # concurrent requests to Redis; waiting for one does not count as a failure of Redis
SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "unix": "redis+unix",
    "redis+cluster": "redis+cluster",
    "rediss+cluster": "redis+cluster",
}
log = logging.getLogger(__name__)
Result = TypeVar("Result")


class SharedCounters:
    """Counters in Redis, behind a circuit breaker: if Redis fails often, it is not asked for a while."""

    def __init__(self, url: str, prefix: str, timeout: float, what: str, unshared: Counter) -> None:
        """url: of Redis, in the format of cache.url; prefix: of its keys; timeout: seconds for each request; what: is
        counted, for the log; unshared: counts requests without an answer. Does not connect yet.

        Raises InvalidConfiguration for a malformed url.
        """
        self.storage = _storage(url, timeout, prefix)
        self.circuit = CircuitBreaker()
        self._timeout, self._what, self._unshared = timeout, what, unshared
        self._connections = asyncio.Semaphore(CONNECTIONS)
        self._connecting = asyncio.Lock()  # redis-py breaks connections to a cluster if several tasks open them at once
        self._connected = False

    async def ask(self, request: Callable[[], Awaitable[Result]]) -> Result | None:
        """Return the result of a request to the storage, or None if Redis is not asked or does not answer."""
        async with self._connections, nullcontext() if self._connected else self._connecting:
            answer = await self._ask(request)
        if answer is None:
            self._unshared.inc()
        return answer

    async def close(self) -> None:
        """Release the connections."""
        with suppress(Exception):  # the server may be gone
            await self.storage.bridge.get_connection().aclose()  # type: ignore[attr-defined]

    async def _ask(self, request: Callable[[], Awaitable[Result]]) -> Result | None:
        ticket = self.circuit.admit()
        if ticket is None:
            return None
        try:
            async with asyncio.timeout(self._timeout):
                answer = await request()
        except asyncio.CancelledError:
            self.circuit.abandoned(ticket)
            raise
        except Exception as error:  # redis-py fails in many ways on a malformed reply
            before = self.circuit.state
            self.circuit.failed(ticket)
            if before is State.CLOSED and self.circuit.state is not State.CLOSED:
                said = "%s are counted in this process for a while, since Redis does not answer: %s"
                log.warning(said, self._what, type(error).__name__)
            return None
        self.circuit.succeeded(ticket)
        self._connected = True
        return answer


def _storage(url: str, timeout: float, prefix: str) -> RedisStorage:
    scheme, _, rest = url.partition("://")
    # No message quotes any part of the URL, as it may contain a password.
    if scheme not in SCHEMES:
        raise InvalidConfiguration(
            f"rate_limits.url must begin with one of {', '.join(f'{name}://' for name in SCHEMES)}"
        )
    kind = RedisClusterStorage if scheme.endswith("+cluster") else RedisStorage
    options = client_options(timeout, CONNECTIONS) | ({"ssl": True} if scheme == "rediss+cluster" else {})
    try:
        return kind(f"{SCHEMES[scheme]}://{rest}", implementation="redispy", key_prefix=prefix, **options)
    except Exception:
        raise InvalidConfiguration(
            f"rate_limits.url cannot be used; it should be like {scheme}://:password@host:6379"
        ) from None
