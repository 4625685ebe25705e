"""The tools, by the SDK of the Model Context Protocol, on the REST API of a service."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from itertools import zip_longest
from typing import Annotated, Any, Literal, TypeVar

import httpx2
import orjson
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import CallToolResult, InputRequiredResult, TextContent, ToolAnnotations
from pydantic import BaseModel, Field, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from boundarymorph import __version__, reading
from boundarymorph.agents import answers
from boundarymorph.agents.rest import ADVICE, Loopback, Refused, Service, path_of
from boundarymorph.api.schemas import Array, QueryText
from boundarymorph.api.select_schemas import SelectRequest
from boundarymorph.settings import AgentSettings

DEFAULT_K = 10
EXAMPLES = 3  # values of a field
DESCRIPTION = 100  # tokens of the description of an index
LONGEST_URL = 500  # characters of one among a document's metadata
LIKELY = 0.5  # probability of an answer, below which a note says that there is none
UNANSWERED = (
    "the answer is probably not in these documents; say so instead of guessing, or ask in other words or another index"
)
NO_MATCH, NO_FIELD = "no document passes the filter", "in its metadata"  # in warnings of the service
INSTRUCTIONS = (
    "Search of document collections for questions with many relevant documents. Call list_indexes once; then ask "
    "select_documents in full sentences, for as much as you can read; fetch reads what was cut. Cite documents by id."
)
READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
Function = TypeVar("Function", bound=Callable[..., Any])
Query = Annotated[QueryText, Field(description="What the documents should be about.")]
IndexName = Annotated[
    str | None,
    Field(
        min_length=1, description="The index to search; needed if there are several. list_indexes returns their names."
    ),
]


SERVICE: ContextVar[Service] = ContextVar("the service that the tools of this task call")


def within(app: ASGIApp, url: str, headers: Mapping[str, str], settings: AgentSettings) -> Service:
    """Return the service of this process. url: its public one; headers: with the credentials of the caller."""
    http = httpx2.AsyncClient(transport=Loopback(app), base_url="http://service", trust_env=False)
    return Service(http, url, settings, headers)


class _Server(MCPServer[None]):
    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[None, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool. Raises ToolError for unknown arguments, which the SDK would ignore, and for mistakes in others,
        in words of JSON."""
        known = {tool.name: tool.input_schema["properties"] for tool in await self.list_tools()}.get(name, arguments)
        if unknown := [argument[:100] for argument in arguments if argument not in known]:
            raise ToolError(
                f"there is no argument {unknown[0]!r}, only {', '.join(known) or 'none'}. {ADVICE['invalid-input']}"
            )
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            mistakes = error.__cause__.errors(include_url=False)
            said = {str(each["loc"][0]): reading.in_words(each, error.__cause__.title) for each in reversed(mistakes)}
            named = "; ".join(f"{argument}: {words}" for argument, words in said.items())
            raise ToolError(f"{named}. {ADVICE['invalid-input']}") from None


logging.getLogger("mcp.server.streamable_http_manager").setLevel(logging.WARNING)  # it tells of each request
server = _Server(
    "boundarymorph",
    title="BoundaryMORPH",
    version=__version__,
    instructions=INSTRUCTIONS,
    subscriptions=False,
    log_level="WARNING",  # of all that has no handler
)


