"""An HTTP transport to an application in this process, with streaming responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from starlette.types import ASGIApp, Message

from boundarymorph.api.dependencies import COUNTED

_running: set[asyncio.Task[None]] = set()  # the event loop keeps only weak references to tasks


class Loopback(httpx2.AsyncBaseTransport):
    """A transport to an ASGI application. Unlike `httpx2.ASGITransport`, it does not wait for the end of a response.

    Closing a response early is a disconnection for the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = _Exchange(await request.aread())
        task = asyncio.create_task(self._run(_scope(request), exchange))
        _running.add(task)
        task.add_done_callback(_running.discard)
        try:
            start = await exchange.messages.get()
        except asyncio.CancelledError:
            exchange.left.set()
            raise
        if start is None:
            raise httpx2.RemoteProtocolError("the application gave no answer", request=request)
        return httpx2.Response(start["status"], headers=start["headers"], stream=exchange)

    async def _run(self, scope: dict[str, Any], exchange: _Exchange) -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            exchange.messages.put_nowait(None)


class _Exchange(httpx2.AsyncByteStream):
    """One request and its response. left: the response has been closed."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.messages.put_nowait(message)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self.messages.get()) is not None:
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return

    async def aclose(self) -> None:
        self.left.set()


def _scope(request: httpx2.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "server": (request.url.host, request.url.port),
        "client": None,
        "state": {COUNTED: True},
    }
