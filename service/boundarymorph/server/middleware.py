"""Middleware around every request: its id, span, duration and resources, and headers of every response."""

from __future__ import annotations

import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from http import HTTPMethod
from urllib.parse import quote, unquote
from uuid import uuid4

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boundarymorph.access import bodies
from boundarymorph.access.access import Access
from boundarymorph.access.callers import Forbidden, Origins, UnsupportedMediaType
from boundarymorph.access.limits import Decision
from boundarymorph.api import dependencies, problems
from boundarymorph.errors import LimitExceeded, Overloaded
from boundarymorph.inference.concurrency import CALLER
from boundarymorph.telemetry import metrics, tracing

SERVER_TIMING = "Server-Timing"
SECURITY = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_UNPRINTABLE = re.compile(rb"[^!-~]")
_QUIET = {"/livez", "/readyz", "/health", "/metrics"}
_log = logging.getLogger("boundarymorph.access_log")


class Middleware(ABC):
    """ASGI middleware around HTTP requests; anything else passes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.answer if scope["type"] == "http" else self._app)(scope, receive, send)

    @abstractmethod
    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, most of all by the application."""


class EncodedSlash(Middleware):
    """ASGI middleware that leaves the encoded slash in the name of an index, STORE/TABLE, as it is, so that the name
    stays one segment of the path. Servers decode paths before they are matched."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        root, of_indexes, rest = raw.partition(b"/indexes/")
        name, slash, document = rest.partition(b"/")
        if of_indexes and not root and b"%2f" in name.lower():
            kept = dependencies.ENCODED_SLASH.join(unquote(part) for part in re.split("%2[Ff]", name.decode("latin-1")))
            path = f"/indexes/{kept}{unquote((slash + document).decode('latin-1'))}"
            scope = {**scope, "path": path}
        await self._app(scope, receive, send)


class Observed(Middleware):
    """ASGI middleware that identifies, times and logs requests. A request's id is the caller's own if that is a plain
    word; it is in every log line and in the response, which also has Server-Timing. The time to the end of the response
    is measured by route and status. The log gets method, path, status and the key's name, never a query or a text."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get(tracing.REQUEST_ID, "")
        request_id = given if _GIVEN_ID.fullmatch(given) else uuid4().hex
        token = tracing.request_id.set(request_id)
        start = time.perf_counter()
        status = 500

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[tracing.REQUEST_ID] = request_id
                headers[SERVER_TIMING] = tracing.header(stages | {"total": time.perf_counter() - start})
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            with tracing.collecting() as stages, _span(scope, request_id) as answered:
                try:
                    await self._app(scope, receive, observed)
                finally:
                    answered(_route(scope), status)
                    _tell(scope, status, time.perf_counter() - start)
        finally:
            tracing.request_id.reset(token)


class RateLimitHeaders(Middleware):
    """ASGI middleware that adds the caller's rate limits to every response, as RateLimit-Policy and RateLimit."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def announced(message: Message) -> None:
            decision: Decision | None = scope.get("state", {}).get("decision")
            if message["type"] == "http.response.start" and decision is not None and decision.limits:
                headers = MutableHeaders(scope=message)
                headers["RateLimit-Policy"] = ", ".join(
                    f"{limit.name};q={limit.quota};w={limit.window}" for limit in decision.limits
                )
                headers["RateLimit"] = ", ".join(
                    f"{limit.name};r={limit.remaining};t={math.ceil(limit.reset)}" for limit in decision.limits
                )
            await send(message)

        await self._app(scope, receive, announced)


class FromAllowed(Middleware):
    """ASGI middleware that refuses requests to other hosts, from pages of other sites, and in other content types."""

    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        super().__init__(app)
        self._origins = origins

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._origins.check(Headers(scope=scope))
        except (Forbidden, UnsupportedMediaType) as error:
            refusal = await problems.typed(Request(scope), error)
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class UntilEnd(Middleware):
    """ASGI middleware that closes `request.state.until_end`, an ExitStack, when its request has been answered."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as until_end:
            scope.setdefault("state", {})["until_end"] = until_end
            await self._app(scope, receive, send)


class InPieces(Middleware):
    """ASGI middleware that sends large answers in pieces, no faster than they are read. Until then they count towards
    limits.bytes_in_hand."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        access: Access = scope["app"].state.access
        start: Message | None = None
        refused = False

        async def counted(message: Message) -> None:
            nonlocal start, refused
            if message["type"] == "http.response.start" and _length(message) >= bodies.LARGE:
                start = message
            elif not refused:
                begun, start = start, None
                if begun is not None:
                    try:
                        held.enter_context(access.bytes_in_hand.holding(CALLER.get()))(len(message.get("body", b"")))
                    except (LimitExceeded, Overloaded) as error:
                        refused = True
                        refusal = await problems.typed(Request(scope), error)
                        await refusal(scope, receive, send)
                        return
                    await send(begun)
                await bodies.sent(message, send)

        with ExitStack() as held:
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


class Unexpected(Middleware):
    """The innermost ASGI middleware: logs an unexpected exception with its request's id and answers with a problem, or
    raises it again if a response has begun."""

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


def _length(start: Message) -> int:
    """Return the length of an answer; 0 if it is not known when it begins."""
    length = Headers(raw=start["headers"]).get("content-length", "")
    return int(length) if length.isdecimal() else 0


def _span(scope: Scope, request_id: str) -> AbstractContextManager[Callable[[str, int], None]]:
    if scope["path"] in _QUIET:
        return nullcontext(lambda route, status: None)
    return tracing.serving(_method(scope), Headers(scope=scope), request_id)


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in HTTPMethod.__members__ else "other"


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path_format", "unmatched")


def _tell(scope: Scope, status: int, seconds: float) -> None:
    method, route = _method(scope), _route(scope)
    metrics.http_seconds.labels(method, route, status).observe(seconds)
    if route not in _QUIET:
        path, caller = _path(scope), scope.get("state", {}).get("caller")
        fields = {"method": method, "path": path, "status": status, "seconds": round(seconds, 6), "caller": caller}
        _log.info("%s %s %d %.1f ms %s", method, path, status, seconds * 1e3, caller or "-", extra={"fields": fields})


def _path(scope: Scope) -> str:
    """Return the path as sent, percent-encoded and in printable ASCII, so that none can forge a log line."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return _UNPRINTABLE.sub(lambda found: b"%%%02X" % ord(found[0]), raw).decode("ascii")