async def exchange(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one HTTP request to the endpoint. There are no sessions: each request has all that its answer needs."""
    SERVICE.set(service)
    server.streamable_http_app(
        stateless_http=True,
        max_request_body_size=service.settings.body_bytes,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # hosts are checked before
    )
    manager = server.session_manager
    async with manager.run():
        await manager.handle_request(scope, receive, send)


def _taking(**described: str) -> Callable[[Function], Function]:
    """Return a decorator that gives a tool these fields of a selection's request as arguments, with their types and
    limits, in place of its `**options`."""

    annotated: Any = Annotated  # mypy reads what stands in its brackets as names of types

    def decorated(tool: Function) -> Function:
        signature = inspect.signature(tool, eval_str=True)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        taken = []
        for name, said in described.items():
            field = SelectRequest.model_fields[name]
            kind = annotated[field.annotation, *field.metadata, Field(description=said)]
            taken.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=kind)
            )
        tool.__signature__ = signature.replace(parameters=[*own, *taken])  # type: ignore[attr-defined]
        return tool

    return decorated


@server.tool(
    title="Select documents",
    description="Find the documents of an index that are most relevant to a query. An accurate model judges as many "
    "documents as the budget allows, and the relevance of the others is inferred from these judgements, so it "
    "finds documents that plain search ranks too low. Use it to gather evidence: ask in a full sentence, and "
    "ask for many documents at once instead of repeatedly. The same query with a larger budget or k costs "
    "only the difference.",
    annotations=READ_ONLY,
)
@_taking(
    k=f"How many documents you want; {DEFAULT_K} by default.",
    max_tokens="Instead of k: as many documents as fit into this many tokens, the limit of the answer.",
    min_relevance="Only documents that are likely at least so relevant, from 0 to 1: k of them at most, or none.",
    diversity="How much the documents should differ from each other: 0, the default, is by relevance alone.",
    instruction="What counts as relevant beyond the query, in a sentence. Not every service takes it.",
    filter='Only documents whose metadata match it: {"year": {"gte": 2020}, "kind": "review"}. Operators: eq, ne, in, '
    'nin, gt, gte, lt, lte, exists; combine with {"and": [...]}, {"or": [...]}, {"not": {...}}.',
    exclude_ids="Ids of documents that you have already, unchanged: they are not returned again.",
)
async def select_documents(
    context: Context[None, Any],
    query: Query,
    further_queries: Annotated[
        Array[str] | None,
        Field(
            description="Other questions that the documents may answer instead, for one set with one budget. Not "
            "together with max_tokens, min_relevance, distinct, diversity or an automatic budget."
        ),
    ] = None,
    index: IndexName = None,
    distinct: Annotated[
        bool | str | None,
        Field(
            description="true: no two documents with the same text. The name of a metadata field: only the best "
            'document for each of its values, such as "url" where an index holds parts of pages.'
        ),
    ] = None,
    budget: Annotated[
        int | Literal["auto"] | None,
        Field(
            description="How many documents may be judged by the accurate model; more are better and slower. "
            '"auto" stops when more would hardly help. The service has a default.'
        ),
    ] = None,
    response_format: Annotated[
        Literal["concise", "detailed"],
        Field(
            description="concise: titles and texts. detailed: also metadata, how certain each relevance is, and costs."
        ),
    ] = "concise",
    **options: Any,
) -> Annotated[CallToolResult, answers.SelectedTexts]:
    service = SERVICE.get()
    index = index or await _only_index(service)
    asked = {"queries": [query, *further_queries]} if further_queries else {"query": query}
    body = {**asked, "index": index, "distinct": distinct == "true" or distinct, "budget": budget, **options}
    if body["exclude_ids"] is not None:
        body["exclude_ids"] = [each for id in body["exclude_ids"] for each in _excluded(index, id)]
    if body["max_tokens"] is None and body["k"] is None:
        body["k"] = DEFAULT_K
    selection = await _select(context, body)
    detailed, usage = response_format == "detailed", selection["usage"]
    answer = answers.SelectedTexts(
        documents=[_selected(service, index, found, detailed) for found in selection["documents"]],
        notes=[
            *_unanswered(selection["answerable"]),
            *selection["warnings"],
            *await _unknown_fields(service, index, selection["warnings"]),
        ],
        answerable=_rounded(selection["answerable"]),
        costs=answers.Costs(
            budget=usage["budget"],
            judgements=usage["cross_encoder_calls"],
            reused=usage["reused_scores"] + usage["cached_scores"],
            expected_loss=round(selection["expected_loss"], 3),
        )
        if detailed
        else None,
    )
    most = min(service.settings.answer_tokens, body["max_tokens"] or service.settings.answer_tokens)
    return _result(await asyncio.to_thread(answers.fitted, answer, most))


@server.tool(
    title="List the indexes",
    description="The indexes that you may search: how many documents each has, and the fields of their metadata with "
    "some values, for filter and distinct. Call it once, before select_documents.",
    annotations=READ_ONLY,
)
async def list_indexes() -> Annotated[CallToolResult, answers.ListedIndexes]:
    service = SERVICE.get()
    found = await service.get("/indexes")
    described = found["indexes"][: service.settings.described_indexes]
    fields = {index["name"]: await _fields(service, index["name"]) if index["count"] else {} for index in described}
    return _result(await asyncio.to_thread(_listed, found, fields, service.settings.answer_tokens))


def _listed(
    found: Mapping[str, Any], fields: Mapping[str, dict[str, answers.ListedField]], most: int
) -> answers.ListedIndexes:
    """Return the answer of list_indexes. found: that of the service. fields: of some of the indexes."""
    unreadable = ", ".join(index["name"] for index in found["unreadable"])
    indexes = [
        answers.ListedIndex(
            name=index["name"],
            description=None if (said := index.get("description")) is None else answers.cut(said, DESCRIPTION),
            documents=index["count"],
            fields=fields.get(index["name"]),
        )
        for index in found["indexes"]
    ]
    notes = [answers.cut(f"cannot be read now: {unreadable}", 100)] if unreadable else []
    return answers.fitted_list(answers.ListedIndexes(indexes=indexes, notes=notes), most)


@server.tool(
    title="Search",
    description="The titles of the 10 documents that are most relevant to a query. fetch has their texts; "
    "select_documents does both at once.",
    annotations=READ_ONLY,
)
async def search(
    context: Context[None, Any], query: Query, index: IndexName = None
) -> Annotated[CallToolResult, answers.Hits]:
    service = SERVICE.get()
    index = index or await _only_index(service)
    selection = await _select(context, {"query": query, "index": index, "k": DEFAULT_K})
    hits = [
        answers.Hit(
            id=f"{index}/{found['id']}",
            title=_title(found),
            url=_url(service, index, found["id"], found["metadata"]),
        )
        for found in selection["documents"]
    ]
    room = service.settings.answer_tokens - answers.size(answers.Hits(results=[]))
    return _result(answers.Hits(results=hits[: answers.fitting(hits, room)]))


@server.tool(
    title="Fetch a document",
    description="The text and the metadata of one document, by its id from search or select_documents.",
    annotations=READ_ONLY,
)
async def fetch(
    id: Annotated[str, Field(min_length=1, description="An id from search or select_documents, unchanged.")],
    offset: Annotated[
        int, Field(ge=0, description="Characters of the text to skip: the next_offset of an answer that was cut.")
    ] = 0,
) -> Annotated[CallToolResult, answers.FetchedDocument]:
    service = SERVICE.get()
    index, own_id, found = await _found(service, id)
    if offset and offset >= len(found["text"]):
        raise ToolError(
            f"the text ends at character {len(found['text'])}. You have all of it, or need a smaller offset."
        )
    answer = answers.FetchedDocument(
        id=id,
        title=_title(found),
        text=found["text"][offset:],
        url=_url(service, index, own_id, found["metadata"]),
        metadata=found["metadata"],
    )
    answer = await asyncio.to_thread(answers.fitted_document, answer, service.settings.answer_tokens)
    if answer.next_offset is not None:
        answer.next_offset += offset
    return _result(answer)


@server.tool(
    title="Extend scores",
    description="The most relevant of many texts, by scores that you have of some of them. What the others are worth "
    "is inferred from these scores, and nothing is judged, so it costs nothing. Use it after a reranker, or you, "
    "have read the first ones.",
    annotations=READ_ONLY,
)
@_taking(
    k=f"How many documents you want; {DEFAULT_K} by default.",
    min_relevance="Only documents that are likely at least so relevant, from 0 to 1: k of them at most, or none.",
    ranked="Whether the texts are in the order of a search engine, best first. By default their order means nothing.",
)
async def extend_scores(
    context: Context[None, Any],
    query: Query,
    texts: Annotated[Array[str], Field(min_length=1, description="All candidates.")],
    scores: Annotated[
        Array[Annotated[float, Field(ge=0, le=1)] | None],
        Field(
            min_length=1,
            description="How relevant the texts are, from 0 to 1, in their order: null for those that nobody has "
            "judged, and nothing for the last of them.",
        ),
    ],
    ids: Annotated[Array[str] | None, Field(description="Of the texts; their positions, from 0, by default.")] = None,
    **options: Any,
) -> Annotated[CallToolResult, answers.ExtendedScores]:
    if len(scores) > len(texts):
        raise ToolError(f"scores: {len(scores)} for {len(texts)} texts. {ADVICE['invalid-input']}")
    if ids is not None and len(ids) != len(texts):
        raise ToolError(f"ids: {len(ids)} for {len(texts)} texts. {ADVICE['invalid-input']}")
    if all(score is None for score in scores):
        raise ToolError(f"scores: none is a number, and at least one is needed. {ADVICE['invalid-input']}")
    pool = [
        {"id": id, "text": text, "cross_encoder_score": score}
        for id, text, score in zip_longest(ids or (), texts, scores)
    ]
    body = {"query": query, "pool": pool, "budget": 0, "return_documents": False, **options}
    selection = await _select(context, {**body, "k": body["k"] or DEFAULT_K})
    answer = answers.ExtendedScores(
        documents=[
            answers.Extended(
                id=found["id"],
                relevance=round(found["relevance"], 3),
                judged=found["source"] == "cross_encoder",
                uncertainty=round(found["std"], 3) or None,
            )
            for found in selection["documents"]
        ],
        notes=[*_unanswered(selection["answerable"]), *selection["warnings"]],
        answerable=_rounded(selection["answerable"]),
    )
    room = SERVICE.get().settings.answer_tokens - answers.size(answer.model_copy(update={"documents": []}))
    answer.documents = answer.documents[: answers.fitting(answer.documents, room)]
    return _result(answer)


async def _found(service: Service, handle: str) -> tuple[str, str, dict[str, Any]]:
    """Return index, id and content of a document. Names of tables and ids may have a slash. Raises ToolError."""
    index, _, id = handle.partition("/")
    if not id:
        index, id = await _only_index(service), handle
    table, _, id_in_table = id.partition("/")
    try:
        return index, id, await service.get(path_of(index, "documents", id))
    except Refused as error:
        if error.slug not in ("unknown-index", "unknown-document"):
            raise
        with suppress(Refused):
            if id_in_table:
                index = f"{index}/{table}"
                return index, id_in_table, await service.get(path_of(index, "documents", id_in_table))
        with suppress(Refused, ToolError):  # as POST /select names it: the path of a file
            only = await _only_index(service)
            return only, handle, await service.get(path_of(only, "documents", handle))
        raise


def _excluded(index: str, handle: str) -> list[str]:
    """Return the ids that may be meant by one from search or select_documents, or by one of the index itself."""
    _, _, table = index.rpartition("/")
    before, found, id = f"/{handle}".partition(f"/{table}/")
    return [handle, id] if found and "/" not in before.removeprefix("/") else [handle]


async def _select(context: Context[None, Any], body: Mapping[str, Any]) -> Any:
    """Return a selection, with its texts unless the body says otherwise, reporting progress meanwhile."""
    reported = -1

    async def told(event: Mapping[str, Any]) -> None:
        nonlocal reported
        spent = event["cross_encoder_calls"] + event["cached_scores"] + event["reused_scores"]
        if spent > reported:
            reported, total = spent, max(spent, event["budget"])
            await context.report_progress(spent, total, f"round {event['rounds'] + 1}: {spent} of {total} judgements")

    asked = {name: value for name, value in body.items() if value is not None}
    return await SERVICE.get().select({"return_documents": True, **asked}, told)


async def _fields(service: Service, index: str) -> dict[str, answers.ListedField]:
    """Return the fields of the metadata in a sample of an index; none where it cannot be read now."""
    with suppress(ToolError):
        found = (await service.get(path_of(index, "stats")))["fields"]
        return {name: _field(field["examples"]) for name, field in found.items()}
    return {}


def _field(examples: Sequence[Any]) -> answers.ListedField:
    types = dict.fromkeys(_type(value) for value in examples)
    return answers.ListedField(type=" or ".join(types) or "unknown", examples=list(examples[:EXAMPLES]))


def _type(value: object) -> str:
    """Return JSON's name of a value's type."""
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


async def _unknown_fields(service: Service, index: str, warnings: Sequence[str]) -> list[str]:
    """Name the fields of an index where a filter or a grouping found none of those that it names."""
    if not any(said in warning for warning in warnings for said in (NO_MATCH, NO_FIELD)):
        return []
    named = ", ".join(f"{name} ({field.type})" for name, field in (await _fields(service, index)).items())
    return [answers.cut(f"the fields of this index are {named}", 300)] if named else ["no document here has metadata"]


async def _only_index(service: Service) -> str:
    """Return the index that is meant if none is named. Raises ToolError, with the names, if there are several."""
    if service.settings.index is not None:
        return service.settings.index
    found = await service.get("/indexes")
    names: list[str] = [index["name"] for index in (*found["indexes"], *found["unreadable"])]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ToolError("there is no index that you may search. Tell your user.")
    named = ", ".join(names)
    raise ToolError(
        answers.cut(f"there are several indexes; say index, or INDEX/ID where a document is meant: one of {named}", 500)
    )


def _selected(service: Service, index: str, found: Mapping[str, Any], detailed: bool) -> answers.SelectedText:
    judged = found["source"] == "cross_encoder"
    details = {
        "url": _url(service, index, found["id"], found["metadata"]),
        "uncertainty": None if judged else round(found["std"], 3),
        "retrieval_rank": found["retrieval_rank"],
        "metadata": found["metadata"] or None,
    }
    return answers.SelectedText(
        id=f"{index}/{found['id']}",
        title=found["title"],
        text=found["text"] or "",
        relevance=round(found["relevance"], 3),
        judged=judged,
        **(details if detailed else {}),
    )


def _unanswered(answerable: float | None) -> list[str]:
    return [] if answerable is None or answerable >= LIKELY else [UNANSWERED]


def _rounded(probability: float | None) -> float | None:
    return None if probability is None else round(probability, 3)


def _title(found: Mapping[str, Any]) -> str:
    return answers.cut(found["title"] or found["text"] or found["id"], 20)


def _url(service: Service, index: str, id: str, metadata: Mapping[str, Any] | None) -> str:
    """Return the URL in the document's metadata, else its address in the service."""
    own = (metadata or {}).get("url")
    if isinstance(own, str) and own.startswith(("https://", "http://")) and len(own) <= LONGEST_URL:
        return own
    return service.url.rstrip("/") + path_of(index, "documents", id)


def _result(answer: BaseModel) -> CallToolResult:
    """Return an answer without what is not there, as structured content and as the same JSON in a text."""
    text = answer.model_dump_json(exclude_none=True)
    return CallToolResult(content=[TextContent(text=text)], structured_content=orjson.loads(text))
