"""Forward the routes of indexes from a gateway to its retriever."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from copy import copy
from typing import Annotated, Any

import aiohttp
from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette import types

from boundarymorph.access.limits import Access
from boundarymorph.api import bodies, indexes, openapi
from boundarymorph.api.dependencies import AccessOf, built_parts, permitted_caller
from boundarymorph.api.schemas import IndexList
from boundarymorph.api.visit import visit_of
from boundarymorph.errors import RetrieverFailed, RetrieverUnavailable
from boundarymorph.remote.peer import PeerResponse, UnreadableBody
from boundarymorph.remote.urls import segment
from boundarymorph.retrieval.remote import RemoteRetriever

REQUEST_HEADERS = ("accept", "content-length", "content-type", "traceparent", "tracestate")
ANSWER_HEADERS = ("content-encoding", "content-length", "content-type", "retry-after")
_PARAMETER = re.compile(r"{(\w+)[^}]*}")  # a parameter in the path of a route
log = logging.getLogger(__name__)
MOST_LISTED = 2**26  # most bytes of a list of indexes


async def _remote(parts: Annotated[Any, Depends(built_parts)]) -> RemoteRetriever:
    found: RemoteRetriever = parts.retriever
    return found


RetrieverOf = Annotated[RemoteRetriever, Depends(_remote)]


class _ForwardedResponse(bodies.StreamedResponse):
    """A response that streams the retriever's, closes it at the end, and breaks off if it does."""

    def __init__(self, answer: PeerResponse) -> None:
        super().__init__(answer.chunks(), answer.status_code, _selected(answer.headers, ANSWER_HEADERS))
        self._answer = answer

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except aiohttp.ClientError as error:
            log.warning("the retriever broke off in the middle of its answer: %s", error)
            await bodies.hang_up(receive)
        finally:
            self._answer.close()


async def _forward(request: Request, access: AccessOf, retriever: RetrieverOf) -> Response:
    """Answer as the retriever does, streaming both bodies."""
    return _ForwardedResponse(await _answer(request, access, retriever))


async def _list(request: Request, access: AccessOf, retriever: RetrieverOf) -> Response:
    """Answer as the retriever does, without the indexes that the key may not use."""
    caller, answer = permitted_caller(request), await _answer(request, access, retriever)
    if caller.sees_all or not answer.is_success:
        return _ForwardedResponse(answer)
    try:
        found = IndexList.model_validate_json(await answer.read(MOST_LISTED))
    except aiohttp.ClientError as error:
        raise RetrieverUnavailable("the retriever broke off in the middle of its list of indexes") from error
    except (UnreadableBody, ValidationError) as error:
        raise RetrieverFailed("the retriever's list of indexes cannot be read") from error
    finally:
        answer.close()
    seen = IndexList(
        indexes=[index for index in found.indexes if caller.sees(index.name)],
        unreadable=[index for index in found.unreadable if caller.sees(index.name)],
    )
    return Response(seen.model_dump_json(), media_type="application/json")


async def _answer(request: Request, access: Access, retriever: RemoteRetriever) -> PeerResponse:
    """Forward a request to a path that is rebuilt from the checked index and document."""
    target = _PARAMETER.sub(lambda found: segment(request.path_params[found[1]]), request.scope["route"].path)
    if request.scope["query_string"]:
        target += f"?{request.scope['query_string'].decode('ascii')}"
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    received = asyncio.Event() if has_body else None
    body = bodies.chunks(request, access, received) if has_body else None
    answer = retriever.forward(
        request.method, target, _selected(request.headers, REQUEST_HEADERS), body, visit_of(request).caller
    )
    return await bodies.while_connected(request, answer, received)


def _selected(headers: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


HANDLERS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    indexes.list_indexes: _list,
}


def _forwarded(route: APIRoute) -> APIRoute:
    """Return a route with the path, parameters, and description of this one that is forwarded."""
    handler, found = HANDLERS.get(route.endpoint, _forward), copy(route)
    found.app = APIRoute(route.path, handler, methods=route.methods, dependencies=route.dependencies).app
    found.responses = {**openapi.problems(502), **route.responses}
    return found


router = APIRouter(routes=[_forwarded(route) for route in indexes.router.routes if isinstance(route, APIRoute)])
