"""Callers who begin a request of any kind, read some bytes, stop reading, leave and come again, drawn from a seed; and
what must be free when all have left. `make soak NAME=leavers` has more of them."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import httpx
import orjson

from tests.agents import rpc
from tests.caching.servers import RedisServer
from tests.fakes.upstream import in_a_thread, slow
from tests.fakes.wires import Ours, Server
from tests.faults.scenario import Role, completes, fill, gateway, new_query, selection
from tests.patience import PATIENCE, until
from tests.ports import free_port
from tests.stateful.profile import times
from tests.system.service import Service, retriever

CONNECTIONS = 8  # to the scorer: few, so that one that is kept is missed
AT_A_TIME = 12  # callers
LATENCY = 0.01  # seconds that the scorer takes
IDLE = 3  # connections that probes and this test's own client may have open
STREAM, JSON, LINES = "text/event-stream", "application/json", "application/x-ndjson"
SETTINGS = """
event_seconds = 1.0
head_seconds = 2.0
body_pause_seconds = 2.0
[scorer]
connections = {connections}
[cache]
url = "{redis}"
timeout_seconds = 0.5
"""


@dataclass
class Held:
    """What a process has open. callers, peers: connections, by the port of the other side for the latter."""

    descriptors: int
    threads: int
    callers: int
    peers: Counter[int] = field(default_factory=Counter)

    @property
    def others(self) -> int:
        """Descriptors that are no connections."""
        return self.descriptors - self.callers - self.peers.total()


def held(service: Service) -> Held:
    folder = Path(f"/proc/{service.process.pid}")
    links = [os.readlink(link) for link in _links(folder / "fd")]
    inodes = {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:")}
    callers, peers = 0, Counter[int]()
    for line in (folder / "net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        if inode in inodes and state != "0A":  # 0A: it listens
            if int(local.partition(":")[2], 16) == service.port:
                callers += 1
            else:
                peers[int(remote.partition(":")[2], 16)] += 1
    return Held(len(links), len(list((folder / "task").iterdir())), callers, peers)


def _links(folder: Path) -> Iterator[Path]:
    for link in folder.iterdir():
        with suppress(FileNotFoundError):
            os.readlink(link)
            yield link


def request(method: str, path: str, body: bytes = b"", *, accept: str = JSON, content: str = JSON) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {accept}\r\nContent-Type: {content}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def kinds() -> dict[str, bytes]:
    """One request of each kind, with a query of its own."""
    query, texts = new_query(), [f"text {number} of {new_query()}" for number in range(60)]
    pool = {"query": query, "pool": texts, "budget": 10, "k": 5, "rounds": 10}
    large = {"query": query, "pool": ["long " * 20_000 for _ in range(40)], "budget": 0, "return_documents": True}
    lines = b"".join(orjson.dumps({"id": f"new-{n}", "text": f"{n} {query}"}) + b"\n" for n in range(300))
    tool = rpc.request("select_documents", query=query, index="tales", k=5)
    dumps = orjson.dumps
    return {
        "stream": request("POST", "/select", dumps(selection(query, rounds=10)), accept=STREAM),
        "stream of a pool": request("POST", "/select", dumps(pool), accept=STREAM),
        "selection": request("POST", "/select", dumps(selection(query))),
        "large answer": request("POST", "/select", dumps(large)),
        "rerank": request("POST", "/v2/rerank", dumps({"query": query, "documents": texts, "model": "m"})),
        "tool": request("POST", "/mcp", dumps(tool), accept=f"{JSON}, {STREAM}"),
        "upload": request("POST", "/indexes/own/documents", lines, content=LINES),
        "upload with progress": request("POST", "/indexes/own/documents", lines, content=LINES, accept=LINES),
        "indexes": request("GET", "/indexes"),
        "metrics": request("GET", "/metrics"),
    }


class Caller:
    """A connection with a request on it. reads: whether it still reads."""

    def __init__(self, port: int, sent: bytes) -> None:
        self.reads = True
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self._socket.settimeout(PATIENCE)
        self._socket.connect(("127.0.0.1", port))
        with suppress(ConnectionError):
            self._socket.sendall(sent)

    def read(self, most: int, seconds: float) -> None:
        self._socket.settimeout(seconds)
        with suppress(ConnectionError, TimeoutError):
            self._socket.recv(most)

    def leave(self, how: str) -> None:
        """how: "closes", "resets" the connection, or "ends" what it sends first."""
        with suppress(OSError):
            if how == "resets":
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if how == "ends":
                self._socket.shutdown(socket.SHUT_WR)
        self._socket.close()


class Leavers:
    """The callers of a gateway. moves: how often each was made."""

    def __init__(self, front: Service, indexes: Service, scorer: Server, redis: RedisServer, seed: int) -> None:
        # Without idle connections, which the gateway may close just as they are used again.
        client = httpx.Client(base_url=front.url, timeout=PATIENCE, limits=httpx.Limits(max_keepalive_connections=0))
        self.front, self.indexes, self.scorer, self.redis = replace(front, client=client), indexes, scorer, redis
        self.moves = Counter[str]()
        self._chance = random.Random(seed)
        self._callers: list[Caller] = []
        for sent in kinds().values():  # what is made at first use is no leak
            Caller(front.port, sent).leave("closes")
        self.come_again()
        until(lambda: held(self.front).callers <= IDLE)
        self.first = held(self.front)

    def move(self) -> None:
        """Make one move of one caller."""
        chance = self._chance
        moves: list[Callable[[], None]] = [self._begin] if len(self._callers) < AT_A_TIME else []
        if self._callers:
            moves += [self._read, self._read, self._leave, self._stop]
        chance.choice(moves)()

    def _begin(self) -> None:
        kind, sent = self._chance.choice(list(kinds().items()))
        if self._chance.random() < 0.25:
            kind, sent = f"part of {kind}", sent[: self._chance.randrange(len(sent))]
        self.moves[f"begin {kind}"] += 1
        self._callers.append(Caller(self.front.port, sent))

    def _read(self) -> None:
        caller = self._chance.choice(self._callers)
        if caller.reads:
            self.moves["read"] += 1
            caller.read(self._chance.choice((1, 100, 4_000, 100_000)), self._chance.choice((0.001, 0.02, 0.1)))

    def _stop(self) -> None:
        self.moves["stop reading"] += 1
        self._chance.choice(self._callers).reads = False

    def _leave(self) -> None:
        self.moves["leave"] += 1
        caller = self._callers.pop(self._chance.randrange(len(self._callers)))
        caller.leave(self._chance.choice(("closes", "resets", "ends")))

    def all_leave(self) -> None:
        while self._callers:
            self._leave()

    def come_again(self) -> None:
        """More requests at a time than there are connections are answered as if nobody had left: at once or, where the
        machine is so busy that a connection takes too long, soon."""
        self.moves["come again"] += 1
        with ThreadPoolExecutor(2 * CONNECTIONS) as threads:
            until(lambda: all(threads.map(lambda _: completes(self.front), range(3 * CONNECTIONS))))
        lines = b'{"id": "new", "text": "again"}\n'
        uploaded = self.front.client.post("/indexes/own/documents", content=lines, headers={"content-type": LINES})
        assert uploaded.is_success, uploaded.text

    def all_is_free(self) -> Held:
        """Fails if something that only those who left have used does not become free. Returns what the gateway has."""
        front = self.front
        for gauge in ("running", "waiting"):
            until(partial(lambda gauge: front.metric(f"boundarymorph_select_{gauge}") == 0, gauge))
        bounds: dict[str, Callable[[Held], bool]] = {
            "callers' connections": lambda now: now.callers <= IDLE,
            "connections to the scorer": lambda now: now.peers[self.scorer.port] <= IDLE,
            "connections to the retriever": lambda now: now.peers[self.indexes.port] <= IDLE,
            "connections to Redis": lambda now: now.peers[self.redis.port] <= 32,
            "other descriptors": lambda now: now.others <= self.first.others + IDLE,
        }
        for what, holds in bounds.items():
            with _named(what, lambda: held(front)):
                until(partial(lambda holds: holds(held(front)), holds), PATIENCE / 10)
        with _named("the gateway's connections at the retriever", lambda: held(self.indexes)):
            until(lambda: held(self.indexes).callers <= IDLE, PATIENCE / 10)
        assert "Traceback" not in front.log, front.log[-4_000:]
        return held(front)


@contextmanager
def _named(what: str, now: Callable[[], Held]) -> Iterator[None]:
    try:
        yield
    except AssertionError:
        raise AssertionError(f"{what} are not free again: {now()}") from None


@contextmanager
def running(folder: Path, seed: int) -> Iterator[Leavers]:
    """A gateway with a retriever, a scorer and a Redis of its own, and nobody there yet."""
    redis = RedisServer(folder / "redis")
    port = free_port()
    indexes = Role(lambda ready: retriever(folder / "data", port=port, ready=ready))
    try:
        with in_a_thread(Server(Ours())) as scorer:
            fill(indexes.service)
            indexes.service.fill("own", [{"id": "first", "text": "first"}], encoder="none")
            scorer.behaviour = slow(LATENCY)
            options = ("--retriever-url", indexes.service.url, "--scorer-url", scorer.endpoint().base)
            settings = SETTINGS.format(connections=CONNECTIONS, redis=redis.url)
            front = gateway(folder / "front", settings, *options)
            try:
                yield Leavers(front.service, indexes.service, scorer, redis, seed)
            finally:
                front.kill()
    finally:
        indexes.kill()
        redis.kill()


def test_leave_nothing_behind(tmp_path: Path) -> None:
    seed = times(23, random.SystemRandom().randrange(2**32))
    print(f"seed {seed}")
    with running(tmp_path, seed) as leavers:
        threads: list[int] = []
        for _ in range(times(1, 300)):
            for _ in range(200):
                leavers.move()
            leavers.all_leave()
            threads.append(leavers.all_is_free().threads)
            leavers.come_again()
        assert threads[-1] <= max(threads[: len(threads) // 2 + 1]), threads
