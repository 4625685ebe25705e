"""Reading request bodies within their limits."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import Request

from boundarymorph.api.problems import BodyTooLarge


async def read(request: Request, limit: int) -> bytes:
    """The whole body. Raises BodyTooLarge without reading further, or at once when its length is declared."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


async def chunks(request: Request) -> AsyncIterator[bytes]:
    """The body as it comes, for uploads of any size."""
    async for chunk in request.stream():
        yield chunk


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is over this service's limit of {limit:,} bytes")
