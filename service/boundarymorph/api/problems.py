"""Turn errors into HTTP responses: RFC 9457 problem details with stable types."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache
from http import HTTPMethod, HTTPStatus
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from boundarymorph import errors, reading
from boundarymorph.access.callers import Forbidden, Unauthenticated, UnsupportedEncoding, UnsupportedMediaType
from boundarymorph.api.schemas import Problem
from boundarymorph.api.visit import Refusal, visit_of

MEDIA_TYPE = "application/problem+json"
MAX_DETAILS = 20
TAGS = ("numbers", "block")  # the names by which pydantic distinguishes the forms of a vector
MAX_CHARACTERS = 1_000  # most characters of a message, which may quote the caller's input
LONGEST, KEPT = 100, 1_000  # characters of a path that are compared; comparisons that are kept
_POLICY = re.compile("^/p/[^/]+(?=/)")
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


def install(app: FastAPI) -> None:
    """Let an application answer every expected exception of a route with a problem."""
    for kind in (errors.BoundaryMorphError, ValidationError, RequestValidationError, HTTPException, ClientDisconnect):
        app.add_exception_handler(kind, refused)


async def refused(request: Request, error: Exception) -> JSONResponse:
    """Return the response for an error, and log an unexpected one."""
    match error:
        case errors.BoundaryMorphError():
            return _typed(request, error)
        case ValidationError():
            return _invalid(request, error.errors(include_url=False), error.title)
        case RequestValidationError():
            return _invalid(request, error.errors(), "")
        case HTTPException():
            return _http(request, error)
        case ClientDisconnect():  # for the metrics only, as the client has gone
            said = "the connection was closed before the body was complete"
            return respond(request, 400, "client-disconnected", said)
    return unexpected(request, error)


def problem_of(request: Request, error: errors.BoundaryMorphError) -> Problem:
    """Return the problem details of an error, and log it if operators must see it."""
    _log(error)
    return _problem(request, _status(error), error.slug, error.public)


def unexpected(request: Request, error: Exception) -> JSONResponse:
    """Log an unexpected exception, and return the response for it."""
    log.error("unexpected error", exc_info=error)
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
    """Return a problem response, in the wire format of the body or of the route."""
    problem = _problem(request, status, slug, detail, where)
    of_route: Refusal | None = getattr(request.scope.get("route"), "refusal", None)
    refusal = visit_of(request).refusal or of_route
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


def _typed(request: Request, error: errors.BoundaryMorphError) -> JSONResponse:
    status = _status(error)
    _log(error)
    headers = None
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        seconds = error.retry_after if isinstance(error, errors.Overloaded | errors.NotReady) else 1.0
        headers = {"Retry-After": str(math.ceil(seconds))} if math.isfinite(seconds) else None
    elif isinstance(error, UnsupportedEncoding):
        headers = {"Accept-Encoding": "identity"}  # RFC 9110, 15.5.16
    elif status == HTTPStatus.UNAUTHORIZED:
        headers = {"WWW-Authenticate": "Bearer"}
    elif status == HTTPStatus.REQUEST_TIMEOUT:
        headers = {"Connection": "close"}  # the rest of the body may still arrive
    return respond(request, status, error.slug, error.public, headers=headers)


def _log(error: errors.BoundaryMorphError) -> None:
    """Log errors that operators must see: failures, and details that callers may not read."""
    if _status(error) in (HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.BAD_GATEWAY):
        log.error("%s: %s", error.slug, error)
    elif error.public != str(error):
        log.warning("%s: %s", error.slug, error)


def _invalid(request: Request, details: Sequence[ErrorDetails], model: str) -> JSONResponse:
    """Return the response for the mistakes in a body; `model` is the name of the body's model."""
    where = [
        {
            "field": _short(".".join(str(part) for part in detail["loc"] if part not in TAGS)) or "body",
            "message": _short(reading.mistake_message(detail, model)),
        }
        for detail in details[:MAX_DETAILS]
    ]
    first = where[0]
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    said = f"{first['field']}: {first['message']}{more}"
    return respond(request, 422, errors.InvalidInput.slug, said, where=where)


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "…"


def _http(request: Request, error: HTTPException) -> JSONResponse:
    phrase = HTTPStatus(error.status_code).phrase
    detail = str(error.detail)
    headers = dict(error.headers) if error.headers else {}
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        methods = headers["Allow"] = ", ".join(_methods(request))  # Starlette names only those of one route
        detail = f"this path takes {methods}"
    if error.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        nearest = _nearest(request)
        visit_of(request).refusal = getattr(nearest, "refusal", None)
        if error.status_code == HTTPStatus.NOT_FOUND and nearest is not None:
            detail = f"there is nothing at this path; did you mean {nearest.path_format}?"
    slug = phrase.lower().replace(" ", "-")
    return respond(request, error.status_code, slug, detail, headers=headers)


def _methods(request: Request) -> list[str]:
    """Return the methods of all routes at the path of a request."""
    scope = request.scope
    routes = [route for route in request.app.router.routes if route.matches(scope)[0] is not Match.NONE]
    return [
        method
        for method in HTTPMethod
        if any(
            route.matches({**scope, "method": "GET" if method == "HEAD" else str(method)})[0] is Match.FULL
            for route in routes
        )
    ]


def _nearest(request: Request) -> APIRoute | None:
    """Return the route whose path is most like the request's, or None if no path is similar."""
    routes = [route for route in request.app.router.routes if isinstance(route, APIRoute) and route.include_in_schema]
    known = {route.path_format: route for route in reversed(routes)}
    found = _closest_path(request.scope["path"][:LONGEST], tuple(reversed(known)))
    return known[found] if found else None


@lru_cache(KEPT)
def _closest_path(path: str, known: tuple[str, ...]) -> str | None:
    found = get_close_matches(_POLICY.sub("", path.lower()), known, n=1)
    return found[0] if found else None
