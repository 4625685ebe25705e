"""Reading request bodies within their limits, and noticing that nobody waits for the answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import cache
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Send

from boundarymorph.access.access import Access
from boundarymorph.errors import BodyTooLarge, BodyTooSlow, LimitExceeded
from boundarymorph.settings import Limits

LARGE = 2**17  # bytes of a body that is not parsed on the event loop
_STRING_OR_NUMBERS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|\[[-+0-9.eE, \t\r\n]*+', re.DOTALL)
Result = TypeVar("Result")
Model = TypeVar("Model", bound=BaseModel)


async def read(request: Request, access: Access, most: int | None = None) -> bytes:
    """The whole body, which is in hand until the request has ended. most: bytes, if fewer than limits.body_bytes.

    Raises BodyTooLarge or Overloaded without reading further, or at once when its length is declared, and BodyTooSlow.
    """
    limit, seconds = access.settings.limits.body_bytes, access.settings.body_seconds
    limit = limit if most is None else min(limit, most)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal():
        if int(declared) > limit:
            raise _too_large(limit)
        access.bytes_in_hand.check(int(declared))
    take = request.state.until_end.enter_context(access.bytes_in_hand.of_request())
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
        raise BodyTooSlow(f"the body was not there within {seconds:g} seconds; {size:,} bytes were") from None
    return b"".join(chunks)


async def parsed(request: Request, access: Access, model: type[Model]) -> Model:
    """The body as a model. Raises what `read` does, LimitExceeded, Overloaded, and pydantic's ValidationError."""
    body = await read(request, access)

    def parse() -> Model:
        check_lists(body, access.settings.limits)
        return model.model_validate_json(body)

    return await off_loop(access, body, parse)


async def off_loop(access: Access, body: bytes, parse: Callable[[], Result]) -> Result:
    """What parsing the body gives: in a thread, if it is large. Raises what `parse` does, and Overloaded."""
    return parse() if len(body) < LARGE else await access.work.parsing.run(parse)


def bound(field: str, value: int, limit: int, unit: str) -> None:
    """Raises LimitExceeded."""
    if value > limit:
        raise LimitExceeded(f"{field}: over this service's limit of {limit:,} {unit}: {value:,}")


def check_lists(body: bytes, limits: Limits) -> None:
    """Raises LimitExceeded for a JSON body with a list of more numbers than an embedding, or a feature of a pool, may
    have: unparsed, it is a tenth as large.

    Small bodies pass: the parser has a better message for what is wrong with them.
    """
    limit, setting = max((limits.dimension, "limits.dimension"), (limits.pool, "limits.pool"))
    if len(body) < LARGE or not any(
        body.count(b",", *found.span()) >= limit for found in _numbers(2 * limit + 1).finditer(body)
    ):
        return
    for found in _STRING_OR_NUMBERS.finditer(body):  # it may have been in a text
        if body[found.start()] == ord("[") and body.count(b",", *found.span()) >= limit:
            raise LimitExceeded(f"the body has a list of more numbers than any may have here, {limit:,} ({setting})")


async def chunks(request: Request) -> AsyncIterator[bytes]:
    """The body as it comes, for uploads of any size."""
    async for chunk in request.stream():
        yield chunk


def streamed(request: Request, access: Access, held: int) -> AsyncIterator[bytes]:
    """The body as it comes. held: bytes of it that are kept in memory at a time; so many, or all of it if it is
    declared to be shorter, are in hand until the request has ended. Raises Overloaded."""
    declared = request.headers.get("content-length", "")
    size = min(held, int(declared)) if declared.isdecimal() else held
    take = request.state.until_end.enter_context(access.bytes_in_hand.of_request())
    take(min(size, access.settings.limits.bytes_in_hand))
    return chunks(request)


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of the work, which is cancelled when the client goes away: ClientDisconnect. The body is read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def in_time(receive: Receive, send: Send, seconds: float) -> Send:
    """`send` to a client that may take so many seconds to read each message; it is hung up on when it takes longer, and
    ClientDisconnect raised."""

    async def timed(message: Message) -> None:
        try:
            async with asyncio.timeout(seconds):
                await send(message)
        except TimeoutError:
            await _hang_up(receive)
            raise ClientDisconnect from None

    return timed


async def _hang_up(receive: Receive) -> None:
    """End the connection, whatever of an answer is not sent yet, of a client that does not read it."""
    # ASGI has no word for it, and what returns early leaves a connection open that waits until it is read.
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
        await _disconnected(receive)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@cache
def _numbers(characters: int) -> re.Pattern[bytes]:
    """What a JSON list of numbers begins with, if it is at least so long."""
    return re.compile(rb"\[[-+0-9.eE, \t\r\n]{%d,}+" % characters)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is over this service's limit of {limit:,} bytes")
