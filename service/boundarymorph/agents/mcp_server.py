"""The tools over the Model Context Protocol. The only module that imports its SDK, the extra `mcp`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mcp_types as types
import orjson
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError

from boundarymorph import __version__
from boundarymorph.agents.rest import Rest, ToolError
from boundarymorph.agents.schemas import json_schema
from boundarymorph.agents.tools import BY_NAME, TOOLS, Call
from boundarymorph.inference.shares import CALLER, Shares
from boundarymorph.settings import AgentSettings, Settings

INSTRUCTIONS = (
    "Search of document collections for questions with many relevant documents. Call list_indexes once; then ask "
    "select_documents in full sentences, for as much as you can read; fetch reads what was cut. Cite documents by id."
)
READ_ONLY = types.ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
Context = ServerRequestContext[Any]


def server(settings: AgentSettings, rest_of: Callable[[Context], Rest]) -> Server[Any]:
    """Return an MCP server of the tools. rest_of: returns the API with the credentials of a message's sender."""
    described = [
        types.Tool(
            name=tool.name,
            title=tool.title,
            description=tool.description,
            input_schema=json_schema(tool.arguments),
            output_schema=json_schema(tool.answer),
            annotations=READ_ONLY,
        )
        for tool in TOOLS
    ]
    schemas = {tool.name: tool.input_schema for tool in described}

    async def list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=described)

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = BY_NAME.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}; there are {', '.join(BY_NAME)}")
        call = Call(rest_of(context), settings, context.session.report_progress)
        try:
            answer = await tool.run(call, params.arguments or {})
        except ToolError as error:
            return _failed(str(error))
        text = answer.model_dump_json(exclude_none=True)
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=orjson.loads(text))

    return Server(
        "boundarymorph",
        version=__version__,
        title="BoundaryMORPH",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=schemas.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def session_manager(settings: Settings) -> StreamableHTTPSessionManager:
    """Return the manager for streamable HTTP. Requests have their `Rest` in their state.

    Clients with protocols before 2026 get a session, which they need to cancel calls, if this process gets all of
    their requests.
    """
    agents = settings.agents

    def rest_of(context: Context) -> Rest:
        assert context.request is not None
        found: Rest = context.request.state.rest
        return found

    return _Sessions(
        server(agents, rest_of),
        Shares(agents.sessions, settings.limits.key_share, what="sessions (agents.sessions)"),
        stateless=agents.sessions == 0 or settings.workers > 1,
        session_idle_timeout=agents.session_seconds,
        max_request_body_size=agents.body_bytes,
    )


class _Sessions(StreamableHTTPSessionManager):
    """Its sessions are shared between callers."""

    def __init__(self, server: Server[Any], shares: Shares, **options: Any) -> None:
        super().__init__(server, max_sessions=None, **options)
        self._shares = shares
        self._callers: dict[str | None, str] = {}  # by session

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        """Open a session. Raises Overloaded if this caller may not have another one."""
        self._shares.take(caller := CALLER.get())
        transport = super()._admit_session(requestor)
        assert transport is not None
        self._callers[transport.mcp_session_id] = caller
        return transport

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        if (caller := self._callers.pop(session_id, None)) is not None:
            self._shares.give_back(caller)
        await super()._discard_session(session_id, transport)


def owner(caller: str) -> AuthenticatedUser:
    """Return the owner of a session. The SDK refuses requests of other callers in it."""
    return AuthenticatedUser(AccessToken(token="", client_id=caller, scopes=[]))


async def serve_stdio(settings: AgentSettings, rest: Rest) -> None:
    """Answer on stdin and stdout until stdin ends."""
    running = server(settings, lambda context: rest)
    async with stdio_server() as (incoming, outgoing):
        await running.run(incoming, outgoing, running.create_initialization_options())


def _failed(message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=message)], is_error=True)
