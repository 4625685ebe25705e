"""An HTTP server on a real socket, which fails in the ways that a test chooses."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

import orjson


@dataclass(frozen=True)
class Request:
    """A request; the names of its headers are lowercase."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass
class Reply:
    """A reply, whose body is sent as JSON unless it is bytes."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else orjson.dumps(self.body)
        headers = {"content-length": str(len(body)), "content-type": "application/json"} | self.headers
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", *(f"{k}: {v}" for k, v in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body


class Reset(Exception):
    """The server resets the connection instead of answering."""


Behaviour = Callable[[Reply], Awaitable[Reply]]  # turns the right reply into the reply to send


async def well(reply: Reply) -> Reply:
    return reply


async def hang(reply: Reply) -> Reply:
    await asyncio.Event().wait()
    return reply


async def reset(reply: Reply) -> Reply:
    raise Reset


def slow(seconds: float) -> Behaviour:
    async def behaviour(reply: Reply) -> Reply:
        await asyncio.sleep(seconds)
        return reply

    return behaviour


def answer(body: Any, status: int = 200, **headers: str) -> Behaviour:
    """Return a behaviour that replies with this to every request.

    A header is given as `retry_after="7"`.
    """

    async def behaviour(reply: Reply) -> Reply:
        return Reply(body, status, {key.replace("_", "-"): value for key, value in headers.items()})

    return behaviour


def edited(edit: Callable[[Any], Any]) -> Behaviour:
    """Return a behaviour that changes the body of the right reply."""

    async def behaviour(reply: Reply) -> Reply:
        return Reply(edit(reply.body), reply.status)

    return behaviour


class Upstream:
    """A server at a port of this machine.

    Attributes:
        behaviour: What happens to the right reply.
        script: Behaviours of the next requests, before `behaviour` applies.
        aside: Behaviours of paths that `script` and `requests` ignore, such as those of probes.
        requests: The requests for other paths.
        left: The number of clients that left before they were answered.
    """

    def __init__(self, right: Callable[[Request], Reply | Awaitable[Reply]] = lambda request: Reply({})) -> None:
        self._right = right
        self.behaviour: Behaviour = well
        self.script: list[Behaviour] = []
        self.aside: dict[str, Behaviour] = {}
        self.requests: list[Request] = []
        self.connections = self.left = 0
        self.arrived, self.gone = asyncio.Event(), asyncio.Event()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Refuse new connections and reset those that are open."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
        self._server = None

    def drop_idle(self) -> None:
        """Close the connections that are open, as after a time without requests."""
        for writer in self._writers:
            writer.close()

    async def respond(self, request: Request) -> Reply:
        """Return the reply to a request when it is due."""
        if request.path in self.aside:
            return await self.aside[request.path](await self._replied(request))
        self.requests.append(request)
        self.arrived.set()
        behaviour = self.script.pop(0) if self.script else self.behaviour
        return await behaviour(await self._replied(request))

    async def _replied(self, request: Request) -> Reply:
        reply = self._right(request)
        return reply if isinstance(reply, Reply) else await reply

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections += 1
        self._writers.add(writer)
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        except Reset:
            writer.transport.abort()
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request, and return whether the client is still there."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        request_line, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = request_line.split(" ")
        answering = asyncio.ensure_future(self.respond(Request(method, path, headers, body)))
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.left += 1
                self.gone.set()
                return False
            writer.write((await answering).encoded())
            await writer.drain()
            return True
        finally:
            for task in (answering, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task


SomeUpstream = TypeVar("SomeUpstream", bound=Upstream)


@asynccontextmanager
async def listening(*servers: SomeUpstream) -> AsyncIterator[list[SomeUpstream]]:
    """Run servers in this event loop while the block runs."""
    try:
        for server in servers:
            await server.start()
        yield list(servers)
    finally:
        for server in servers:
            await server.kill()


@contextmanager
def in_a_thread(server: SomeUpstream) -> Iterator[SomeUpstream]:
    """Run a server in a thread of its own, for tests and clients that block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.kill(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
