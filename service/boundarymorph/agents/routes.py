"""The routes /mcp and, for the same tools as functions, /tools."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import orjson
from fastapi import APIRouter, Depends, FastAPI, Request, Response, Security
from pydantic import BaseModel

from boundarymorph.access import bodies
from boundarymorph.access.keys import Caller, Scope
from boundarymorph.access.rates import RateLimited
from boundarymorph.agents import tools
from boundarymorph.agents.endpoint import McpEndpoint
from boundarymorph.agents.loopback import Loopback
from boundarymorph.agents.rest import Rest, ToolError
from boundarymorph.agents.schemas import json_schema
from boundarymorph.api import openapi, problems
from boundarymorph.api.dependencies import BEARER, AccessOf, count, identify
from boundarymorph.errors import PROBLEM_TYPE, InvalidInput
from boundarymorph.telemetry import logs, tracing

FOR_MODELS = "Pass the answer, or the detail of a problem, to the language model that gave the arguments."


async def _permitted(request: Request, access: AccessOf, _: Annotated[object, Security(BEARER)]) -> Caller:
    """Return a caller with scope `select`."""
    return identify(request, access).within(Scope.SELECT)


PermittedOf = Annotated[Caller, Depends(_permitted)]


async def _identified(request: Request, access: AccessOf, permitted: PermittedOf) -> str:
    """Return the name of a caller with scope `select`, whose request is counted before its body is read."""
    await count(request, access, permitted)
    return permitted.name


CallerOf = Annotated[str, Depends(_identified)]


@asynccontextmanager
async def _running(app: FastAPI) -> AsyncIterator[None]:
    """What the routes need while the application runs."""
    endpoint = McpEndpoint(app.state.access.settings)
    async with httpx.AsyncClient(transport=Loopback(app), base_url="http://service") as http:
        app.state.loopback, app.state.endpoint = http, endpoint
        yield
        await endpoint.close()


router = APIRouter(tags=["agents"], lifespan=_running)


@router.api_route("/mcp", methods=["POST", "DELETE"], include_in_schema=False)
async def _mcp(request: Request, access: AccessOf, permitted: PermittedOf) -> Response:
    """Answer a request of the Model Context Protocol."""
    limited = None
    try:
        await count(request, access, permitted)
    except RateLimited as error:
        limited = error
    body = await bodies.read(request, access, access.settings.agents.body_bytes)
    if limited is not None:
        return _over_limit(body, limited)
    request.state.rest = _rest(request)
    endpoint: McpEndpoint = request.app.state.endpoint
    return await endpoint.exchange(body, permitted.name)


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


@router.get("/tools/openai.json", summary="The tools as functions for chat completions")
async def _openai() -> list[dict[str, Any]]:
    """Send this list as `tools` in a request to an OpenAI-compatible server."""
    return tools.for_openai()


@router.get("/tools/anthropic.json", summary="The tools for Anthropic's Messages API")
async def _anthropic() -> list[dict[str, Any]]:
    """Send this list as `tools` in a request to Anthropic."""
    return tools.for_anthropic()


def _calling(tool: tools.Tool) -> Callable[..., Awaitable[Response]]:
    """Return the endpoint of a tool."""

    async def call(request: Request, access: AccessOf, caller: CallerOf) -> Response:
        settings = access.settings.agents
        body = await bodies.read(request, access, settings.body_bytes)
        arguments = await bodies.off_loop(access, body, lambda: bodies.decoded(body, access.settings.limits))
        if not isinstance(arguments, dict):
            raise InvalidInput("the body must be a JSON object with the tool's arguments")
        try:
            working = tool.run(tools.Call(_rest(request), settings, _ignored), arguments)
            answer = await bodies.while_connected(request, working)
        except ToolError as error:
            return _refused(request, error)
        return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")

    return call


def _json(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI content of a body of this model."""
    return {"application/json": {"schema": json_schema(model)}}


def _refused(request: Request, error: ToolError) -> Response:
    problem = error.problem or {"status": 422, "type": InvalidInput.slug}
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    slug = problem["type"].removeprefix(PROBLEM_TYPE)
    return problems.respond(request, problem["status"], slug, str(error), where=problem.get("errors"), headers=headers)


def _rest(request: Request) -> Rest:
    """Return the API with the credentials of this request's caller."""
    headers = {logs.REQUEST_ID: logs.request_id.get() or "", **tracing.headers()}
    if (authorization := request.headers.get("authorization")) is not None:
        headers["authorization"] = authorization
    url = request.app.state.access.settings.public_url or str(request.base_url)
    return Rest(request.app.state.loopback, url, headers)


async def _ignored(progress: float, total: float, message: str) -> None:
    """Ignore the progress of a plain request."""


for _tool in tools.TOOLS:
    router.add_api_route(
        f"/tools/{_tool.name}",
        _calling(_tool),
        methods=["POST"],
        summary=_tool.title,
        description=f"{_tool.description}\n\n{FOR_MODELS}",
        operation_id=f"tool_{_tool.name}",
        response_class=Response,
        openapi_extra={"requestBody": {"required": True, "content": _json(_tool.arguments)}},
        responses={200: {"content": _json(_tool.answer)}, **openapi.problems(404, 409, 413, 422, 502, 504)},
    )
