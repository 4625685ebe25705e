"""Around every request: its id, its span, how long it took, and headers that every answer has."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from http import HTTPMethod
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boundarymorph.telemetry import logs, metrics, timing, tracing

REQUEST_ID = "X-Request-ID"
SERVER_TIMING = "Server-Timing"
SECURITY = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_QUIET = {"/livez", "/readyz", "/metrics"}
_log = logging.getLogger("boundarymorph.access")


class Observed:
    """ASGI middleware. A request's id is the caller's own, where that is a plain word, and is in every log line and in
    the answer, which also says where the time went until it began. Measured is the time to the end of the answer, by
    route and status; logged are method, path and status, never a query or a text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _GIVEN_ID.fullmatch(given) else uuid4().hex
        token = logs.request_id.set(request_id)
        start = time.perf_counter()
        status = 500

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                headers[SERVER_TIMING] = timing.header(stages | {"total": time.perf_counter() - start})
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            with timing.collecting() as stages, _span(scope, request_id) as answered:
                try:
                    await self._app(scope, receive, observed)
                finally:
                    answered(_route(scope), status)
                    _tell(scope, status, time.perf_counter() - start)
        finally:
            logs.request_id.reset(token)


def _span(scope: Scope, request_id: str) -> AbstractContextManager[Callable[[str, int], None]]:
    if scope["path"] in _QUIET:
        return nullcontext(lambda route, status: None)
    return tracing.serving(_method(scope), Headers(scope=scope), request_id)


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in HTTPMethod.__members__ else "other"


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", "unmatched")


def _tell(scope: Scope, status: int, seconds: float) -> None:
    method, route = _method(scope), _route(scope)
    metrics.http_seconds.labels(method, route, status).observe(seconds)
    if route not in _QUIET:
        fields = {"method": method, "path": scope["path"], "status": status, "seconds": round(seconds, 6)}
        _log.info("%s %s %d %.1f ms", method, scope["path"], status, seconds * 1e3, extra={"fields": fields})
