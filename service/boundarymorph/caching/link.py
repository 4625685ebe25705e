"""The connection to Redis. Redis may be slow, full, unavailable or broken at any time; no caller waits long for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from boundarymorph.caching.circuit import CircuitBreaker, State
from boundarymorph.errors import InvalidConfiguration
from boundarymorph.remote.together import owned
from boundarymorph.telemetry import metrics
from boundarymorph.telemetry.metrics import Cache

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.cluster import RedisCluster

Operation = Literal["read", "write"]
OPERATIONS: tuple[Operation, ...] = ("read", "write")
TIMEOUT = 0.05  # seconds of one command, connecting included
CONNECTIONS = 16
TOLERANCE = 0.2  # fraction of the timeout; a timeout after much less or more time is due to the load here
_SINGLE = ("redis", "rediss", "unix")
_CLUSTER = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
_WHOLE = ""  # place of a single server, and of a cluster's keys while its nodes are unknown
log = logging.getLogger(__name__)


class Unanswered(Exception):
    """Redis did not answer, returned an error, or was not called."""


class ForeignKey(Exception):
    """The key holds a value of another type than ours."""


class RedisLink:
    """Sends commands to one Redis server or to a Redis Cluster, each about one key.

    Reads and writes have separate circuit breakers, since a full or read-only server still answers reads; so do the
    nodes of a cluster.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = TIMEOUT,
        connections: int = CONNECTIONS,
        failures: int = 5,
        pause: float = 1.0,
        longest_pause: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """url: redis:// or rediss:// (TLS) or unix://, redis+cluster:// or rediss+cluster:// with one or more nodes
        separated by commas; its query holds options of redis-py. timeout: longest wait of a caller, in seconds.
        connections: most concurrent commands. failures, pause, longest_pause: see `CircuitBreaker`.

        Does not connect yet. Raises InvalidConfiguration if the url is malformed.
        """
        self._timeout = timeout
        self._slots = asyncio.Semaphore(connections)
        self._circuit: Callable[[], CircuitBreaker] = lambda: CircuitBreaker(
            failures=failures, pause=pause, longest_pause=longest_pause, clock=clock
        )
        self._circuits: dict[tuple[Operation, str], CircuitBreaker] = {}
        self._cluster: RedisCluster | None = None
        self._server: Redis | None = None
        self._stale = True  # whether the nodes of the cluster must be looked up
        self._finding: asyncio.Task[RedisCluster] | None = None
        self._closed = False
        self._open(url, connections)
        for operation in OPERATIONS:
            metrics.cache_circuit.labels(operation).set_function(partial(self.state, operation))

    def state(self, operation: Operation) -> State:
        """Return the worst state among the circuit breakers of this operation."""
        circuits = list(self._circuits.items())
        return max((circuit.state for (of, _), circuit in circuits if of == operation), default=State.CLOSED)

    async def call(self, cache: Cache, operation: Operation, command: str, key: bytes, *arguments: bytes | int) -> Any:
        """Return Redis's answer. Raises only Unanswered or ForeignKey."""
        if self._closed:
            raise Unanswered
        place = self._place(key)
        circuit = self._circuits.get((operation, place))
        if circuit is None:
            circuit = self._circuits[operation, place] = self._circuit()
        ticket = circuit.admit()
        if ticket is None:
            raise Unanswered
        loop = asyncio.get_running_loop()
        started = loop.time()
        asked: float | None = None
        try:
            async with asyncio.timeout(self._timeout), self._slots:
                asked = loop.time()
                answer = await owned(self._ask(command, key, *arguments))
            self._note_success(circuit, ticket, operation, place)
            return answer
        except asyncio.CancelledError:
            circuit.abandoned(ticket)
            raise
        except ForeignKey:
            self._note_success(circuit, ticket, operation, place)
            raise
        except Exception as error:  # redis-py raises many types on a malformed reply
            if asked is None or (isinstance(error, TimeoutError) and not self._is_its_fault(loop.time() - asked)):
                circuit.abandoned(ticket)
            else:
                self._stale = True
                self._note_failure(circuit, ticket, operation, place, error)
            raise Unanswered from error
        finally:
            metrics.cache_seconds.labels(cache, operation).observe(loop.time() - started)

    async def close(self) -> None:
        """Close the connections; later calls raise Unanswered."""
        self._closed = True
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)
        for client in (self._server, self._cluster):
            if client is not None:
                with suppress(Exception):
                    await client.aclose()
        for operation in OPERATIONS:
            metrics.cache_circuit.remove(operation)

    def _is_its_fault(self, seconds: float) -> bool:
        """Whether a timeout after this time is the server's fault, not that of the queue or the load here."""
        return abs(seconds - self._timeout) <= TOLERANCE * self._timeout

    async def _ask(self, command: str, key: bytes, *arguments: bytes | int) -> Any:
        from redis.exceptions import ReadOnlyError, ResponseError

        client: Redis | RedisCluster
        if self._cluster is not None:
            await self._find_nodes(self._cluster)
            client = self._cluster
        else:
            assert self._server is not None
            client = self._server
        try:
            return await client.execute_command(command, key, *arguments)
        except ReadOnlyError:
            if self._server is not None:
                # The primary may have changed: the same host name may lead to another server now.
                await self._server.connection_pool.disconnect(inuse_connections=False)
            raise
        except ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                raise ForeignKey from error
            raise

    async def _find_nodes(self, cluster: RedisCluster) -> None:
        """Look up which node has which keys. The lookup goes on even if its callers are cancelled."""
        if not self._stale:
            return
        if self._finding is None:
            self._finding = asyncio.create_task(_initialized(cluster))
            self._finding.add_done_callback(self._found_nodes)
        finding = self._finding
        await asyncio.wait({finding})
        if finding.cancelled():
            raise Unanswered
        finding.result()

    def _found_nodes(self, finding: asyncio.Task[RedisCluster]) -> None:
        self._finding = None
        if finding.cancelled() or finding.exception() is not None or self._cluster is None:
            return
        self._stale = False
        known = {node.name for node in self._cluster.get_nodes()}
        self._circuits = {place: circuit for place, circuit in self._circuits.items() if place[1] in known}

    def _place(self, key: bytes) -> str:
        """Return the name of the node that holds a key."""
        if self._cluster is None:
            return _WHOLE
        with suppress(Exception):  # redis-py raises many types if it does not know the node
            node = self._cluster.get_node_from_key(key.decode("ascii"))
            if node is not None:
                return node.name
        return _WHOLE

    def _note_success(self, circuit: CircuitBreaker, ticket: int, operation: Operation, place: str) -> None:
        before = circuit.state
        circuit.succeeded(ticket)
        if before is not State.CLOSED and circuit.state is State.CLOSED:
            log.info("Redis works again: cache %ss%s go on", operation, f" at {place}" if place else "")

    def _note_failure(
        self, circuit: CircuitBreaker, ticket: int, operation: Operation, place: str, error: Exception
    ) -> None:
        before = circuit.state
        circuit.failed(ticket)
        if before is State.CLOSED and circuit.state is not State.CLOSED:
            log.warning(
                "Redis does not work: cache %ss%s are suspended until it does: %s %s",
                operation,
                f" at {place}" if place else "",
                type(error).__name__,
                error,
            )

    def _open(self, url: str, connections: int) -> None:
        try:
            from redis.asyncio import Redis
            from redis.asyncio.cluster import ClusterNode, RedisCluster
            from redis.asyncio.connection import parse_url
        except ModuleNotFoundError as error:
            raise InvalidConfiguration(f"{error.name} is missing: pip install 'redis[hiredis]>=8.1'") from None

        options = client_options(self._timeout, connections)
        # No message quotes any part of the URL, since it may contain a password.
        scheme = url.partition("://")[0]
        if scheme not in (*_SINGLE, *_CLUSTER):
            known = ", ".join(f"{name}://" for name in (*_SINGLE, *_CLUSTER))
            raise InvalidConfiguration(f"the URL of a cache must begin with one of {known}")
        try:
            if scheme in _SINGLE:
                self._server = Redis.from_url(url, **options)
                return
            nodes = []
            for node in _nodes(url):
                parsed: dict[str, Any] = dict(parse_url(node))
                nodes.append(ClusterNode(parsed.pop("host", "localhost"), parsed.pop("port", 6379)))
                if parsed.pop("db", 0):
                    raise InvalidConfiguration("a Redis Cluster has only database 0; leave the number out of the URL")
            if scheme == "rediss+cluster":
                parsed.pop("connection_class", None)
                parsed["ssl"] = True
            self._cluster = RedisCluster(startup_nodes=nodes, require_full_coverage=False, **{**options, **parsed})
        except InvalidConfiguration:
            raise
        except Exception:
            raise InvalidConfiguration(
                f"the URL of the cache cannot be used; it should be like {scheme}://:password@host:6379"
            ) from None


def client_options(timeout: float, connections: int) -> dict[str, Any]:
    """Return the options of a client of Redis: it waits `timeout` seconds for an answer, and never tries again."""
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        # Leave room for connections that are being closed: redis-py counts them too.
        "max_connections": 2 * connections,
    }


async def _initialized(cluster: RedisCluster) -> RedisCluster:
    """Return the cluster with its nodes known, as far as any can be reached."""
    from redis.exceptions import ConnectionError, TimeoutError

    turned = 0
    while True:
        try:
            return await cluster.initialize()
        except (ConnectionError, TimeoutError):
            # redis-py asks the first primary for the list of commands; rotate, or it would always ask the same one.
            primaries = cluster.get_primaries()
            if turned >= len(primaries):
                raise
            cluster.nodes_manager.move_node_to_end_of_cached_nodes(primaries[0].name)
            turned += 1


def _nodes(url: str) -> list[str]:
    """Return the URLs of a cluster's nodes."""
    parts = urlsplit(url)
    scheme = _CLUSTER[parts.scheme]
    user, at, hosts = parts.netloc.rpartition("@")
    rest = parts.path + (f"?{parts.query}" if parts.query else "")
    return [f"{scheme}://{user}{at}{host}{rest}" for host in hosts.split(",")]
