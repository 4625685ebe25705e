"""Define the tools with the SDK of the Model Context Protocol, on the REST API of a service."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, Literal, TypeVar

import orjson
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import CallToolResult, InputRequiredResult, TextContent, ToolAnnotations
from pydantic import Field, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from boundarymorph import __version__, reading
from boundarymorph.agents.answers import LEAST, Answer, fit_documents, fit_indexes, size, truncate
from boundarymorph.agents.rest import ADVICE, Service, ServiceProblem, local_service, path_of
from boundarymorph.api.schemas import Array, QueryText

__all__ = ["Exchange", "local_service", "server_of"]
DEFAULT_K = 10
EXAMPLES = 3  # values of a field
TITLE, NOTE, NAMES = 20, 100, 500  # tokens
LONGEST_ID = 1_024  # characters of an index's name and a document's id
LONGEST_URL = 500  # characters of a URL in a document's metadata
LIKELY = 0.5  # below this probability, a note says that the documents have no answer
UNANSWERED = (
    "the answer is probably not in these documents; say so instead of guessing, or ask in other words or another index"
)
CUT = "{count} texts are cut; call fetch with id and next_offset to read on"
LEFT_OUT = "{count} more documents do not fit into this answer; name these in exclude_ids to get the others"
INSTRUCTIONS = (
    "Search of document collections for questions with many relevant documents. Call list_indexes once; then ask "
    "select_documents in full sentences, for as much as you can read; fetch reads what was cut. Cite documents by id."
)
READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
UNCHECKED = TransportSecuritySettings(enable_dns_rebinding_protection=False)
Function = TypeVar("Function", bound=Callable[..., Any])
ToolContext = Context[Service, Any]  # carries the service that a tool calls
Query = Annotated[QueryText, Field(description="What the documents should be about.")]
IndexName = Annotated[str | None, Field(min_length=1, description="The index to search, needed if there are several.")]
FILTER = (
    'Only documents whose metadata match it: {"year": {"gte": 2020}, "kind": "review"}. Operators: eq, ne, in, nin, '
    'gt, gte, lt, lte, exists; combine with {"and": [...]}, {"or": [...]}, {"not": {...}}.'
)
Filter = Annotated[dict[str, Any] | None, Field(description=FILTER)]
DISTINCT = "true: no text twice. A field of the metadata: only the best document for each of its values."
KnownIds = Annotated[Array[str] | None, Field(description="The ids of documents that you have already.")]
BUDGET = 'How many documents may be judged; more are better and slower. "auto" stops when more would hardly help.'


class _Server(MCPServer[Service]):
    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: ToolContext | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool.

        Raises:
            ToolError: For unknown arguments, which the SDK would ignore, and, in words of JSON, for mistakes in others.
        """
        known = {tool.name: tool.input_schema["properties"] for tool in await self.list_tools()}.get(name, arguments)
        if unknown := [argument[:100] for argument in arguments if argument not in known]:
            named = f"there is no argument {unknown[0]!r}, only {', '.join(known) or 'none'}"
            raise ToolError(f"{named}. {ADVICE['invalid-input']}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(cause := error.__cause__, ValidationError):
                raise
            mistakes = reversed(cause.errors(include_url=False))
            said = {str(each["loc"][0]): reading.mistake_message(each, cause.title) for each in mistakes}
            named = "; ".join(f"{argument}: {words}" for argument, words in said.items())
            raise ToolError(f"{named}. {ADVICE['invalid-input']}") from None


logging.getLogger("mcp.server.streamable_http_manager").setLevel(logging.WARNING)  # otherwise it logs each request
TOOLS: list[Tool] = []


def server_of(service: Service) -> _Server:
    """Return a server with tools that call this service."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[Service]) -> AsyncIterator[Service]:
        yield service

    return _Server(
        "boundarymorph",
        instructions=INSTRUCTIONS,
        version=__version__,
        tools=TOOLS,
        lifespan=lifespan,
        subscriptions=False,
        log_level="WARNING",  # for all loggers without a handler
    )


def _tool(description: str) -> Callable[[Function], Function]:
    """Return the decorator of a tool."""

    def added(function: Function) -> Function:
        TOOLS.append(Tool.from_function(function, description=description, annotations=READ_ONLY))
        return function

    return added


class Exchange(Response):
    """The answer to one HTTP request to the endpoint, without sessions.

    The body has been read and the host has been checked. Each request contains all that its answer needs.
    """

    def __init__(self, service: Service, body: bytes) -> None:
        super().__init__()
        self._service, self._body = service, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = [{"type": "http.request", "body": self._body, "more_body": False}]

        async def replayed() -> Message:
            return messages.pop() if messages else await receive()

        most, server = self._service.settings.body_bytes, server_of(self._service)
        server.streamable_http_app(stateless_http=True, max_request_body_size=most, transport_security=UNCHECKED)
        with suppress(ClientDisconnect):
            manager = server.session_manager
            async with manager.run():
                await manager.handle_request(scope, replayed, send)


@_tool(
    "Find the documents of an index that are most relevant to a query, with their texts. An accurate model "
    "judges as many documents as the budget allows, and the relevance of the others is inferred from these judgements, "
    "so it finds documents that plain search ranks too low. Use it to gather evidence: ask in a full sentence, and ask "
    "for many documents at once instead of repeatedly. The same query with a larger budget or k costs only the "
    "difference. A text with a next_offset is cut, and fetch reads on. If answerable, a probability, is low, the index "
    "does not answer the query."
)
async def select_documents(
    context: ToolContext,
    query: Query,
    index: IndexName = None,
    k: int | None = Field(None, ge=1, description=f"How many documents you want; {DEFAULT_K} by default."),
    max_tokens: int | None = Field(
        None, ge=1, description="The most tokens of all their texts together, instead of k."
    ),
    min_relevance: float | None = Field(None, ge=0, le=1, description="The least relevance of a document."),
    filter: Filter = None,
    distinct: bool | str | None = Field(None, description=DISTINCT),
    exclude_ids: KnownIds = None,
    budget: int | Literal["auto"] | None = Field(None, description=BUDGET),
) -> CallToolResult:
    service = context.request_context.lifespan_context
    index = index or await _only_index(service)
    k = DEFAULT_K if k is None and max_tokens is None else k
    distinct = {"true": True, "false": False}.get(str(distinct), distinct)
    excluded = list(dict.fromkeys(name for id in exclude_ids or () for name in (id, id.removeprefix(f"{index}/"))))
    asked = {"query": query, "index": index, "k": k, "max_tokens": max_tokens, "min_relevance": min_relevance}
    more = {"filter": filter, "distinct": distinct, "exclude_ids": excluded or None, "budget": budget}
    selection = await service.select({**asked, **more})
    found, usage, answerable = selection["documents"], selection["usage"], selection["answerable"]
    documents = fit_documents((_selected(service, index, each) for each in found), service.settings.answer_tokens)
    warnings = [each for each in selection["warnings"] if service.shown.is_due(service.caller, index, each["slug"])]
    notes = [truncate(warning["message"], NOTE) for warning in warnings]
    if answerable is not None and answerable < LIKELY:
        notes.append(UNANSWERED)
    if (filter and not found) or any(warning["slug"] == "field-not-found" for warning in selection["warnings"]):
        fields = [f"{name} ({known['type']})" for name, known in (await _fields(service, index)).items()]
        notes.append(truncate(f"the fields of this index are {', '.join(fields) or 'none'}", NOTE))
    if cut := sum("next_offset" in document for document in documents):
        notes.append(CUT.format(count=cut))
    if left_out := len(found) - len(documents):
        notes.append(LEFT_OUT.format(count=left_out))
    costs = {"judgements": usage["cross_encoder_calls"], "reused": usage["reused_scores"] + usage["cached_scores"]}
    return _result(documents=documents, notes=notes, answerable=answerable, costs={"budget": usage["budget"], **costs})


@_tool(
    "The indexes that you may search: how many documents each has, and the fields of their metadata with "
    "some values, for filter and distinct. Call it once, before select_documents."
)
async def list_indexes(context: ToolContext) -> CallToolResult:
    service = context.request_context.lifespan_context
    found = await service.get("/indexes")
    indexes: list[dict[str, Any]] = [{"name": each["name"], "documents": each["count"]} for each in found["indexes"]]
    for index, each in zip(indexes, found["indexes"], strict=True):
        if each.get("description"):
            index["description"] = truncate(each["description"], NOTE)
    for index in indexes[: service.settings.described_indexes]:
        index["fields"] = await _fields(service, index["name"])
    kept, notes = fit_indexes(indexes, service.settings.answer_tokens), []
    if unreadable := ", ".join(index["name"] for index in found["unreadable"]):
        notes.append(truncate(f"cannot be read now: {unreadable}", NOTE))
    if left_out := len(indexes) - len(kept):
        notes.append(f"{left_out} more are not listed here")
    return _result(indexes=kept, notes=notes)


@_tool(
    "The titles of the 10 documents that are most relevant to a query. fetch has their texts; "
    "select_documents does both at once."
)
async def search(context: ToolContext, query: Query, index: IndexName = None) -> CallToolResult:
    service = context.request_context.lifespan_context
    index = index or await _only_index(service)
    found = (await service.select({"query": query, "index": index, "k": DEFAULT_K}))["documents"]
    hits = [{"id": f"{index}/{each['id']}", "title": _title(each), "url": _url(service, index, each)} for each in found]
    return _result(results=hits)


@_tool(
    "The text and the metadata of one document, by its id from search or select_documents. If the answer "
    "has a next_offset, there is more: call it again with this offset."
)
async def fetch(
    context: ToolContext,
    id: str = Field(
        min_length=1, max_length=LONGEST_ID, description="An id from search or select_documents, unchanged."
    ),
    offset: int = Field(0, ge=0, description="The characters of the text to skip: a next_offset."),
) -> CallToolResult:
    service = context.request_context.lifespan_context
    index, found = await _found(service, id)
    rest, most = found["text"][offset:], service.settings.answer_tokens
    if offset and not rest:
        said = f"the text ends at character {len(found['text'])}"
        raise ToolError(f"{said}. You have all of it, or need a smaller offset.")
    metadata = found["metadata"] if size(found["metadata"]) <= most // 2 else {}
    answer = {"id": id, "title": _title(found), "url": _url(service, index, found), "metadata": metadata}
    text = truncate(rest, max(LEAST, most - size({**answer, "text": "", "next_offset": len(rest)})))
    next_offset = offset + len(text) if len(text) < len(rest) else None
    return _result(**answer, text=text, next_offset=next_offset)


async def _found(service: Service, handle: str) -> tuple[str, Any]:
    """Return the index and the content of a document. Raises ToolError.

    Names of tables and ids may contain a slash.
    """
    parts, refused = handle.split("/", 2), None
    places = [("/".join(parts[:count]), handle.split("/", count)[count]) for count in range(1, len(parts))]
    for index, id in (*places, ("", handle)):  # finally the handle as POST /select gives it, such as the path of a file
        try:
            index = index or await _only_index(service)
            return index, await service.get(path_of(index, "documents", id))
        except ToolError as error:
            if isinstance(error, ServiceProblem) and not error.slug.startswith(("unknown-", "invalid-")):
                raise
            refused = refused or error
    assert refused is not None
    raise refused


async def _fields(service: Service, index: str) -> dict[str, Answer]:
    """Return the metadata fields in a sample of an index, or none if it cannot be read now."""
    with suppress(ToolError):
        found = (await service.get(path_of(index, "stats")))["fields"]
        return {name: _field(field["examples"]) for name, field in found.items()}
    return {}


def _field(examples: Sequence[Any]) -> Answer:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    types = dict.fromkeys(names.get(type(value), "null") for value in examples)
    return {"type": " or ".join(types) or "unknown", "examples": examples[:EXAMPLES]}


async def _only_index(service: Service) -> str:
    """Return the index to use if the caller names none.

    Raises:
        ToolError: With the names, if there are several.
    """
    if service.settings.index is not None:
        return service.settings.index
    found = await service.get("/indexes")
    names: list[str] = [index["name"] for index in (*found["indexes"], *found["unreadable"])]
    if len(names) == 1:
        return names[0]
    several = "say index, or INDEX/ID where a document is meant"
    raise ToolError(truncate(f"{several}: one of {', '.join(names) or 'none'}", NAMES))


def _selected(service: Service, index: str, found: Answer) -> Answer:
    named = {"id": f"{index}/{found['id']}", "title": _title(found), "url": _url(service, index, found)}
    relevance, judged = round(found["relevance"], 3), found["source"] == "cross_encoder"
    return {**named, "relevance": relevance, "judged": judged, "text": found["text"] or ""}


def _title(found: Answer) -> str:
    return truncate(found["title"] or found["text"] or found["id"], TITLE).rstrip()


def _url(service: Service, index: str, found: Answer) -> str:
    """Return the URL in the document's metadata, else its address in the service."""
    own = (found["metadata"] or {}).get("url")
    if isinstance(own, str) and own.startswith(("https://", "http://")) and len(own) <= LONGEST_URL:
        return own
    return service.url.rstrip("/") + path_of(index, "documents", found["id"])


def _result(**answer: Any) -> CallToolResult:
    """Return an answer without absent fields, as structured content and as JSON text."""
    content = {name: value for name, value in answer.items() if value is not None}
    return CallToolResult(content=[TextContent(text=orjson.dumps(content).decode())], structured_content=content)
