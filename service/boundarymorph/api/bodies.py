"""What surrounds every route: bodies of requests and answers within their limits, clients that disconnect, paths, and
middleware."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from http import HTTPMethod
from typing import Any, TypeVar
from urllib.parse import quote, unquote
from uuid import uuid4

from fastapi import Request
from pydantic import BaseModel
from starlette.convertors import PathConvertor, StringConvertor, register_url_convertor
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boundarymorph import reading
from boundarymorph.access.callers import Forbidden, Origins, UnsupportedMediaType
from boundarymorph.access.limits import Access, Decision
from boundarymorph.api import problems
from boundarymorph.errors import BodyTooLarge, BodyTooSlow, LimitExceeded, Overloaded
from boundarymorph.inference.concurrency import CALLER, end
from boundarymorph.selector.documents import Room
from boundarymorph.settings import Limits
from boundarymorph.telemetry import metrics, tracing

LARGE = 2**15  # bytes from which a body is parsed in a thread instead of on the event loop
Result = TypeVar("Result")
Model = TypeVar("Model", bound=BaseModel)


async def read(request: Request, access: Access, most: int | None = None) -> bytes:
    """Return the whole body, which counts towards limits.bytes_in_hand until the request ends.

    most: bytes, if fewer than limits.body_bytes. Raises BodyTooLarge or Overloaded, at once if the declared length
    exceeds a limit, else without reading further; BodyTooSlow if it does not arrive in time.
    """
    limit, seconds = access.settings.limits.body_bytes, access.settings.body_seconds
    limit = limit if most is None else min(limit, most)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal():
        if int(declared) > limit:
            raise _too_large(limit)
        access.bytes_in_hand.check(CALLER.get(), int(declared))
    take = request.state.until_end.enter_context(access.bytes_in_hand.holding(CALLER.get()))
    chunks, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                take(len(chunk))
                chunks.append(chunk)
    except TimeoutError:
        raise BodyTooSlow(f"only {size:,} bytes of the body arrived within {seconds:g} seconds") from None
    return b"".join(chunks)


async def parsed(request: Request, access: Access, model: type[Model], *, default: bytes = b"") -> Model:
    """Return the body as a model. default: in place of an empty body. Raises as `read` and `decoded` do, and pydantic's
    ValidationError."""
    body = (await read(request, access)).strip() or default
    return await off_loop(access, body, lambda: model.model_validate(decoded(body, access.settings.limits)))


def decoded(body: bytes, limits: Limits) -> Any:
    """Return the value of a JSON body. Raises InvalidInput for what is not JSON, and LimitExceeded for a list that is
    longer than any list of a request may be."""
    value = reading.parse(body)
    check_lists(value, limits)
    return value


def check_lists(value: Any, limits: Limits) -> None:
    """Raise LimitExceeded for a list that is longer than any list of a request may be."""
    most = max(limits.dimension, limits.pool)
    for name, count in _lists(value):
        reading.bound(name, count, most, "elements of a list (limits.dimension, limits.pool)")


async def off_loop(access: Access, body: bytes, parse: Callable[[], Result]) -> Result:
    """Return `parse()`, called in a thread if the body is large. Raises what `parse` does, and Overloaded."""
    return parse() if len(body) < LARGE else await access.work.parsing.run(parse)


def _lists(value: Any, within: str = "") -> Iterator[tuple[str, int]]:
    """Yield name and length of each list in an object, and in the objects in it."""
    for name, member in value.items() if isinstance(value, dict) else ():
        if isinstance(member, list):
            yield within + name, len(member)
        elif not within:
            yield from _lists(member, f"{name}.")


async def chunks(request: Request, access: Access, received: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    """Yield the body as it arrives, for uploads of any size. received: set when all has arrived.

    Raises BodyTooSlow if nothing arrives for too long.
    """
    seconds, size, stream = access.settings.body_pause_seconds, 0, request.stream()
    while True:
        try:
            async with asyncio.timeout(seconds):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise BodyTooSlow(f"nothing arrived for {seconds:g} seconds after {size:,} bytes of the body") from None
        if chunk is None:
            break
        size += len(chunk)
        yield chunk
    if received is not None:
        received.set()


def streamed(
    request: Request, access: Access, held: int, received: asyncio.Event | None = None
) -> AsyncIterator[bytes]:
    """Return the chunks of the body as they arrive. held: bytes that are kept in memory at a time; these, or the
    declared length if it is less, count towards limits.bytes_in_hand until the request ends. received: set when all has
    arrived. Raises Overloaded."""
    declared = request.headers.get("content-length", "")
    size = min(held, int(declared)) if declared.isdecimal() else held
    take = request.state.until_end.enter_context(access.bytes_in_hand.holding(CALLER.get()))
    take(min(size, access.bytes_in_hand.alone))
    return chunks(request, access, received)


async def while_connected(
    request: Request, work: Coroutine[Any, Any, Result], received: asyncio.Event | None = None
) -> Result:
    """Return the result of the work. If the client disconnects, cancel it once, await its end, and raise
    ClientDisconnect. Call this after the body has been read, or with what `chunks` sets, if the work reads it."""

    async def disconnected() -> None:
        if received is not None:
            await received.wait()
        await _disconnected(request.receive)

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        await end((working, leaving))


class Streamed(StreamingResponse):
    """Sends its body as long as the client is connected, by a task that is then cancelled once and awaited to its end.
    Starlette's class cancels such a task at every turn of the event loop.

    received: as of `while_connected`, of a body that is read meanwhile.
    """

    received: asyncio.Event | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await while_connected(Request(scope, receive), self.stream_response(send), self.received)


def has_left(receive: Receive) -> bool:
    """Whether the connection to a client is closed, also where its request is not read to the end. It shows when
    something has been sent."""
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    return transport is not None and transport.is_closing()


async def hang_up(receive: Receive) -> None:
    """Close the connection to a client without sending the rest of its answer."""
    # ASGI has no message for this, and an application that returns early leaves the connection open until it is read.
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
        await _disconnected(receive)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is over this service's limit of {limit:,} bytes")


LARGE_ANSWER = 2**17  # bytes from which an answer is counted, and sent in pieces


async def made(access: Access, make: Callable[[], bytes], *, large: bool = True) -> bytes:
    """Return what `make` makes, within limits.answer_bytes. large: whether to make it in a thread.

    Raises LimitExceeded, and Overloaded.
    """
    content = await access.work.parsing.run(make) if large else make()
    Room(answer=access.settings.limits.answer_bytes).check_answer(len(content))
    return content


async def sent(message: Message, send: Send) -> None:
    """Send a message of an answer: its body in pieces, each when the one before it has left for the client."""
    body = message.get("body", b"")
    for begin in range(0, len(body), LARGE_ANSWER) or (0,):
        piece = body[begin : begin + LARGE_ANSWER]
        more = message.get("more_body", False) or begin + LARGE_ANSWER < len(body)
        await send({**message, "body": piece, "more_body": more})


ENCODED_SLASH = "%2F"


class _IndexName(StringConvertor):
    """The name of an index: one segment of the path, in which a slash of the name, STORE/TABLE, is encoded."""

    def convert(self, value: str) -> str:
        return value.replace(ENCODED_SLASH, "/")


class _AnyText(PathConvertor):
    """The rest of a path, line ends included: Starlette's `path` ends there, and would find another document."""

    regex = "(?s:.*)"


