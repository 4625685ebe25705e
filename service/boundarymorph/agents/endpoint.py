"""The MCP endpoint of a service, loaded at its first request."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from boundarymorph.errors import NotInstalled
from boundarymorph.settings import Settings

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

SERVER = "boundarymorph.agents.mcp_server"


class McpEndpoint:
    """Answers at /mcp. The first request imports the SDK and starts its session manager."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._running: asyncio.Task[None] | None = None
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None

    async def exchange(self, body: bytes, caller: str) -> Response:
        """Return the response to a request, to be sent within its scope. caller: the owner of its sessions.

        Raises NotInstalled.
        """
        if self._manager is None:
            self._manager = asyncio.get_running_loop().create_future()
            # Runs in an empty context, as this request's context ends long before it.
            self._running = asyncio.create_task(self._run(self._manager), context=contextvars.Context())
        manager = await asyncio.shield(self._manager)
        return _McpResponse(manager, body, caller)

    async def close(self) -> None:
        """End all sessions."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self, started: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        try:
            server = await asyncio.to_thread(importlib.import_module, SERVER)
            manager = server.session_manager(self._settings)
        except ModuleNotFoundError as error:
            started.set_exception(NotInstalled(f"/mcp needs {error.name}: pip install 'boundarymorph[mcp]'"))
            return
        except Exception as error:
            self._manager = None  # the next request tries again: there may have been no descriptor for a file
            started.set_exception(error)
            return
        async with manager.run():
            started.set_result(manager)
            await asyncio.Event().wait()


class _McpResponse(Response):
    """One request to the MCP server, whose body has been read already."""

    def __init__(self, manager: StreamableHTTPSessionManager, body: bytes, caller: str) -> None:
        super().__init__()
        self._manager = manager
        self._read = body
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = [{"type": "http.request", "body": self._read, "more_body": False}]

        async def replayed() -> Message:
            return messages.pop() if messages else await receive()

        owned: dict[str, Any] = {**scope, "user": importlib.import_module(SERVER).owner(self._caller)}
        with suppress(ClientDisconnect):
            await self._manager.handle_request(owned, replayed, send)
