"""A cache of scores in Redis, which may be slow, full, unavailable or broken at any time; no caller waits long for it.

A value is a byte of flags, the score as float64 (little-endian) and the id of the document in UTF-8.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from boundarymorph.caching.known import DIGEST_BYTES, FIELDS, SECONDS_TO_LIVE, CachedScore, digest, kept_name
from boundarymorph.errors import InvalidConfiguration
from boundarymorph.remote.circuit import FAILURES, CircuitBreaker, Guard, State, Unanswered
from boundarymorph.telemetry import metrics

if TYPE_CHECKING:
    from redis.asyncio import Redis

Operation = Literal["read", "write"]
TIMEOUT = 0.05  # seconds of one command, connecting included
CONNECTIONS = 16
SCHEMES = ("redis", "rediss", "unix")
_SETTINGS = "the URL of Redis, cache.url or rate_limits.url,"
_TRUNCATED, _NAMED = 1, 2
_VALUE = struct.Struct("<Bd")
log = logging.getLogger(__name__)


class RedisLink:
    """Sends commands to one Redis server, each about one key.

    Reads and writes have separate circuit breakers, since a full or read-only server still answers reads.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = TIMEOUT,
        connections: int = CONNECTIONS,
        failures: int = FAILURES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """url: redis:// or rediss:// (TLS) or unix://; its query holds options of redis-py. timeout: seconds that a
        caller waits for an answer. connections: most concurrent commands. failures: see `CircuitBreaker`.

        Does not connect yet. Raises InvalidConfiguration if the url is malformed.
        """
        self._redis: Any = connected(url, timeout, connections)
        places = asyncio.Semaphore(connections)
        self._guards: dict[Operation, Guard] = {}
        for operation in ("read", "write"):
            circuit = CircuitBreaker(failures=failures, clock=clock)
            self._guards[operation] = Guard(timeout, places, partial(_tell, operation), circuit)
            metrics.cache_circuit.labels(operation).set_function(partial(self.state, operation))
        self._closed = False

    def state(self, operation: Operation) -> State:
        """Return the state of the circuit breaker of this operation."""
        return self._guards[operation].circuit.state

    async def call(self, operation: Operation, command: str, key: bytes, *arguments: bytes | int) -> Any:
        """Return Redis's answer. Raises only Unanswered."""
        if self._closed:
            raise Unanswered

        async def ask() -> Any:
            from redis.exceptions import ReadOnlyError

            with metrics.cache_seconds.labels("scores", operation).time():
                try:
                    return await self._redis.execute_command(command, key, *arguments)
                except ReadOnlyError:
                    # The primary may have changed: the same host name may lead to another server now.
                    await self._redis.connection_pool.disconnect(inuse_connections=False)
                    raise

        return await self._guards[operation].call(ask)

    async def close(self) -> None:
        """Close the connections; later calls raise Unanswered."""
        self._closed = True
        with suppress(Exception):
            await self._redis.aclose()
        for operation in self._guards:
            metrics.cache_circuit.remove(operation)


