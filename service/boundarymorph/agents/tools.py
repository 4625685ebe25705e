"""The tools: their names, descriptions and implementations on the REST API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from boundarymorph.agents import schemas, tokens
from boundarymorph.agents.arguments import understood
from boundarymorph.agents.fitting import fitted, fitted_document
from boundarymorph.agents.rest import Rest, ToolError
from boundarymorph.api.schemas import Message
from boundarymorph.settings import AgentSettings

NO_MATCH, NO_FIELD = "no document passes the filter", "in its metadata"  # in warnings of the service
EXAMPLES = 3  # values of a field
DESCRIPTION = 100  # tokens of the description of an index
LONGEST_URL = 500  # characters of one among a document's metadata
Progress = Callable[[float, float, str], Awaitable[None]]  # amount done, total, message


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool: the caller's API, the limits, and where to report progress."""

    rest: Rest
    settings: AgentSettings
    progress: Progress


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. All tools are read-only."""

    name: str
    title: str
    description: str
    arguments: type[Message]
    answer: type[BaseModel]
    work: Callable[[Call, Any], Awaitable[BaseModel]]

    async def run(self, call: Call, arguments: Mapping[str, Any]) -> BaseModel:
        """Carry out a call. Raises ToolError."""
        return await self.work(call, understood(self.arguments, arguments))


async def select_documents(call: Call, asked: schemas.SelectDocuments) -> schemas.SelectedTexts:
    own = ("response_format", "further_queries", "index")
    index = asked.index or await _only_index(call)
    body = {name: value for name, value in asked if name not in own and value is not None} | {"index": index}
    if asked.further_queries:
        body["queries"] = [body.pop("query"), *asked.further_queries]
    if asked.exclude_ids is not None:
        body["exclude_ids"] = [each for id in asked.exclude_ids for each in _excluded(index, id)]
    if asked.max_tokens is None:
        body.setdefault("k", schemas.DEFAULT_K)
    selection = await _select(call, body)
    detailed = asked.response_format == "detailed"
    documents = [_selected(call.rest, index, found, detailed) for found in selection["documents"]]
    costs = _costs(selection) if detailed else None
    notes = [*selection["warnings"], *await _unknown_fields(call, index, selection["warnings"])]
    answer = schemas.SelectedTexts(documents=documents, notes=notes, costs=costs)
    most = min(call.settings.answer_tokens, asked.max_tokens or call.settings.answer_tokens)
    return await asyncio.to_thread(fitted, answer, most)


async def list_indexes(call: Call, asked: schemas.ListIndexes) -> schemas.ListedIndexes:
    indexes, unreadable = await _indexes(call)
    for index in indexes[: call.settings.described_indexes]:
        index.fields = await _fields(call, index.name) if index.documents else {}
    notes = [tokens.cut(f"cannot be read now: {', '.join(unreadable)}", 100)] if unreadable else []
    answer = schemas.ListedIndexes(indexes=indexes, notes=notes)
    for index in reversed(indexes):  # names are worth more than fields
        if tokens.count(answer.model_dump_json(exclude_none=True)) <= call.settings.answer_tokens:
            break
        index.fields = None
    while tokens.count(answer.model_dump_json()) > call.settings.answer_tokens:
        fewer = answer.indexes[: len(answer.indexes) * 3 // 4]
        left_out = f"{len(indexes) - len(fewer)} more are not listed here"
        answer = schemas.ListedIndexes(indexes=fewer, notes=[*notes, left_out])
    return answer


async def search(call: Call, asked: schemas.Search) -> schemas.Hits:
    index = asked.index or await _only_index(call)
    selection = await _select(call, {"query": asked.query, "index": index, "k": schemas.DEFAULT_K})
    hits = [
        schemas.Hit(
            id=_handle(index, found["id"]),
            title=_title(found),
            url=_url(call.rest, index, found["id"], found["metadata"]),
        )
        for found in selection["documents"]
    ]
    while tokens.count(schemas.Hits(results=hits).model_dump_json()) > call.settings.answer_tokens:
        hits.pop()
    return schemas.Hits(results=hits)


async def fetch(call: Call, asked: schemas.Fetch) -> schemas.FetchedDocument:
    index, id, found = await _found(call, asked.id)
    if asked.offset and asked.offset >= len(found["text"]):
        raise ToolError(
            f"the text ends at character {len(found['text'])}. You have all of it, or need a smaller offset."
        )
    answer = schemas.FetchedDocument(
        id=asked.id,
        title=_title(found),
        text=found["text"][asked.offset :],
        url=_url(call.rest, index, id, found["metadata"]),
        metadata=found["metadata"],
    )
    answer = await asyncio.to_thread(fitted_document, answer, call.settings.answer_tokens)
    if answer.next_offset is not None:
        answer.next_offset += asked.offset
    return answer


async def _found(call: Call, handle: str) -> tuple[str, str, dict[str, Any]]:
    """Return index, id and content of a document. Names of tables and ids may have a slash. Raises ToolError."""
    index, _, id = handle.partition("/")
    if not id:
        index, id = await _only_index(call), handle
    table, _, id_in_table = id.partition("/")
    try:
        return index, id, await call.rest.get(call.rest.document_path(index, id))
    except ToolError as error:
        if not id_in_table or (error.problem or {}).get("status") != HTTPStatus.NOT_FOUND:
            raise
        with suppress(ToolError):
            index = f"{index}/{table}"
            return index, id_in_table, await call.rest.get(call.rest.document_path(index, id_in_table))
        raise


def _excluded(index: str, handle: str) -> list[str]:
    """Return the ids that may be meant by one from search or select_documents, or by one of the index itself."""
    _, _, table = index.rpartition("/")
    before, found, id = f"/{handle}".partition(f"/{table}/")
    return [handle, id] if found and "/" not in before.removeprefix("/") else [handle]


async def _select(call: Call, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a selection with its texts, reporting progress meanwhile."""
    reported = -1
    async with aclosing(call.rest.select({**body, "return_documents": True})) as events:
        async for name, event in events:
            if name == "selection":
                return event
            spent = event["cross_encoder_calls"] + event["cached_scores"] + event["reused_scores"]
            if spent > reported:
                reported, total = spent, max(spent, event["budget"])
                await call.progress(spent, total, f"round {event['rounds'] + 1}: {spent} of {total} judgements")
    raise ToolError("the service broke off its answer. Call again.")


