"""Read and send bodies within their limits, and notice clients that disconnect."""

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

    Args:
        request: The request.
        access: The limits of the process.
        most: The most bytes, if fewer than limits.body_bytes.

    Raises:
        BodyTooLarge: If the body has too many bytes: before reading if it declares its length, else while reading.
        Overloaded: If other requests hold too many bytes.
        BodyTooSlow: If the body does not arrive in time.
    """
    limit, seconds = access.settings.limits.body_bytes, access.settings.body_seconds
    limit = limit if most is None else min(limit, most)
    declared, visit = request.headers.get("content-length", ""), visit_of(request)
    if declared.isdecimal():
        if int(declared) > limit:
            raise _too_large(limit)
        access.bytes_in_flight.check(visit.caller, int(declared))
    take = visit.reserve_bytes(access)
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


async def read_model(request: Request, access: Access, model: type[Model], *, default: bytes = b"") -> Model:
    """Return the body as a model, or `default` as a model if the body is empty.

    Raises:
        BoundaryMorphError: As `read` and `decode` do.
        ValidationError: If the body does not fit the model.
    """
    body = (await read(request, access)).strip() or default
    return await off_loop(request, access, body, lambda: model.model_validate(decode(body, access.settings.limits)))


def decode(body: bytes, limits: Limits) -> Any:
    """Return the value of a JSON body.

    Raises:
        InvalidInput: If the body is not JSON.
        LimitExceeded: If a list or an object has more elements than any of a request may have.
    """
    value = reading.parse(body)
    most = max(limits.dimension, limits.pool, limits.known_scores)
    for name, count in _sizes(value):
        reading.check_bound(name, count, most, "elements (limits.dimension, limits.pool, limits.known_scores)")
    return value


async def off_loop(request: Request, access: Access, body: bytes, parse: Callable[[], Result]) -> Result:
    """Return `parse()`, called in a thread if the body is large.

    Raises:
        Overloaded: If the threads have too much work. Errors of `parse` pass through.
    """
    return parse() if len(body) < LARGE else await access.work.parsing.run(parse, caller=visit_of(request).caller)


def _sizes(value: Any, within: str = "") -> Iterator[tuple[str, int]]:
    """Yield the names and sizes of lists and objects in an object, two levels deep."""
    for name, member in value.items() if isinstance(value, dict) else ():
        if isinstance(member, list | dict):
            yield within + name, len(member)
        if not within:
            yield from _sizes(member, f"{name}.")


async def chunks(request: Request, access: Access, received: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    """Yield the body as it arrives, for uploads of any size.

    Args:
        request: The request.
        access: The limits of the process.
        received: An event to set when the whole body has arrived.

    Raises:
        BodyTooSlow: If nothing arrives for too long.
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
    """Return the chunks of the body as they arrive.

    Args:
        request: The request.
        access: The limits of the process.
        held: The bytes that the caller keeps in memory at a time. They, or the declared length if it is less, count
            towards limits.bytes_in_flight until the request ends.

    Raises:
        Overloaded: If other requests hold too many bytes.
    """
    declared = request.headers.get("content-length", "")
    size = min(held, int(declared)) if declared.isdecimal() else held
    take = visit_of(request).reserve_bytes(access)
    take(min(size, access.bytes_in_flight.most_alone))
    return chunks(request, access)


def spooling(request: Request, access: Access) -> Callable[[int], None]:
    """Return a function that counts the bytes that an upload keeps in a temporary file.

    They count towards limits.bytes_in_flight until the request ends, as /tmp is often in memory. One upload may have
    half of a caller's share: beyond it the function raises BodyTooLarge, and Overloaded if others have too many bytes.
    """
    take = visit_of(request).reserve_bytes(access)
    most, kept = access.bytes_in_flight.most_alone // 2, 0

    def keep(size: int) -> None:
        nonlocal kept
        kept += size
        if kept > most:
            raise BodyTooLarge(
                f"nothing was written, as with strict=true an upload may have {most:,} bytes here (half of a key's "
                "share of limits.bytes_in_flight); send smaller uploads, or leave out strict"
            )
        take(size)

    return keep


async def while_connected(
    request: Request, work: Coroutine[Any, Any, Result], received: asyncio.Event | None = None
) -> Result:
    """Return the result of the work, or cancel the work if the client disconnects.

    The work is cancelled once, and its end is awaited.

    Args:
        request: The request, whose body has been read unless the work reads it.
        work: The work.
        received: If the work reads the body, the event that `chunks` sets.

    Raises:
        ClientDisconnect: If the client disconnects before the work is done.
    """

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


class StreamedResponse(StreamingResponse):
    """A response that sends its body as long as the client is connected.

    If the client disconnects, the task that sends is cancelled once, and its end is awaited. Starlette's class cancels
    such a task at every turn of the event loop.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await while_connected(Request(scope, receive), self.stream_response(send))


async def hang_up(receive: Receive) -> None:
    """Close the connection to a client without sending the rest of its answer."""
    # ASGI has no message for this. If an application just returns, the connection stays open until it is read.
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
        await _disconnected(receive)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is over this service's limit of {limit:,} bytes")


LARGE_ANSWER = 2**17  # bytes of a piece of a large answer


async def send_in_pieces(message: Message, send: Send) -> None:
    """Send a message of an answer, with a large body in pieces.

    Each piece is sent when the client has taken the one before it.
    """
    body = message.get("body", b"")
    for begin in range(0, len(body), LARGE_ANSWER) or (0,):
        piece = body[begin : begin + LARGE_ANSWER]
        more = message.get("more_body", False) or begin + LARGE_ANSWER < len(body)
        await send({**message, "body": piece, "more_body": more})
