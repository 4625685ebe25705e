"""The tools: their names, descriptions and implementations on the REST API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from boundarymorph.agents import schemas, tokens
from boundarymorph.agents.fitting import fitted, fitted_document
from boundarymorph.agents.rest import Rest, ToolError
from boundarymorph.api.schemas import Message
from boundarymorph.settings import AgentSettings

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
        """Carry out a call. Raises pydantic's ValidationError, and ToolError."""
        return await self.work(call, self.arguments.model_validate(dict(arguments)))


async def select_documents(call: Call, asked: schemas.SelectDocuments) -> schemas.SelectedTexts:
    own = ("response_format", "further_queries")
    body = {name: value for name, value in asked if name not in own and value is not None}
    if asked.further_queries:
        body["queries"] = [body.pop("query"), *asked.further_queries]
    if asked.exclude_ids is not None:
        body["exclude_ids"] = [each for id in asked.exclude_ids for each in _excluded(asked.index, id)]
    if asked.max_tokens is None:
        body.setdefault("k", schemas.DEFAULT_K)
    selection = await _select(call, body)
    detailed = asked.response_format == "detailed"
    documents = [_selected(call.rest, asked.index, found, detailed) for found in selection["documents"]]
    costs = _costs(selection) if detailed else None
    answer = schemas.SelectedTexts(documents=documents, notes=selection["warnings"], costs=costs)
    return fitted(answer, min(call.settings.answer_tokens, asked.max_tokens or call.settings.answer_tokens))


async def list_indexes(call: Call, asked: schemas.ListIndexes) -> schemas.ListedIndexes:
    indexes, unreadable = await _indexes(call)
    notes = [tokens.cut(f"cannot be read now: {', '.join(unreadable)}", 100)] if unreadable else []
    answer = schemas.ListedIndexes(indexes=indexes, notes=notes)
    while tokens.count(answer.model_dump_json()) > call.settings.answer_tokens:
        fewer = answer.indexes[: len(answer.indexes) * 3 // 4]
        left_out = f"{len(indexes) - len(fewer)} more are not listed here"
        answer = schemas.ListedIndexes(indexes=fewer, notes=[*notes, left_out])
    return answer


async def search(call: Call, asked: schemas.Search) -> schemas.Hits:
    index = asked.index or call.settings.index or await _only_index(call)
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
    answer = fitted_document(answer, call.settings.answer_tokens)
    if answer.next_offset is not None:
        answer.next_offset += asked.offset
    return answer


async def _found(call: Call, handle: str) -> tuple[str, str, dict[str, Any]]:
    """Return index, id and content of a document. Names of tables and ids may have a slash. Raises ToolError."""
    index, _, id = handle.partition("/")
    if not id:
        raise ToolError(f"{handle!r} is not the id of a document. Use ids from search and select_documents.")
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
    indexes = [schemas.ListedIndex(name=index["name"], documents=index["count"]) for index in found["indexes"]]
    return indexes, [index["name"] for index in found["unreadable"]]


async def _only_index(call: Call) -> str:
    indexes, unreadable = await _indexes(call)
    names = [*(index.name for index in indexes), *unreadable]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ToolError("there is no index that you may search. Tell your user.")
    raise ToolError(
        tokens.cut(f"there are several indexes; call search with the argument index, one of {', '.join(names)}", 500)
    )


def _selected(rest: Rest, index: str, found: Mapping[str, Any], detailed: bool) -> schemas.SelectedText:
    judged = found["source"] == "cross_encoder"
    details = {
        "url": _url(rest, index, found["id"], found["metadata"]),
        "judged": judged,
        "uncertainty": None if judged else _short(found["std"]),
        "retrieval_rank": found["retrieval_rank"],
        "metadata": found["metadata"] or None,
    }
    return schemas.SelectedText(
        id=_handle(index, found["id"]),
        title=found["title"],
        text=found["text"] or "",
        relevance=_short(found["relevance"]),
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
        "The indexes that you may search, and how many documents each has. Call it once, before select_documents.",
        schemas.ListIndexes,
        schemas.ListedIndexes,
        list_indexes,
    ),
    Tool(
        "search",
        "Search",
        f"The {schemas.DEFAULT_K} documents that are most relevant to a query, by title. fetch has their texts; "
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