async def _indexes(call: Call) -> tuple[list[schemas.ListedIndex], list[str]]:
    """Return the indexes, and the names of those that cannot be read."""
    found = await call.rest.get("/indexes")
    indexes = [_listed(index) for index in found["indexes"]]
    return indexes, [index["name"] for index in found["unreadable"]]


def _listed(index: Mapping[str, Any]) -> schemas.ListedIndex:
    said = index.get("description")
    description = None if said is None else tokens.cut(said, DESCRIPTION)
    return schemas.ListedIndex(name=index["name"], description=description, documents=index["count"])


async def _fields(call: Call, index: str) -> dict[str, schemas.ListedField]:
    """Return the fields of the metadata in a sample of an index; none where it cannot be read now."""
    with suppress(ToolError):
        found = await call.rest.get(call.rest.index_path(index) + "/stats")
        return {name: _field(field["examples"]) for name, field in found["fields"].items()}
    return {}


def _field(examples: Sequence[Any]) -> schemas.ListedField:
    types = dict.fromkeys(schemas.type_of(value) for value in examples)
    return schemas.ListedField(type=" or ".join(types) or "unknown", examples=list(examples[:EXAMPLES]))


async def _unknown_fields(call: Call, index: str, warnings: Sequence[str]) -> list[str]:
    """Name the fields of an index where a filter or a grouping found none of those that it names."""
    if not any(said in warning for warning in warnings for said in (NO_MATCH, NO_FIELD)):
        return []
    fields = await _fields(call, index)
    named = ", ".join(f"{name} ({field.type})" for name, field in fields.items())
    return [tokens.cut(f"the fields of this index are {named}", 300)] if named else ["no document here has metadata"]


