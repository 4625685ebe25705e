"""Counters that all processes share in Redis. Each of them keeps its own too, for when Redis does not answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from limits.aio.storage import RedisStorage
from prometheus_client import Counter

from boundarymorph.caching.redis import CONNECTIONS, SCHEMES, client_options
from boundarymorph.errors import InvalidConfiguration
from boundarymorph.remote.circuit import CircuitBreaker, Guard, Unanswered

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class SharedCounters(Guard):
    """Counters in Redis, behind a circuit breaker: if Redis fails often, it is not asked for a while."""

    def __init__(self, url: str, prefix: str, timeout: float, what: str, unshared: Counter) -> None:
        """url: of Redis, in the format of cache.url; prefix: of its keys; timeout: seconds for each request; what: is
        counted, for the log; unshared: counts requests without an answer. Does not connect yet.

        Raises InvalidConfiguration for a malformed url.
        """
        self.storage = _storage(url, timeout, prefix)
        super().__init__(timeout, asyncio.Semaphore(CONNECTIONS), self._tell, CircuitBreaker())
        self._what, self._unshared = what, unshared

    async def ask(self, request: Callable[[], Awaitable[Result]]) -> Result | None:
        """Return the result of a request to the storage, or None if Redis is not asked or does not answer."""
        try:
            return await self.call(request)
        except Unanswered:
            self._unshared.inc()
            return None

    async def close(self) -> None:
        """Release the connections."""
        with suppress(Exception):  # the server may be gone
            await self.storage.bridge.get_connection().aclose()  # type: ignore[attr-defined]

    def _tell(self, error: Exception | None) -> None:
        if error is not None:
            said = "%s are counted in this process for a while, since Redis does not answer: %s"
            log.warning(said, self._what, type(error).__name__)


def _storage(url: str, timeout: float, prefix: str) -> RedisStorage:
    scheme, _, rest = url.partition("://")
    # No message quotes any part of the URL, as it may contain a password.
    if scheme not in SCHEMES:
        raise InvalidConfiguration(
            f"rate_limits.url must begin with one of {', '.join(f'{name}://' for name in SCHEMES)}"
        )
    kind = "redis+unix" if scheme == "unix" else scheme
    try:
        options = client_options(timeout, CONNECTIONS)
        return RedisStorage(f"{kind}://{rest}", implementation="redispy", key_prefix=prefix, **options)
    except Exception:
        raise InvalidConfiguration(
            f"rate_limits.url cannot be used; it should be like {scheme}://:password@host:6379"
        ) from None
