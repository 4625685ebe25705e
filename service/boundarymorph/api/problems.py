"""The only place that turns errors into HTTP responses: RFC 9457 problem details with stable types."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from boundarymorph import errors, parsing
from boundarymorph.access.keys import Forbidden, Unauthenticated
from boundarymorph.access.origins import UnsupportedMediaType
from boundarymorph.api import paths
from boundarymorph.api.schemas import Problem

MEDIA_TYPE = "application/problem+json"
MAX_DETAILS = 20
TAGS = ("numbers", "block")  # with which pydantic distinguishes the forms of a vector
MAX_CHARACTERS = 1_000  # of a message, which may quote the caller's input
_IN_JSON = {  # pydantic's names for Python's types, in JSON's
    "model_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "list_type": "Input should be an array",
}
REFUSAL = "refusal"  # attribute of a request's state: a function from a Problem to status and body
Refusal = Callable[[Problem], tuple[int, Any]]
log = logging.getLogger(__name__)


class UnknownDocument(errors.BoundaryMorphError, LookupError):
    """The index has no document with this id."""


STATUS: dict[type[errors.BoundaryMorphError], HTTPStatus] = {
    errors.BodyTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.BodyTooSlow: HTTPStatus.REQUEST_TIMEOUT,
    UnsupportedMediaType: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    UnknownDocument: HTTPStatus.NOT_FOUND,
    errors.NotReady: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.NotInstalled: HTTPStatus.NOT_IMPLEMENTED,
    Unauthenticated: HTTPStatus.UNAUTHORIZED,
    Forbidden: HTTPStatus.FORBIDDEN,
    errors.UnknownIndex: HTTPStatus.NOT_FOUND,
    errors.UnknownCalibration: HTTPStatus.NOT_FOUND,
    errors.UnknownPolicy: HTTPStatus.NOT_FOUND,
    errors.IndexConflict: HTTPStatus.CONFLICT,
    errors.EmptyIndex: HTTPStatus.CONFLICT,
    errors.InvalidInput: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.StorageFull: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.StorageUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ModelUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.Overloaded: HTTPStatus.TOO_MANY_REQUESTS,
    errors.DeadlineExceeded: HTTPStatus.GATEWAY_TIMEOUT,
    errors.ScorerUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ScorerFailed: HTTPStatus.BAD_GATEWAY,
    errors.RetrieverUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.RetrieverFailed: HTTPStatus.BAD_GATEWAY,
    errors.EncoderUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.EncoderFailed: HTTPStatus.BAD_GATEWAY,
    errors.BoundaryMorphError: HTTPStatus.INTERNAL_SERVER_ERROR,
}


def install(app: FastAPI, refusal_at: Callable[[str | None], Refusal | None]) -> None:
    """Register handlers that turn every expected exception of a route into a problem response.

    refusal_at: returns how the route at a path refuses requests, None for problem details.
    """
    app.state.refusal_at = refusal_at
    app.add_exception_handler(errors.BoundaryMorphError, typed)
    app.add_exception_handler(ValidationError, _invalid)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _disconnected)


def of(request: Request, error: errors.BoundaryMorphError) -> Problem:
    """Return one of our errors as problem details."""
    _log(error)
    return _problem(request, _status(error), error.slug, error.public)


def unexpected(request: Request) -> JSONResponse:
    """Return the response for an unexpected exception."""
    return respond(request, 500, "internal-error", "an unexpected error; the log of the service has the details")


def respond(
    request: Request,
    status: int,
    slug: str,
    detail: str,
    *,
    where: list[dict[str, str]] | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """Return a problem response, or that of `request.state.refusal` for a route with another wire format."""
    problem = _problem(request, status, slug, detail, where)
    refusal = getattr(request.state, REFUSAL, None)
    if refusal is not None:
        status, body = refusal(problem)
        return JSONResponse(body, status_code=status, headers=headers)
    return JSONResponse(
        problem.model_dump(exclude_none=True), status_code=status, headers=headers, media_type=MEDIA_TYPE
    )


def _problem(
    request: Request, status: int, slug: str, detail: str, where: list[dict[str, str]] | None = None
) -> Problem:
    return Problem(
        type=errors.PROBLEM_TYPE + slug,
        title=slug.replace("-", " ").capitalize(),
        status=status,
        detail=_short(detail),
        instance=quote(request.scope["raw_path"], safe="%/"),
        errors=where,
    )


def _status(error: errors.BoundaryMorphError) -> HTTPStatus:
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


async def typed(request: Request, error: Exception) -> JSONResponse:
    """Return the response for one of our errors."""
    assert isinstance(error, errors.BoundaryMorphError)
    status = _status(error)
    _log(error)
    seconds = error.retry_after if isinstance(error, errors.Overloaded | errors.NotReady) else 1.0
    again = status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS) and math.isfinite(seconds)
    headers = {"Retry-After": str(math.ceil(seconds))} if again else None
    if status == HTTPStatus.UNAUTHORIZED:
        headers = {"WWW-Authenticate": "Bearer"}
    if status == HTTPStatus.REQUEST_TIMEOUT:
        headers = {"Connection": "close"}  # the rest of the body may still arrive
    return respond(request, status, error.slug, error.public, headers=headers)


def _log(error: errors.BoundaryMorphError) -> None:
    """Log what is for operators: what is broken, and what callers may not read."""
    if _status(error) in (HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.BAD_GATEWAY):
        log.error("%s: %s", error.slug, error)
    elif error.public != str(error):
        log.warning("%s: %s", error.slug, error)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ValidationError | RequestValidationError)
    details: Sequence[ErrorDetails] = (
        error.errors(include_url=False, include_input=False) if isinstance(error, ValidationError) else error.errors()
    )
    where = [
        {
            "field": _short(".".join(str(part) for part in detail["loc"] if part not in TAGS)) or "body",
            "message": _message(detail),
        }
        for detail in details[:MAX_DETAILS]
    ]
    first = where[0]
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return respond(request, 422, errors.InvalidInput.slug, f"{first['field']}: {first['message']}{more}", where=where)


def _message(detail: ErrorDetails) -> str:
    return _IN_JSON.get(detail["type"]) or _short(parsing.in_words(detail))


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "…"


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    detail = phrase if error.detail == phrase else str(error.detail)
    headers = dict(error.headers) if error.headers else {}
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        methods = headers["Allow"] = ", ".join(paths.methods_at(request))  # Starlette names only those of one route
        detail = f"this path takes {methods}"
    if error.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        path = paths.nearest(request)
        setattr(request.state, REFUSAL, request.app.state.refusal_at(path))
        if error.status_code == HTTPStatus.NOT_FOUND and path is not None:
            detail = f"there is nothing at this path; did you mean {path}?"
    return respond(request, error.status_code, phrase.lower().replace(" ", "-"), detail, headers=headers)


async def _disconnected(request: Request, error: Exception) -> JSONResponse:
    """Return a response for the metrics only, as the client has gone."""
    return respond(request, 400, "client-disconnected", "the connection was closed before the body was complete")