class RedisScoreCache:
    """A `ScoreCache` in Redis: one hash per query, one field per text.

    Key: boundarymorph:scores:2:hash of model and query, with any namespace before `scores`; field: the text's digest.
    """

    def __init__(
        self, link: RedisLink, *, seconds_to_live: float = SECONDS_TO_LIVE, namespace: str | None = None
    ) -> None:
        """seconds_to_live: since the first write of a query. The caller closes the link."""
        self._link, self._namespace = link, namespace
        self._milliseconds = max(1, round(1000 * seconds_to_live))

    async def recall(self, model: str, query: str) -> Mapping[bytes, CachedScore]:
        try:
            # Unlike HGETALL, HRANDFIELD bounds the size of the answer.
            answer = await self._link.call(
                "read", "HRANDFIELD", score_key(model, query, self._namespace), FIELDS, b"WITHVALUES"
            )
        except Unanswered:
            metrics.count_lookups("scores", error=1)
            return {}
        if not isinstance(answer, list) or len(answer) % 2:
            metrics.count_lookups("scores", corrupt=1)
            return {}
        recalled = {}
        for text, value in zip(answer[::2], answer[1::2], strict=True):
            score = decoded(value)
            if score is not None and isinstance(text, bytes) and len(text) == DIGEST_BYTES:
                recalled[text] = score
        metrics.count_lookups("scores", corrupt=len(answer) // 2 - len(recalled))
        return recalled

    async def read(self, model: str, query: str, text_digests: Sequence[bytes]) -> list[CachedScore | None]:
        count = len(text_digests)
        if not count:
            return []
        try:
            answer = await self._link.call("read", "HMGET", score_key(model, query, self._namespace), *text_digests)
        except Unanswered:
            metrics.count_lookups("scores", error=count)
            return [None] * count
        if not isinstance(answer, list) or len(answer) != count:
            metrics.count_lookups("scores", corrupt=count)
            return [None] * count
        found = [decoded(value) for value in answer]
        misses, hits = answer.count(None), count - found.count(None)
        metrics.count_lookups("scores", hit=hits, miss=misses, corrupt=count - hits - misses)
        return found

    async def write(self, model: str, query: str, scores: Mapping[bytes, CachedScore]) -> None:
        if not scores:
            return
        key, outcome = score_key(model, query, self._namespace), "ok"
        try:
            fields = (part for text, score in scores.items() for part in (text, encoded(score)))
            await self._link.call("write", "HSET", key, *fields)
            # A later write does not extend the lifetime of an existing key.
            left = await self._link.call("write", "PTTL", key)
            if not isinstance(left, int) or not 0 <= left <= self._milliseconds:
                await self._link.call("write", "PEXPIRE", key, self._milliseconds)
        except Unanswered:
            outcome = "error"
        metrics.cache_writes.labels("scores", outcome).inc(len(scores))


def score_key(model: str, query: str, namespace: str | None = None) -> bytes:
    """Return the key of a query's scores."""
    prefix = "boundarymorph:" if namespace is None else f"boundarymorph:{namespace}:"
    return f"{prefix}scores:2:{digest(model, query).hex()}".encode()


def encoded(cached: CachedScore) -> bytes:
    """Return the value of a score."""
    name = kept_name(cached.document)
    return _VALUE.pack(_TRUNCATED * cached.truncated | _NAMED * (name is not None), cached.score) + (name or b"")


def decoded(value: object) -> CachedScore | None:
    """Return the score of a value, or None if it is none of ours."""
    if not isinstance(value, bytes) or len(value) < _VALUE.size:
        return None
    flags, score = _VALUE.unpack_from(value)
    name = value[_VALUE.size :]
    if flags > _TRUNCATED | _NAMED or not 0 <= score <= 1 or (name and not flags & _NAMED):
        return None
    try:
        return CachedScore(score, flags & _TRUNCATED != 0, name.decode() if flags & _NAMED else None)
    except UnicodeDecodeError:
        return None


def connected(url: str, timeout: float, connections: int) -> Redis:
    """Return a client of Redis, which waits `timeout` seconds for an answer, and never tries again.

    Raises InvalidConfiguration, which quotes no part of the URL, as it may contain a password.
    """
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(f"{error.name} is missing: pip install 'redis[hiredis]>=8.1'") from None
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        raise InvalidConfiguration(f"{_SETTINGS} must begin with one of {', '.join(f'{name}://' for name in SCHEMES)}")
    try:
        return Redis.from_url(
            url,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            # Leave room for connections that are being closed: redis-py counts them too.
            max_connections=2 * connections,
        )
    except Exception:
        raise InvalidConfiguration(
            f"{_SETTINGS} cannot be used; it should be like {scheme}://:password@host:6379"
        ) from None


def _tell(operation: Operation, error: Exception | None) -> None:
    if error is None:
        log.info("Redis works again: cache %ss go on", operation)
    else:
        said = "Redis does not work: cache %ss are suspended until it does: %s %s"
        log.warning(said, operation, type(error).__name__, error)
