"""Wrap routes in middleware for paths, ids, logs, hosts, large answers, and errors."""

from __future__ import annotations

import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from http import HTTPMethod
from urllib.parse import quote, unquote
from uuid import uuid4

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boundarymorph.access.callers import Forbidden, Origins, UnsupportedMediaType
from boundarymorph.access.limits import Access
from boundarymorph.access.rates import Decision
from boundarymorph.api import problems
from boundarymorph.api.bodies import LARGE, send_in_pieces
from boundarymorph.api.visit import VISIT, Visit, visit_of
from boundarymorph.errors import LimitExceeded, Overloaded
from boundarymorph.telemetry import metrics, tracing

ENCODED_SLASH = "%2F"  # in the name of an index
SERVER_TIMING = "Server-Timing"
STREAMS = ("text/event-stream", "application/x-ndjson")
SECURITY = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_UNPRINTABLE = re.compile(rb"[^!-~]")
_QUIET = {"/livez", "/readyz", "/health", "/metrics"}
_log = logging.getLogger("boundarymorph.access_log")


class Middleware(ABC):
    """The base of ASGI middleware for HTTP requests; other messages pass unchanged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.answer if scope["type"] == "http" else self._app)(scope, receive, send)

    @abstractmethod
    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, in most cases by the application."""


class PathCorrection(Middleware):
    """ASGI middleware that corrects paths before they are matched.

    Servers decode paths. This class keeps the encoded slash in the name of an index, STORE/TABLE, so that the name
    stays one segment. A path that ends with a slash is answered like the path without it if only the latter has a
    route. DELETE is an exception: some clients resolve /indexes/a/documents/.. to /indexes/a/ and would delete the
    index.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        super().__init__(app)
        self._routes = routes

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        root, of_indexes, rest = raw.partition(b"/indexes/")
        name, slash, document = rest.partition(b"/")
        if of_indexes and not root and b"%2f" in name.lower():
            kept = ENCODED_SLASH.join(unquote(part) for part in re.split("%2[Ff]", name.decode("latin-1")))
            scope["path"] = f"/indexes/{kept}{unquote((slash + document).decode('latin-1'))}"
        without = {**scope, "path": scope["path"].removesuffix("/")}
        slashed = without["path"] != scope["path"] and scope["method"] != "DELETE"
        if slashed and not self._has(scope) and self._has(without):
            scope["path"] = without["path"]
        await self._app(scope, receive, send)

    def _has(self, scope: Scope) -> bool:
        return any(route.matches(scope)[0] is not Match.NONE for route in self._routes)


class RequestLog(Middleware):
    """ASGI middleware that identifies, times and logs requests.

    A request's id is the caller's own if that is a plain word. Every log line has it, and so has the response, with
    Server-Timing and the caller's rate limits. Metrics count the time to the end of the response by route and status.
    The log has method, path, status, and the key's name, but never a query or a text.
    """

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get(tracing.REQUEST_ID, "")
        request_id = given if _GIVEN_ID.fullmatch(given) else uuid4().hex
        token = tracing.request_id.set(request_id)
        visit: Visit = scope.setdefault("state", {}).setdefault(VISIT, Visit())
        start = time.perf_counter()
        status = 500

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[tracing.REQUEST_ID] = request_id
                headers[SERVER_TIMING] = tracing.header(stages | {"total": time.perf_counter() - start})
                headers.update(_rate_limits(visit.decision))
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
                if headers.get("content-type", "").startswith(STREAMS):
                    headers["X-Accel-Buffering"] = "no"  # lets nginx pass each line on at once
            await send(message)

        try:
            with tracing.collect_stages() as stages, _span(scope, request_id) as answered:
                try:
                    await self._app(scope, receive, observed)
                finally:
                    answered(_route(scope), status)
                    _log_request(scope, status, time.perf_counter() - start)
        finally:
            tracing.request_id.reset(token)


class OriginCheck(Middleware):
    """ASGI middleware that refuses other hosts, pages of other sites, and other content types."""

    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        super().__init__(app)
        self._origins = origins

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._origins.check(Headers(scope=scope))
        except (Forbidden, UnsupportedMediaType) as error:
            refusal = await problems.refused(Request(scope), error)
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class LargeAnswers(Middleware):
    """ASGI middleware that sends large answers in pieces, then closes `Visit.until_end`.

    It sends a large answer no faster than the client reads it. Until then the answer counts towards
    limits.bytes_in_flight.
    """

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        access: Access = scope["app"].state.access
        start: Message | None = None
        refused = False

        async def counted(message: Message) -> None:
            nonlocal start, refused
            if message["type"] == "http.response.start":
                length = Headers(raw=message["headers"]).get("content-length", "")
                if length.isdecimal() and int(length) >= LARGE:
                    start = message
                    return
            if not refused:
                begun, start = start, None
                if begun is not None:
                    try:
                        visit.reserve_bytes(access)(len(message.get("body", b"")))
                    except (LimitExceeded, Overloaded) as error:
                        refused = True
                        refusal = await problems.refused(Request(scope), error)
                        await refusal(scope, receive, send)
                        return
                    await send(begun)
                await send_in_pieces(message, send)

        visit = visit_of(scope)
        with visit.until_end:
            await self._app(scope, receive, counted)


class HeadAsGet(Middleware):
    """ASGI middleware that answers HEAD as GET, without the body."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        asked = {**scope, "method": "GET"}
        try:
            await self._app(asked, receive, without_body)
        finally:
            scope.update({"route": asked["route"]} if "route" in asked else {})  # for the metrics


class UnexpectedErrors(Middleware):
    """The innermost ASGI middleware, which turns unexpected exceptions into problems.

    It raises the exception again if a response has begun.
    """

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            answer = problems.unexpected(Request(scope), error)
            if begun:
                raise
            await answer(scope, receive, send)


def _rate_limits(decision: Decision | None) -> dict[str, str]:
    """Return the headers with a caller's rate limits."""
    if decision is None or not decision.limits:
        return {}
    limits = decision.limits
    return {
        "RateLimit-Policy": ", ".join(f"{limit.name};q={limit.quota};w={limit.window}" for limit in limits),
        "RateLimit": ", ".join(f"{limit.name};r={limit.remaining};t={math.ceil(limit.reset)}" for limit in limits),
    }


def _span(scope: Scope, request_id: str) -> AbstractContextManager[Callable[[str, int], None]]:
    if scope["path"] in _QUIET:
        return nullcontext(lambda route, status: None)
    return tracing.server_span(_method(scope), Headers(scope=scope), request_id)


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in HTTPMethod.__members__ else "other"


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path_format", "unmatched")


def _log_request(scope: Scope, status: int, seconds: float) -> None:
    method, route = _method(scope), _route(scope)
    metrics.http_seconds.labels(method, route, status).observe(seconds)
    if route not in _QUIET:
        path, caller = _path(scope), visit_of(scope).name
        fields = {"method": method, "path": path, "status": status, "seconds": round(seconds, 6), "caller": caller}
        _log.info("%s %s %d %.1f ms %s", method, path, status, seconds * 1e3, caller or "-", extra={"fields": fields})


def _path(scope: Scope) -> str:
    """Return the path as sent, in printable ASCII, so that no path can forge a log line."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return _UNPRINTABLE.sub(lambda found: b"%%%02X" % ord(found[0]), raw).decode("ascii")
