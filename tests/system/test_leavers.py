"""Test that callers that leave during an answer leak no resources.

The callers are drawn from a seed. `make soak NAME=leavers` has more of them.
"""

import random
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import orjson

from tests.agents import rpc
from tests.fakes.upstream import in_a_thread, slow
from tests.fakes.wires import Ours, Server
from tests.faults.scenario import completes, descriptors, fill, new_query, selection
from tests.patience import PATIENCE, until
from tests.stateful.profile import times
from tests.system.service import Service, retriever, service

CONNECTIONS = 8  # to the scorer, so few that a leaked one is noticed
SPARE = 9  # descriptors that idle connections may use
STREAM, JSON, LINES = "text/event-stream", "application/json", "application/x-ndjson"
ENVIRONMENT = {
    "BOUNDARYMORPH_EVENT_SECONDS": "1",
    "BOUNDARYMORPH_HEAD_SECONDS": "2",
    "BOUNDARYMORPH_BODY_PAUSE_SECONDS": "2",
    "BOUNDARYMORPH_SCORER__CONNECTIONS": str(CONNECTIONS),
}


def request(method: str, path: str, body: bytes = b"", *, accept: str = JSON, content: str = JSON) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {accept}\r\nContent-Type: {content}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def requests() -> list[bytes]:
    """Return one request of each kind with a new query."""
    query, texts = new_query(), [f"text {number} of {new_query()}" for number in range(60)]
    pool = {"query": query, "pool": texts, "budget": 10, "k": 5, "rounds": 10}
    large = {"query": query, "pool": ["long " * 20_000 for _ in range(40)], "budget": 0, "return_documents": True}
    lines = b"".join(orjson.dumps({"id": f"new-{n}", "text": f"{n} {query}"}) + b"\n" for n in range(300))
    tool = rpc.request("select_documents", query=query, index="tales", k=5)
    dumps = orjson.dumps
    return [
        request("POST", "/select", dumps(selection(query, rounds=10)), accept=STREAM),
        request("POST", "/select", dumps(pool), accept=STREAM),
        request("POST", "/select", dumps(selection(query))),
        request("POST", "/select", dumps(large)),
        request("POST", "/v2/rerank", dumps({"query": query, "documents": texts, "model": "m"})),
        request("POST", "/mcp", dumps(tool), accept=f"{JSON}, {STREAM}"),
        request("POST", "/indexes/own/documents", lines, content=LINES),
        request("POST", "/indexes/own/documents", lines, content=LINES, accept=LINES),
        request("GET", "/indexes"),
        request("GET", "/metrics"),
    ]


def connected(port: int, sent: bytes) -> socket.socket:
    """Open a connection, and send a request on it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(PATIENCE)
    connection.connect(("127.0.0.1", port))
    with suppress(ConnectionError):
        connection.sendall(sent)
    return connection


def leave(connection: socket.socket, how: str) -> None:
    with suppress(OSError):
        if how == "resets":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "ends what it sends":
            connection.shutdown(socket.SHUT_WR)
    connection.close()


def run_callers(chance: random.Random, port: int) -> None:
    """Make 200 moves of up to twelve callers, all of whom leave in the end."""
    callers: list[socket.socket] = []
    for _ in range(200):
        if not callers or (len(callers) < 12 and chance.random() < 0.3):
            sent = chance.choice(requests())
            callers.append(connected(port, sent[: chance.randrange(len(sent))] if chance.random() < 0.25 else sent))
        elif chance.random() < 0.6:
            reader = chance.choice(callers)
            reader.settimeout(chance.choice((0.001, 0.02, 0.1)))
            with suppress(ConnectionError, TimeoutError):
                reader.recv(chance.choice((1, 100, 4_000, 100_000)))
        else:
            caller = callers.pop(chance.randrange(len(callers)))
            leave(caller, chance.choice(("closes", "resets", "ends what it sends")))
    for caller in callers:
        leave(caller, "closes")


def answers_all(front: Service) -> None:
    """Check that more concurrent requests than connections are answered."""
    with ThreadPoolExecutor(2 * CONNECTIONS) as threads:
        until(lambda: all(threads.map(lambda _: completes(front), range(3 * CONNECTIONS))))


def test_callers_that_leave_free_all_that_they_used(tmp_path: Path) -> None:
    seed = times(23, random.SystemRandom().randrange(2**32))
    print(f"seed {seed}")
    chance = random.Random(seed)
    with in_a_thread(Server(Ours())) as scorer, retriever(tmp_path / "data") as indexes:
        fill(indexes)
        indexes.fill("own", [{"id": "first", "text": "first"}], encoder="none")
        scorer.behaviour = slow(0.01)
        options = ("--retriever-url", indexes.url, "--scorer-url", scorer.endpoint().base)
        with (
            service(tmp_path / "front", *options, environment=ENVIRONMENT) as started,
            # The client keeps no idle connections, since the gateway may close one as it is used again.
            httpx.Client(
                base_url=started.url, timeout=PATIENCE, limits=httpx.Limits(max_keepalive_connections=0)
            ) as client,
        ):
            front = replace(started, client=client)
            for sent in requests():  # resources that the first requests create are no leak
                leave(connected(front.port, sent), "closes")
            answers_all(front)
            until(lambda: front.metric("boundarymorph_select_running") == 0)
            first = [descriptors(running) for running in (front, indexes)]
            for _ in range(times(1, 300)):
                run_callers(chance, front.port)
                for gauge in ("boundarymorph_select_running", "boundarymorph_select_waiting"):
                    until(lambda gauge=gauge: front.metric(gauge) == 0)  # type: ignore[misc]
                for running, before in zip((front, indexes), first, strict=True):
                    until(lambda running=running, before=before: descriptors(running) <= before + SPARE)  # type: ignore[misc]
                assert "Traceback" not in front.log, front.log[-4_000:]
                answers_all(front)
