"""The route /mcp."""

from __future__ import annotations

import asyncio
import importlib
import math
from contextlib import suppress
from types import ModuleType
from typing import Annotated

import orjson
from fastapi import APIRouter, Request, Response, Security
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from boundarymorph import reading
from boundarymorph.access import callers
from boundarymorph.access.limits import RateLimited
from boundarymorph.api import bodies
from boundarymorph.api.dependencies import BEARER, AccessOf, count, identify
from boundarymorph.errors import NotInstalled, missing_package
from boundarymorph.telemetry import tracing

TOOLS = "boundarymorph.agents.tools"  # imported when it is asked for, as the SDK may not be installed
router = APIRouter(tags=["agents"])


@router.post("/mcp", include_in_schema=False)
async def _mcp(request: Request, access: AccessOf, _: Annotated[object, Security(BEARER)]) -> Response:
    """Answer a request of the Model Context Protocol, by tools that call the API with the credentials of the caller."""
    caller = identify(request, access).within(callers.Scope.SELECT)
    limited = None
    try:
        await count(request, access, caller)
    except RateLimited as error:
        limited = error
    body = reading.with_whole_characters(await bodies.read(request, access, access.settings.agents.body_bytes))
    if limited is not None:
        return _over_limit(body, limited)
    try:
        tools = await asyncio.to_thread(importlib.import_module, TOOLS)  # which takes a second, once
    except ModuleNotFoundError as error:
        raise NotInstalled(missing_package("/mcp", error.name, "mcp")) from None
    headers = {tracing.REQUEST_ID: tracing.request_id.get() or "", **tracing.headers()}
    if (authorization := request.headers.get("authorization")) is not None:
        headers["authorization"] = authorization
    url = access.settings.public_url or str(request.base_url)
    return _Exchange(tools, tools.within(request.app, url, headers, access.settings.agents), body)


def _over_limit(body: bytes, limited: RateLimited) -> Response:
    """Return the answer to a call of a tool over the rate limit, which the client then shows to its language model.
    Raises RateLimited for any other request."""
    try:
        message = orjson.loads(body)
        id = message["id"] if message["method"] == "tools/call" else None
    except (orjson.JSONDecodeError, TypeError, KeyError):
        id = None
    if id is None:
        raise limited
    text = f"{limited}. Wait {math.ceil(limited.retry_after)} seconds and call again."
    result = {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete"}
    content = orjson.dumps({"jsonrpc": "2.0", "id": id, "result": result})
    return Response(content, media_type="application/json")


class _Exchange(Response):
    """The answer of the SDK to a request whose body has been read already."""

    def __init__(self, tools: ModuleType, service: object, body: bytes) -> None:
        super().__init__()
        self._tools, self._service, self._read = tools, service, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = [{"type": "http.request", "body": self._read, "more_body": False}]

        async def replayed() -> Message:
            return messages.pop() if messages else await receive()

        with suppress(ClientDisconnect):
            await self._tools.exchange(self._service, scope, replayed, send)
