"""Bodies of requests and answers within their limits, and clients that disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from boundarymorph import reading
from boundarymorph.access.limits import Access
from boundarymorph.api.visit import visit_of
from boundarymorph.errors import BodyTooLarge, BodyTooSlow
from boundarymorph.inference.concurrency import end
from boundarymorph.settings import Limits

LARGE = 2**15  # bytes from which a body is parsed in a thread instead of on the event loop
Result = TypeVar("Result")
Model = TypeVar("Model", bound=BaseModel)


async def read(request: Request, access: Access, most: int | None = None) -> bytes:
    """Return the whole body, which counts towards limits.bytes_in_flight until the request ends.

    most: bytes, if fewer than limits.body_bytes. Raises BodyTooLarge or Overloaded, at once if the declared length
    exceeds a limit, else without reading further; BodyTooSlow if it does not arrive in time.
    """
    limit, seconds = access.settings.limits.body_bytes, access.settings.body_seconds
    limit = limit if most is None else min(limit, most)
    declared, visit = request.headers.get("content-length", ""), visit_of(request)
    if declared.isdecimal():
        if int(declared) > limit:
            raise _too_large(limit)
        access.bytes_in_flight.check(visit.caller, int(declared))
    take = visit.charging(access)
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
    return await off_loop(request, access, body, lambda: model.model_validate(decoded(body, access.settings.limits)))


def decoded(body: bytes, limits: Limits) -> Any:
    """Return the value of a JSON body. Raises InvalidInput if it is not JSON, and LimitExceeded for a list that is
    longer than any list of a request may be."""
    value = reading.parse(body)
    most = max(limits.dimension, limits.pool)
    for name, count in _lists(value):
        reading.check_bound(name, count, most, "elements of a list (limits.dimension, limits.pool)")
    return value


async def off_loop(request: Request, access: Access, body: bytes, parse: Callable[[], Result]) -> Result:
    """Return `parse()`, called in a thread if the body is large. Raises what `parse` does, and Overloaded."""
    return parse() if len(body) < LARGE else await access.work.parsing.run(parse, caller=visit_of(request).caller)


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


def streamed(request: Request, access: Access, held: int) -> AsyncIterator[bytes]:
    """Return the chunks of the body as they arrive. held: bytes that are kept in memory at a time; these, or the
    declared length if it is less, count towards limits.bytes_in_flight until the request ends. Raises Overloaded."""
    declared = request.headers.get("content-length", "")
    size = min(held, int(declared)) if declared.isdecimal() else held
    take = visit_of(request).charging(access)
    take(min(size, access.bytes_in_flight.most_alone))
    return chunks(request, access)


def spooling(request: Request, access: Access) -> Callable[[int], None]:
    """Return what counts the bytes of an upload that are kept in a temporary file, until the request ends.

    They count towards limits.bytes_in_flight, as /tmp is often in memory, and one upload may have half of a caller's
    share. It raises BodyTooLarge beyond that, and Overloaded if others have too many.
    """
    take = visit_of(request).charging(access)
    most, kept = access.bytes_in_flight.most_alone // 2, 0

    def keep(size: int) -> None:
        nonlocal kept
        kept += size
        if kept > most:
            raise BodyTooLarge(
                f"with strict=true, an upload may have {most:,} bytes here (half of a key's share of "
                "limits.bytes_in_flight); nothing was written; send smaller uploads, or leave out strict"
            )
        take(size)

    return keep


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
    Starlette's class cancels such a task at every turn of the event loop."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await while_connected(Request(scope, receive), self.stream_response(send))


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


async def sent(message: Message, send: Send) -> None:
    """Send a message of an answer: its body in pieces, each when the one before it has left for the client."""
    body = message.get("body", b"")
    for begin in range(0, len(body), LARGE_ANSWER) or (0,):
        piece = body[begin : begin + LARGE_ANSWER]
        more = message.get("more_body", False) or begin + LARGE_ANSWER < len(body)
        await send({**message, "body": piece, "more_body": more})