register_url_convertor("text", _AnyText())
register_url_convertor("index", _IndexName())


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


class Paths(Middleware):
    """ASGI middleware that leaves the encoded slash in the name of an index, STORE/TABLE, as it is, so that the name
    stays one segment of the path: servers decode paths before they are matched. It answers a path with a slash at its
    end as the path without, if only that has a route.

    The latter not for DELETE: some clients resolve /indexes/a/documents/.. to /indexes/a/ and would delete the index.
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


class Observed(Middleware):
    """ASGI middleware that identifies, times and logs requests. A request's id is the caller's own if that is a plain
    word; it is in every log line and in the response, which also has Server-Timing and the caller's rate limits. The
    time to the end of the response is measured by route and status. The log gets method, path, status and the key's
    name, never a query or a text."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get(tracing.REQUEST_ID, "")
        request_id = given if _GIVEN_ID.fullmatch(given) else uuid4().hex
        token, state = tracing.request_id.set(request_id), scope.setdefault("state", {})
        start = time.perf_counter()
        status = 500

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[tracing.REQUEST_ID] = request_id
                headers[SERVER_TIMING] = tracing.header(stages | {"total": time.perf_counter() - start})
                headers.update(_rate_limits(state.get("decision")))
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


class FromAllowed(Middleware):
    """ASGI middleware that refuses requests to other hosts, from pages of other sites, and in other content types."""

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


class InPieces(Middleware):
    """ASGI middleware that closes `request.state.until_end`, an ExitStack, when its request has been answered, and
    sends large answers in pieces, no faster than they are read. Until then they count towards limits.bytes_in_hand."""

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
                        held.enter_context(access.bytes_in_hand.holding(CALLER.get()))(len(message.get("body", b"")))
                    except (LimitExceeded, Overloaded) as error:
                        refused = True
                        refusal = await problems.refused(Request(scope), error)
                        await refusal(scope, receive, send)
                        return
                    await send(begun)
                await sent(message, send)

        with ExitStack() as held:
            scope["state"]["until_end"] = held
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


def _rate_limits(decision: Decision | None) -> dict[str, str]:
    """Return the headers that tell a caller's rate limits."""
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
    return tracing.serving(_method(scope), Headers(scope=scope), request_id)


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in HTTPMethod.__members__ else "other"


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path_format", "unmatched")


def _tell(scope: Scope, status: int, seconds: float) -> None:
    method, route = _method(scope), _route(scope)
    metrics.http_seconds.labels(method, route, status).observe(seconds)
    if route not in _QUIET:
        path, caller = _path(scope), scope["state"].get("caller")
        fields = {"method": method, "path": path, "status": status, "seconds": round(seconds, 6), "caller": caller}
        _log.info("%s %s %d %.1f ms %s", method, path, status, seconds * 1e3, caller or "-", extra={"fields": fields})


def _path(scope: Scope) -> str:
    """Return the path as sent, percent-encoded and in printable ASCII, so that none can forge a log line."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return _UNPRINTABLE.sub(lambda found: b"%%%02X" % ord(found[0]), raw).decode("ascii")
