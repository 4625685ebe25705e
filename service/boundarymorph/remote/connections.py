"""HTTP connections to one server, and the answers that come over them."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from functools import cache
from http import HTTPStatus
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from aiohttp.connector import Connection
from yarl import URL

CONNECT_TIMEOUT = 1.0  # seconds; a running server accepts at once
# Common servers close a connection that has been idle for five seconds: stop reusing it before that.
KEEPALIVE = 4.0
CHUNK = 2**16  # bytes of an answer that is read in pieces
SMALL = 2**20  # bytes of an answer that does not grow with the request
NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class Unreadable(Exception):
    """The body of an answer is too long or compressed."""


class Response:
    """Status and headers of an answer, and its body: `content` once it has been read, else in `chunks`, as they come.

    Reading raises aiohttp.ClientError if the connection breaks.
    """

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.status_code = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self.content = b""
        self._answer = answer

    @property
    def is_success(self) -> bool:
        return HTTPStatus.OK <= self.status_code < HTTPStatus.MULTIPLE_CHOICES

    @property
    def is_redirect(self) -> bool:
        return HTTPStatus.MULTIPLE_CHOICES <= self.status_code < HTTPStatus.BAD_REQUEST

    @property
    def is_server_error(self) -> bool:
        return self.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")

    async def read(self, most: int = SMALL) -> bytes:
        """Read the whole body, which frees the connection for other requests.

        Raises Unreadable, and closes the connection, if it has over `most` bytes or is compressed.
        """
        declared, encoding = self._answer.content_length, self.headers.get("content-encoding", "identity")
        if encoding != "identity":
            self.close()
            raise Unreadable(f"encoded as {encoding}, though it was asked for as it is")
        if declared is not None and declared > most:
            raise self._too_long(most)
        if declared is not None:
            self.content = await self._answer.read()
            return self.content
        content = bytearray()
        async for chunk in self.chunks():
            content += chunk
            if len(content) > most:
                raise self._too_long(most)
        self.content = bytes(content)
        return self.content

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._answer.content.iter_chunked(CHUNK):
            yield chunk

    def _too_long(self, most: int) -> Unreadable:
        self.close()
        return Unreadable(f"over {most:,} bytes long, more than what was asked for can need")

    def close(self) -> None:
        """Close the connection unless the body has been read."""
        self._answer.close()


class _Connector(aiohttp.TCPConnector):
    """Makes connections, and reuses them unless something has arrived that was not asked for.

    It would be taken for the answer to the next request.
    """

    async def connect(self, *request: Any, **options: Any) -> Connection:
        while True:
            connection = await super().connect(*request, **options)
            if connection.protocol is None or not connection.protocol.should_close:
                return connection
            connection.close()


class ConnectionPool:
    """At most so many connections to a server, which are kept for a while. opened: number of connections so far."""

    def __init__(self, base: str, most: int) -> None:
        self.opened = 0
        self._base, self._most = base, most
        self._proxy = _proxy(base)
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        path: str,
        content: bytes | AsyncIterator[bytes] | None,
        headers: Mapping[str, str],
    ) -> Response:
        """Send a request and return its answer before its body is read.

        Raises aiohttp.ClientError, of `NOT_CONNECTED` if nothing was sent, and what the iterator of the body raises.
        Cancelling closes the connection.
        """
        source = None if content is None or isinstance(content, bytes) else _Source(content)
        try:
            answer = await self._running().request(
                method,
                URL(self._base + path, encoded=True),
                data=BytesIO(content) if isinstance(content, bytes) else source and source.chunks(),
                headers=headers,
                allow_redirects=False,
                proxy=self._proxy,
            )
        except aiohttp.ClientError:
            if source is not None and source.error is not None:
                raise source.error from None
            raise
        return Response(answer)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _running(self) -> aiohttp.ClientSession:
        """Return the session, which must be made within its event loop."""
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_create_start.append(self._count)
            self._session = aiohttp.ClientSession(
                connector=_Connector(limit=self._most, keepalive_timeout=KEEPALIVE, ssl=_trust()),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
                trace_configs=[trace],
                headers={"Accept-Encoding": "identity"},  # a few compressed bytes could be many
                auto_decompress=False,
            )
            self._session._retry_connection = False  # aiohttp would repeat DELETE and PUT, which we forward once
        return self._session

    async def _count(self, *_: object) -> None:
        self.opened += 1


class _Source:
    """The body of a request in chunks. error: that its iterator raised, which aiohttp replaces with one of its own."""

    error: Exception | None = None

    def __init__(self, iterator: AsyncIterator[bytes]) -> None:
        self._iterator = iterator

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._iterator:
                yield chunk
        except Exception as error:
            self.error = error
            raise


def _proxy(base: str) -> str | None:
    """Return the proxy that the environment names for this server."""
    parts = urlsplit(base)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


@cache
def _trust() -> ssl.SSLContext:
    """Load the trusted certificates, once: loading is slow."""
    return httpx.create_ssl_context()
