"""The routes of indexes in a gateway, which forwards them to its retriever."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import aiohttp
from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ValidationError
from starlette import types

from boundarymorph.access import bodies
from boundarymorph.access.access import Access
from boundarymorph.access.keys import Scope
from boundarymorph.api import openapi
from boundarymorph.api.dependencies import AccessOf, Forwarder, ForwarderOf, allowed, permitted
from boundarymorph.api.schemas import (
    CreateIndex,
    DeleteDocuments,
    DeleteReport,
    DocumentPage,
    IndexDescription,
    IndexList,
    IndexStatistics,
    StoredDocument,
    UploadReport,
)
from boundarymorph.errors import RetrieverFailed, RetrieverUnavailable
from boundarymorph.inference.shares import CALLER
from boundarymorph.remote.connections import Response as PeerResponse
from boundarymorph.remote.connections import Unreadable
from boundarymorph.remote.urls import segment

router = APIRouter(prefix="/indexes", tags=["indexes"])
REQUEST_HEADERS = ("accept", "content-length", "content-type", "traceparent", "tracestate")
ANSWER_HEADERS = ("content-encoding", "content-length", "content-type", "retry-after")
_PARAMETER = re.compile(r"{(\w+)[^}]*}")  # of the path of a route
log = logging.getLogger(__name__)
MOST_LISTED = 2**26  # bytes of a list of indexes
STRICT = {"name": "strict", "in": "query", "schema": {"type": "boolean", "default": False}}


class _Passed(bodies.Streamed):
    """Streams the retriever's response, and closes it however the streaming ends. If it breaks off, so does ours."""

    def __init__(self, answer: PeerResponse) -> None:
        super().__init__(answer.chunks(), answer.status_code, _of(answer.headers, ANSWER_HEADERS))
        self._answer = answer

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except aiohttp.ClientError as error:
            log.warning("the retriever broke off in the middle of its answer: %s", error)
            await bodies.hang_up(receive)
        finally:
            self._answer.close()


async def _forward(request: Request, access: AccessOf, retriever: ForwarderOf) -> Response:
    """Answer as the retriever does. Uploads and responses are streamed, never held in memory as a whole."""
    return _Passed(await _answer(request, access, retriever))


async def _delete(request: Request, access: AccessOf, retriever: ForwarderOf) -> Response:
    """Answer as the retriever does, and forget what is kept here of an index that it has no more."""
    answer = await _answer(request, access, retriever)
    if answer.is_success or answer.status_code == 404:
        await access.work.write.run(access.forget, request.path_params["name"])
    return _Passed(answer)


async def _list(request: Request, access: AccessOf, retriever: ForwarderOf) -> Response:
    """Answer as the retriever does, without the indexes that the key may not use."""
    caller, answer = permitted(request), await _answer(request, access, retriever)
    if caller.sees_all or not answer.is_success:
        return _Passed(answer)
    try:
        found = IndexList.model_validate_json(await answer.read(MOST_LISTED))
    except aiohttp.ClientError as error:
        raise RetrieverUnavailable("the retriever broke off in the middle of its list of indexes") from error
    except (Unreadable, ValidationError) as error:
        raise RetrieverFailed("the retriever's list of indexes cannot be read") from error
    finally:
        answer.close()
    seen = IndexList(
        indexes=[index for index in found.indexes if caller.sees(index.name)],
        unreadable=[index for index in found.unreadable if caller.sees(index.name)],
    )
    return Response(seen.model_dump_json(), media_type="application/json")


async def _answer(request: Request, access: Access, retriever: Forwarder) -> PeerResponse:
    """Forward a request, to the path of its checked index and document, written anew."""
    request.state.until_end.enter_context(access.forwarded.holding(CALLER.get()))(1)
    target = _PARAMETER.sub(lambda found: segment(request.path_params[found[1]]), request.scope["route"].path)
    if request.scope["query_string"]:
        target += f"?{request.scope['query_string'].decode('ascii')}"
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    received = asyncio.Event() if has_body else None
    body = bodies.chunks(request, access, received) if has_body else None
    answer = retriever.forward(request.method, target, _of(request.headers, REQUEST_HEADERS), body)
    return await bodies.while_connected(request, answer, received)


def _of(headers: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


def _route(
    method: str,
    path: str,
    scope: Scope,
    summary: str,
    answer: type[BaseModel] | None,
    statuses: tuple[int, ...],
    described: Mapping[str, Any] = MappingProxyType({}),
    query: Sequence[Mapping[str, Any]] = (),
    answers: Mapping[int | str, dict[str, Any]] = MappingProxyType({}),
    endpoint: Callable[..., Awaitable[Response]] = _forward,
) -> None:
    names = [convertor.partition(":")[0] for convertor in re.findall(r"{(.*?)}", path)]
    in_path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    router.add_api_route(
        path,
        endpoint,
        methods=[method],
        dependencies=[Depends(allowed(scope))],
        summary=summary,
        operation_id="_".join([method.lower(), *re.findall(r"\w+", f"/indexes{path}")]),
        status_code=204 if answer is None else 200,
        response_model=answer,
        responses={**answers, **openapi.problems(502, 503, *statuses)},
        openapi_extra={**described, "parameters": [*in_path, *query]},
    )


# The same routes as in `indexes`, so that other paths are refused here, and both have the same description.
_route("GET", "", Scope.SELECT, "List the indexes", IndexList, (), endpoint=_list)
_route(
    "PUT",
    "/{name}",
    Scope.WRITE,
    "Create an index",
    IndexDescription,
    (404, 409, 413, 422, 507),
    openapi.body(CreateIndex, required=False),
)
_route("GET", "/{name}", Scope.SELECT, "Describe an index", IndexDescription, (404, 422))
_route("DELETE", "/{name}", Scope.ADMIN, "Delete an index", None, (404, 422), endpoint=_delete)
_route(
    "POST",
    "/{name}/documents",
    Scope.WRITE,
    "Add or replace documents",
    UploadReport,
    (404, 413, 415, 422, 507),
    openapi.upload(),
    [STRICT],
    {200: openapi.lines()},
)
_route(
    "DELETE",
    "/{name}/documents",
    Scope.WRITE,
    "Delete documents",
    DeleteReport,
    (404, 413, 422),
    openapi.body(DeleteDocuments),
)
PAGE = [
    {"name": "after", "in": "query", "schema": {"type": "string", "default": ""}},
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 1_000, "default": 100}},
]
_route("GET", "/{name}/documents", Scope.SELECT, "List documents", DocumentPage, (404, 422), query=PAGE)
_route("GET", "/{name}/stats", Scope.SELECT, "Describe an index and a sample of it", IndexStatistics, (404, 422))
_route("GET", "/{name}/documents/{id:text}", Scope.SELECT, "Read a document", StoredDocument, (404, 422))
_route("DELETE", "/{name}/documents/{id:text}", Scope.WRITE, "Delete a document", DeleteReport, (404, 422))
