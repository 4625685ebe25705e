"""Compress answers for clients that accept gzip."""

from __future__ import annotations

import asyncio
import re
import zlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from boundarymorph.api.bodies import LARGE
from boundarymorph.api.middleware import Middleware
from boundarymorph.api.visit import visit_of

LEAST = 2**11  # bytes of the smallest answer that is worth compressing
LEVEL = 1  # level 6 takes five times as long for lists of numbers, and saves another fifth
GZIP_FORMAT = 31  # for zlib: the largest window, with the header of gzip
PAGES = ("image/svg", "text/css", "text/html", "text/javascript")
TEXT = ("application/json", "text/", *PAGES)
_ACCEPTED = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))")


class Compression(Middleware):
    """ASGI middleware that compresses text.

    An answer is compressed if it is part of a page, if it declares a length of at least LEAST, or if its route sets
    `Visit.compressible`. Each part of a stream is flushed, so that the client can read it when it arrives.
    """

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted = _ACCEPTED.search(Headers(scope=scope).get("accept-encoding", "").lower())
        packer = None

        async def compressed(message: Message) -> None:
            nonlocal packer
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if _is_compressible(scope, headers):
                    headers.add_vary_header("Accept-Encoding")
                    if accepted:
                        headers["Content-Encoding"] = "gzip"
                        del headers["Content-Length"]
                        packer = zlib.compressobj(LEVEL, wbits=GZIP_FORMAT)
            elif packer is not None:
                message = {**message, "body": await _packed(packer, message)}
            await send(message)

        await self._app(scope, receive, compressed)


def _is_compressible(scope: Scope, headers: MutableHeaders) -> bool:
    kind, long = headers.get("Content-Type", ""), int(headers.get("Content-Length", 0)) >= LEAST
    wanted = long or visit_of(scope).compressible or kind.startswith(PAGES)
    return wanted and "Content-Encoding" not in headers and kind.startswith(TEXT)


async def _packed(packer: zlib._Compress, message: Message) -> bytes:
    """Return the compressed body of a message; a thread compresses a large one."""
    body = message.get("body", b"")
    flush = zlib.Z_SYNC_FLUSH if message.get("more_body") else zlib.Z_FINISH

    def pack() -> bytes:
        return packer.compress(body) + packer.flush(flush)

    return pack() if len(body) < LARGE else await asyncio.to_thread(pack)