async def _only_index(call: Call) -> str:
    """Return the index that is meant if none is named. Raises ToolError, with the names, if there are several."""
    if call.settings.index is not None:
        return call.settings.index
    indexes, unreadable = await _indexes(call)
    names = [*(index.name for index in indexes), *unreadable]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ToolError("there is no index that you may search. Tell your user.")
    named = ", ".join(names)
    raise ToolError(
        tokens.cut(f"there are several indexes; say index, or INDEX/ID where a document is meant: one of {named}", 500)
    )


def _selected(rest: Rest, index: str, found: Mapping[str, Any], detailed: bool) -> schemas.SelectedText:
    judged = found["source"] == "cross_encoder"
    details = {
        "url": _url(rest, index, found["id"], found["metadata"]),
        "uncertainty": None if judged else _short(found["std"]),
        "retrieval_rank": found["retrieval_rank"],
        "metadata": found["metadata"] or None,
    }
    return schemas.SelectedText(
        id=_handle(index, found["id"]),
        title=found["title"],
        text=found["text"] or "",
        relevance=_short(found["relevance"]),
        judged=judged,
        **(details if detailed else {}),
    )


def _costs(selection: Mapping[str, Any]) -> schemas.Costs:
    usage = selection["usage"]
    return schemas.Costs(
        budget=usage["budget"],
        judgements=usage["cross_encoder_calls"],
        reused=usage["reused_scores"] + usage["cached_scores"],
        expected_loss=_short(selection["expected_loss"]),
    )


def _handle(index: str, id: str) -> str:
    """Return the id for fetch."""
    return f"{index}/{id}"


def _title(found: Mapping[str, Any]) -> str:
    return tokens.cut(found["title"] or found["text"] or found["id"], 20)


def _url(rest: Rest, index: str, id: str, metadata: Mapping[str, Any] | None) -> str:
    """Return the URL in the document's metadata, else its address in the service."""
    own = (metadata or {}).get("url")
    if isinstance(own, str) and own.startswith(("https://", "http://")) and len(own) <= LONGEST_URL:
        return own
    return rest.url.rstrip("/") + rest.document_path(index, id)


def _short(number: float) -> float:
    return round(number, 3)


TOOLS = (
    Tool(
        "select_documents",
        "Select documents",
        "Find the documents of an index that are most relevant to a query. An accurate model judges as many documents "
        "as the budget allows, and the relevance of the others is inferred from these judgements, so it finds "
        "documents that plain search ranks too low. Use it to gather evidence: ask in a full sentence, and ask for "
        "many documents at once instead of repeatedly. The same query with a larger budget or k costs only the "
        "difference.",
        schemas.SelectDocuments,
        schemas.SelectedTexts,
        select_documents,
    ),
    Tool(
        "list_indexes",
        "List the indexes",
        "The indexes that you may search: how many documents each has, and the fields of their metadata with some "
        "values, for filter and distinct. Call it once, before select_documents.",
        schemas.ListIndexes,
        schemas.ListedIndexes,
        list_indexes,
    ),
    Tool(
        "search",
        "Search",
        f"The titles of the {schemas.DEFAULT_K} documents that are most relevant to a query. fetch has their texts; "
        "select_documents does both at once.",
        schemas.Search,
        schemas.Hits,
        search,
    ),
    Tool(
        "fetch",
        "Fetch a document",
        "The text and the metadata of one document, by its id from search or select_documents.",
        schemas.Fetch,
        schemas.FetchedDocument,
        fetch,
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}


def for_openai() -> list[dict[str, Any]]:
    """Return the value of `tools` for a chat completion API."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": schemas.json_schema(tool.arguments),
            },
        }
        for tool in TOOLS
    ]


def for_anthropic() -> list[dict[str, Any]]:
    """Return the value of `tools` for Anthropic's Messages API."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": schemas.json_schema(tool.arguments)}
        for tool in TOOLS
    ]
