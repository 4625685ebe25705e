"""Between a client and a service: what the one asks, and connections that break."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import orjson
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send


@dataclass
class Seen:
    """A request as the service saw it. status: 0 while it is not answered; seconds: when it came."""

    method: str
    path: str
    headers: dict[str, str]
    seconds: float
    content: bytearray = field(default_factory=bytearray)
    status: int = 0
    answered: float = 0.0

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.content)
        return found


class Recorder:
    """ASGI middleware that keeps the requests."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self.seen: list[Seen] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        seen = Seen(scope["method"], scope["path"], headers, time.monotonic())
        self.seen.append(seen)

        async def received() -> Message:
            message = await receive()
            seen.content += message.get("body", b"")
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.status, seen.answered = message["status"], time.monotonic()
            await send(message)

        await self.app(scope, received, sent)


Fate = Literal["reset", "hang"]


class Way:
    """A TCP proxy. fates: what becomes of the next connections once they have sent; later ones reach the service."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self.fates: list[Fate] = []
        self.connections = 0
        self.url = ""

    @classmethod
    @asynccontextmanager
    async def to(cls, url: str) -> AsyncIterator[Way]:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        way = cls(parts.hostname, parts.port)
        server = await asyncio.start_server(way._connected, "127.0.0.1", 0)
        way.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield way

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError):
            if not self.fates:
                upstream = await asyncio.open_connection(self._host, self._port)
                await asyncio.gather(_copy(reader, upstream[1]), _copy(upstream[0], writer))
            elif self.fates.pop(0) == "reset":
                await reader.read(2**16)
                writer.transport.abort()
            else:
                while await reader.read(2**16):
                    pass
        writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await source.read(2**16):
            target.write(piece)
            await target.drain()
    target.close()
