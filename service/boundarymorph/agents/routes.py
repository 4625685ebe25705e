"""Serve /mcp."""

from __future__ import annotations

import asyncio
import math
from importlib import import_module
from typing import Annotated

import orjson
from fastapi import APIRouter, Request, Response, Security

from boundarymorph import reading
from boundarymorph.access import callers
from boundarymorph.access.rates import RateLimited
from boundarymorph.api import bodies
from boundarymorph.api.dependencies import BEARER, AccessOf, count, identify
from boundarymorph.api.visit import visit_of
from boundarymorph.errors import NotInstalled, missing_package
from boundarymorph.telemetry import tracing

TOOLS = "boundarymorph.agents.tools"  # imported at the first request, because the SDK may not be installed
router = APIRouter(tags=["agents"])


@router.post("/mcp", include_in_schema=False)
async def _mcp(request: Request, access: AccessOf, _: Annotated[object, Security(BEARER)]) -> Response:
    """Answer a request of the Model Context Protocol.

    The tools call the API with the credentials of the caller.
    """
    caller, settings = identify(request, access).restrict(callers.Scope.SELECT), access.settings
    try:
        await count(request, access, caller)
        limited = None
    except RateLimited as error:
        limited = error
    body = reading.with_whole_characters(await bodies.read(request, access, settings.agents.body_bytes))
    if limited is not None:
        return _over_limit(body, limited)
    try:
        tools = await asyncio.to_thread(import_module, TOOLS)  # the first import takes a second
    except ModuleNotFoundError as error:
        raise NotInstalled(missing_package("/mcp", error.name, "mcp")) from None
    headers = {tracing.REQUEST_ID: tracing.request_id.get() or "", **tracing.headers()}
    if (authorization := request.headers.get("authorization")) is not None:
        headers["authorization"] = authorization
    url, on_behalf_of = settings.public_url or str(request.base_url), visit_of(request).caller
    shown = request.app.state.shown_notes
    service = tools.local_service(request.app, url, headers, settings.agents, on_behalf_of, shown)
    answer: Response = tools.Exchange(service, body)
    return answer


def _over_limit(body: bytes, limited: RateLimited) -> Response:
    """Return an error that the client shows to its language model, for a call of a tool.

    Raises:
        RateLimited: For any other request.
    """
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
