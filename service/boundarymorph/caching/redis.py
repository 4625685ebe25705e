"""Cache scores in Redis, which may be slow, full, unavailable or broken at any time.

No caller waits long for it. A value is a byte of flags, the score as float64 (little-endian) and the id of the document
in UTF-8.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from boundarymorph.caching.scores import DIGEST_BYTES, FIELDS, SECONDS_TO_LIVE, CachedScore, digest, kept_name
from boundarymorph.errors import InvalidConfiguration
from boundarymorph.inference.concurrency import cancel_once
from boundarymorph.telemetry import metrics

if TYPE_CHECKING:
    from redis.asyncio import Redis

Operation = Literal["read", "write"]
Result = TypeVar("Result")
FAILURES = 5  # in a row
PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds
TIMEOUT = 0.05  # seconds of one command, including the time to connect
CONNECTIONS = 16
_SETTINGS = "the URL of Redis, cache.url or rate_limits.url,"
_TRUNCATED, _NAMED = 1, 2
_VALUE = struct.Struct("<Bd")
log = logging.getLogger(__name__)


class State(IntEnum):
    """The state of a circuit: CLOSED passes all calls, HALF_OPEN one trial call, OPEN none."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class CircuitBreaker:
    """Opens after `failures` in a row, and after growing pauses tries one call.

    Concurrent failures count once.
    """

    def __init__(self, *, failures: int = FAILURES, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowed, self._clock = failures, clock
        self._failures = 0
        self._pause = PAUSE
        self._until: float | None = None  # None while closed
        self._trying = False
        self._turn = 0  # grows with every failure and trial, so that calls from before do not count again

    @property
    def state(self) -> State:
        if self._until is None:
            return State.CLOSED
        return State.HALF_OPEN if self._trying or self._clock() >= self._until else State.OPEN

    def admit(self) -> int | None:
        """Return a ticket for one call, or None if the call is refused.

        Pass the ticket once to `succeeded`, `failed` or `abandoned`.
        """
        if self._until is not None:
            if self._trying or self._clock() < self._until:
                return None
            self._trying = True
            self._turn += 1
        return self._turn

    def succeeded(self, ticket: int) -> None:
        if self._until is not None:
            if ticket != self._turn:
                return
            self._until, self._trying, self._pause = None, False, PAUSE
        self._failures = 0

    def failed(self, ticket: int) -> None:
        if ticket != self._turn:
            return
        self._turn += 1
        self._failures += 1
        if self._trying:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        elif self._failures < self._allowed:
            return
        self._until, self._trying = self._clock() + self._pause, False

    def abandoned(self, ticket: int) -> None:
        """Note that the caller gave up before an answer, so that the next call may try."""
        if ticket == self._turn:
            self._trying = False


class NoAnswer(Exception):
    """The server did not answer, returned an error, or was not called."""


class Guard:
    """Calls Redis behind a circuit breaker.

    Attributes:
        redis: The client; its idle connections are closed after an error.
        timeout: Seconds to wait for an answer, and before that for one of the `places`.
        on_change: Called with the error when the circuit opens, and with None when it closes again.
    """

    def __init__(
        self,
        redis: Redis,
        timeout: float,
        places: asyncio.Semaphore,
        on_change: Callable[[Exception | None], None],
        circuit: CircuitBreaker,
    ) -> None:
        self._redis, self._timeout, self._places, self._on_change = redis, timeout, places, on_change
        self.circuit = circuit

    async def call(self, request: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return the answer. Raises only NoAnswer, whatever the request raises."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._places.acquire()
        except TimeoutError as late:
            raise NoAnswer from late
        try:
            return await self._call(request)
        finally:
            self._places.release()

    async def _call(self, request: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        ticket, before = self.circuit.admit(), self.circuit.state
        if ticket is None:
            raise NoAnswer
        try:
            async with asyncio.timeout(self._timeout):
                answer = await cancel_once(request())
        except asyncio.CancelledError:
            self.circuit.abandoned(ticket)
            raise
        except Exception as error:  # redis-py raises many types on a malformed reply
            self.circuit.failed(ticket)
            if before is State.CLOSED and self.circuit.state is not State.CLOSED:
                self._on_change(error)
            await self._reconnect(error)
            raise NoAnswer from error
        before = self.circuit.state
        self.circuit.succeeded(ticket)
        if before is not State.CLOSED and self.circuit.state is State.CLOSED:
            self._on_change(None)
        return answer

    async def _reconnect(self, error: Exception) -> None:
        """Close the idle connections after an error answer such as READONLY, LOADING or CLUSTERDOWN.

        The same address may lead to another server now. Errors of a script count as well.
        """
        from redis.exceptions import BusyLoadingError, ResponseError

        if isinstance(error, ResponseError | BusyLoadingError):
            with suppress(Exception):
                async with asyncio.timeout(self._timeout):
                    await self._redis.connection_pool.disconnect(inuse_connections=False)


class RedisLink:
    """Sends commands about single keys to one Redis server.

    Reads and writes have separate circuit breakers, because a full or read-only server still answers reads.
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
        """Prepare a client; it does not connect yet.

        Args:
            url: An address redis://, rediss:// (TLS) or unix://; its query holds options of `redis-py`.
            timeout: Seconds to wait for an answer.
            connections: Most connections.
            failures: Failures in a row that open a circuit.
            clock: The clock of the circuit breakers, in seconds.

        Raises:
            InvalidConfiguration: If the URL is malformed.
        """
        self._redis: Any = make_client(url, timeout, connections)
        places = asyncio.Semaphore(connections)
        self._guards: dict[Operation, Guard] = {}
        for operation in ("read", "write"):
            circuit = CircuitBreaker(failures=failures, clock=clock)
            self._guards[operation] = Guard(self._redis, timeout, places, partial(_tell, operation), circuit)
            metrics.cache_circuit.labels(operation).set_function(partial(self.state, operation))
        self._closed = False

    def state(self, operation: Operation) -> State:
        return self._guards[operation].circuit.state

    async def call(self, operation: Operation, command: str, key: bytes, *arguments: bytes | int) -> Any:
        """Return Redis's answer. Raises only NoAnswer."""
        if self._closed:
            raise NoAnswer

        async def ask() -> Any:
            with metrics.cache_seconds.labels("scores", operation).time():
                return await self._redis.execute_command(command, key, *arguments)

        return await self._guards[operation].call(ask)

    async def close(self) -> None:
        self._closed = True
        with suppress(Exception):
            await self._redis.aclose()
        for operation in self._guards:
            metrics.cache_circuit.remove(operation)


class RedisScoreCache:
    """A `ScoreCache` in Redis: one hash per query (`score_key`), one field per text, its digest."""

    def __init__(
        self, link: RedisLink, *, seconds_to_live: float = SECONDS_TO_LIVE, namespace: str | None = None
    ) -> None:
        """Use a link, which the caller closes.

        Args:
            link: The connection to Redis.
            seconds_to_live: Lifetime of a query's scores since its first write.
            namespace: Part of the keys; separates services.
        """
        self._link, self._namespace = link, namespace
        self._milliseconds = max(1, round(1000 * seconds_to_live))

    async def look_up(self, model: str, query: str) -> Mapping[bytes, CachedScore]:
        try:
            # Unlike HGETALL, HRANDFIELD bounds the size of the answer.
            key = score_key(model, query, self._namespace)
            answer = await self._link.call("read", "HRANDFIELD", key, FIELDS, b"WITHVALUES")
        except NoAnswer:
            metrics.count_lookups("scores", error=1)
            return {}
        if not isinstance(answer, list) or len(answer) % 2:
            metrics.count_lookups("scores", corrupt=1)
            return {}
        found = {}
        for text, value in zip(answer[::2], answer[1::2], strict=True):
            score = decoded(value)
            if score is not None and isinstance(text, bytes) and len(text) == DIGEST_BYTES:
                found[text] = score
        metrics.count_lookups("scores", corrupt=len(answer) // 2 - len(found))
        return found

    async def read(self, model: str, query: str, text_digests: Sequence[bytes]) -> list[CachedScore | None]:
        count = len(text_digests)
        if not count:
            return []
        try:
            answer = await self._link.call("read", "HMGET", score_key(model, query, self._namespace), *text_digests)
        except NoAnswer:
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
        except NoAnswer:
            outcome = "error"
        metrics.cache_writes.labels("scores", outcome).inc(len(scores))


def score_key(model: str, query: str, namespace: str | None = None) -> bytes:
    prefix = "boundarymorph:" if namespace is None else f"boundarymorph:{namespace}:"
    return f"{prefix}scores:2:{digest(model, query).hex()}".encode()


def encoded(cached: CachedScore) -> bytes:
    name = kept_name(cached.document)
    return _VALUE.pack(_TRUNCATED * cached.truncated | _NAMED * (name is not None), cached.score) + (name or b"")


def decoded(value: object) -> CachedScore | None:
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


def make_client(url: str, timeout: float, connections: int) -> Redis:
    """Return a client of Redis that waits `timeout` seconds and never tries again.

    Raises:
        InvalidConfiguration: If the URL is malformed. The message has no part of it, as it may contain a password.
    """
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(f"{error.name} is missing: pip install 'redis[hiredis]>=8.1'") from None
    try:
        if not url.startswith(("redis://", "rediss://", "unix://")):  # redis-py takes others for a server here
            raise ValueError
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
        usual = "it should be like redis://:password@host:6379, or begin with rediss:// or unix://"
        raise InvalidConfiguration(f"{_SETTINGS} cannot be used; {usual}") from None


def _tell(operation: Operation, error: Exception | None) -> None:
    if error is None:
        log.info("Redis works again: cache %ss go on", operation)
    else:
        said = "Redis does not work: cache %ss are suspended until it does: %s %s"
        log.warning(said, operation, type(error).__name__, error)
