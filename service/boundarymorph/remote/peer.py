"""Call an HTTP server: connections to it, and the outcomes of a request."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from functools import cache, partial
from http import HTTPStatus
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
import orjson
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from yarl import URL

from boundarymorph.errors import BoundaryMorphError, DeadlineExceeded, InvalidConfiguration
from boundarymorph.inference.concurrency import ON_BEHALF_OF, TimeBudget
from boundarymorph.settings import header_key
from boundarymorph.telemetry import tracing

CONNECT_TIMEOUT = 1.0  # seconds; a running server accepts at once
# Common servers close a connection that has been idle for five seconds: stop reusing it before that.
KEEPALIVE = 4.0
CHUNK = 2**16  # bytes of each piece of an answer
SMALL = 2**20  # most bytes of an answer that does not grow with the request
SLICE = 2**14  # bytes that are parsed between two looks at the number of answers in them
MOST_ANSWERS = 16  # answers to one request: interim ones, and the last
NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
EXCERPT = 200  # characters of a server's message that we quote
FAILED_DEPENDENCY = 424  # TEI's status when its backend is gone
JSON = {"Content-Type": "application/json", "Accept": "application/json"}


class ServerUnavailable(Exception):
    """The server cannot be reached or does not work.

    Attributes:
        carried_out: Whether it may have handled the request anyway.
    """

    def __init__(self, message: str, *, carried_out: bool = True) -> None:
        super().__init__(message)
        self.carried_out = carried_out


class TimedOut(ServerUnavailable):
    """The server did not answer in time."""


class ServerBusy(Exception):
    """The server is overloaded.

    Attributes:
        pause: Seconds that it asks for, if any.
        public: Its own message for callers, if any.
    """

    def __init__(self, message: str, pause: float | None, *, public: str | None = None) -> None:
        super().__init__(message)
        self.pause, self.public = pause, public


class RequestRefused(Exception):
    """The server rejects the request; another try will not help."""


class KeyRefused(RequestRefused):
    """The server rejects the key, or requires one."""


class Mismatch(RequestRefused):
    """The server is not the expected one: it has another model, or is another kind of server."""

    carried_out = False


class OtherModel(Mismatch):
    """The server serves another model than the one in use."""


class UnusableAnswer(RequestRefused):
    """The server's answer is unusable.

    Attributes:
        kind: A more specific error for the caller than the usual one.
    """

    carried_out = True

    def __init__(self, message: str, *, kind: type[BoundaryMorphError] | None = None) -> None:
        super().__init__(message)
        self.kind = kind


class RelayedError(Exception):
    """The server works, and answered with an error that is meant for the caller."""

    def __init__(self, error: BoundaryMorphError) -> None:
        super().__init__(str(error))
        self.error = error


class UnreadableBody(Exception):
    """The body of an answer is too long or compressed."""


class PeerResponse:
    """An answer: its body is `content` after `read`, else in `chunks`.

    Reading raises aiohttp.ClientError.
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
    def is_server_error(self) -> bool:
        return self.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR

    async def read(self, most: int = SMALL) -> bytes:
        """Read the body, which frees the connection.

        Raises:
            UnreadableBody: If it has over `most` bytes or is compressed.
        """
        encoding, declared = self.headers.get("content-encoding", "identity"), self._answer.content_length
        if encoding != "identity":
            self.close()
            raise UnreadableBody(f"encoded as {encoding}, though it was asked for as it is")
        if declared is not None and declared <= most:
            self.content = await self._answer.read()
            return self.content
        content = bytearray()
        if declared is None:
            async for chunk in self.chunks():
                content += chunk
                if len(content) > most:
                    break
        if declared is not None or len(content) > most:
            self.close()
            raise UnreadableBody(f"over {most:,} bytes long, more than what was asked for can need")
        self.content = bytes(content)
        return self.content

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._answer.content.iter_chunked(CHUNK):
            yield chunk

    def close(self) -> None:
        self._answer.close()


class _Protocol(ResponseHandler):
    """aiohttp's protocol, which ends a connection with too many answers to one request.

    A server may send many interim answers, such as 103 Early Hints, and the client parses and keeps all that arrive at
    once.
    """

    _answers = 0  # answers since the request was sent

    def set_response_params(self, *arguments: Any, **options: Any) -> None:
        self._answers = 0
        super().set_response_params(*arguments, **options)

    def feed_data(self, data: Any, size: int = 0) -> None:
        self._answers += 1
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), SLICE):
            super().data_received(data[start : start + SLICE])
            if self._answers > MOST_ANSWERS:
                self._buffer.clear()
                self.abort()
                message = f"it sent over {MOST_ANSWERS} answers to one request"
                self.set_exception(aiohttp.ServerDisconnectedError(message))
                return
        if not data:  # aiohttp goes on with what it has
            super().data_received(data)


class _Connector(aiohttp.TCPConnector):
    """Makes connections, and reuses those on which nothing arrived between two requests.

    The next request would take such bytes for its answer.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = partial(_Protocol, loop=self._loop)  # type: ignore[assignment]  # a subclass of aiohttp's

    async def connect(self, *request: Any, **options: Any) -> Connection:
        while True:
            connection = await super().connect(*request, **options)
            if connection.protocol is None or not connection.protocol.should_close:
                return connection
            connection.close()


class ConnectionPool:
    def __init__(self, base: str, most: int) -> None:
        self.opened = 0
        self._base, self._most = base, most
        self._proxy = _proxy(base)
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self, method: str, path: str, content: bytes | AsyncIterator[bytes] | None, headers: Mapping[str, str]
    ) -> PeerResponse:
        """Send a request and return its answer before its body is read.

        Cancelling closes the connection. Errors of the body's iterator pass through.

        Raises:
            aiohttp.ClientError: An error of `NOT_CONNECTED` if nothing was sent.
        """
        try:
            answer = await self._running().request(
                method,
                URL(self._base + path, encoded=True),
                data=BytesIO(content) if isinstance(content, bytes) else content,
                headers=headers,
                allow_redirects=False,
                proxy=self._proxy,
            )
        except aiohttp.ClientConnectionError as error:
            cause = error.__cause__
            if isinstance(content, AsyncIterator) and cause is not None and not isinstance(cause, OSError):
                raise cause from None  # raised by the iterator
            raise
        return PeerResponse(answer)

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


def _proxy(base: str) -> str | None:
    """Return the URL of the proxy that the environment names for this server."""
    parts = urlsplit(base)
    proxy = None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
    if proxy is None or proxy.startswith(("http://", "https://")):
        return proxy
    if "://" in proxy:
        raise InvalidConfiguration(f"{parts.scheme.upper()}_PROXY is not an http:// or https:// URL")
    return f"http://{proxy}"


@cache
def _trust() -> ssl.SSLContext:
    return httpx.create_ssl_context()


class Peer:
    """A server and the connections to it.

    The key is sent only there, and appears in no message.
    """

    def __init__(
        self,
        base: str,
        role: str,
        *,
        api_key: str | None = None,
        connections: int = 64,
        paid: bool = False,
        ours: bool = False,
    ) -> None:
        """Prepare the connections.

        Args:
            base: The server's URL without a trailing slash.
            role: The kind of server, for messages.
            api_key: The key that is sent to it.
            connections: Most connections.
            paid: Whether each request costs money, so that none is repeated that may have been carried out.
            ours: Whether it belongs to this service, so that requests name the caller.

        Raises:
            InvalidConfiguration: If the key is not valid in a header.
        """
        self.base, self.paid, self.ours = base, paid, ours
        self._role = role
        try:
            self._key = header_key(api_key or "") or None
        except ValueError as error:
            raise InvalidConfiguration(f"the {role}: {error}") from None
        self._connections = ConnectionPool(base, connections)

    @property
    def opened(self) -> int:
        """Number of connections so far, each of which may lead to another server."""
        return self._connections.opened

    def forget(self) -> None:
        """Discard what the server said about itself."""

    async def close(self) -> None:
        await self._connections.close()

    async def send(
        self,
        method: str,
        path: str,
        *,
        budget: TimeBudget | None,
        content: bytes | AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        most: int | None = SMALL,
        caller: str = "",
    ) -> PeerResponse:
        """Send a request and return the answer, whatever its status.

        Cancelling closes the connection.

        Args:
            method: The HTTP method.
            path: The path under the server's base URL.
            budget: The time for it; None for no limit.
            content: The body.
            headers: Further headers.
            repeatable: Whether to send it again if the connection breaks, as an idle one may.
            most: Most bytes of the answer. With None the caller must read the body or close the answer, unless it
                `concerns_us` or, if repeatable, `tells_of_server`.
            caller: The caller that it is sent for; only our own servers get a header with it.

        Raises:
            ServerUnavailable: If there is no answer.
            UnusableAnswer: If a successful answer is too long or compressed.
            DeadlineExceeded: If the budget ends with the deadline.
        """

        async def once(sent: Mapping[str, str]) -> PeerResponse:
            response = await self._connections.request(method, path, content, sent)
            if most is not None or concerns_us(response) or (repeatable and tells_of_server(response)):
                try:
                    await response.read(most or SMALL)
                except UnreadableBody as flaw:
                    if response.is_success:
                        raise UnusableAnswer(f"the answer of {self.base}{path} is {flaw}") from flaw
            return response

        try:
            async with asyncio.timeout(None if budget is None else budget.seconds):
                with tracing.client_span(method, self.base + path) as trace:
                    sent = {**self._headers(headers, caller), **trace}
                    try:
                        return await once(sent)
                    except NOT_CONNECTED:
                        raise
                    except aiohttp.ClientError:
                        if not repeatable:
                            raise
                        return await once(sent)
        except NOT_CONNECTED as error:
            plain = "; if it speaks plain HTTP, put +http after the scheme's name" if "SSL" in _reason(error) else ""
            if isinstance(error, aiohttp.ClientProxyConnectionError):
                plain = f"; {urlsplit(self.base).scheme.upper()}_PROXY names a proxy, and that cannot be reached"
            message = f"{self.base} cannot be reached ({_reason(error)}){plain}"
            raise ServerUnavailable(message, carried_out=False) from error
        except aiohttp.ClientError as error:
            raise ServerUnavailable(f"the request to {self.base} failed ({_reason(error)})") from error
        except TimeoutError as timeout:
            if budget is None:
                raise  # raised by the source of the body
            if budget.last:
                raise self._too_late(f"{self.base} did not answer before the deadline") from timeout
            raise TimedOut(f"{self.base} did not answer within {budget.seconds:.3g} s") from timeout

    async def fetch(
        self,
        path: str,
        body: bytes | None,
        budget: TimeBudget,
        *,
        most: int = SMALL,
        honours_deadlines: bool = False,
        caller: str = "",
    ) -> bytes:
        """POST the body, or GET if it is None, and return the body of a successful answer.

        Raises ServerBusy, KeyRefused, or RequestRefused, beside the errors of `send`. With `honours_deadlines`, a 504
        means that the deadline passed.
        """
        method = "GET" if body is None else "POST"
        response = await self.send(
            method, path, budget=budget, content=body, headers=JSON, repeatable=not self.paid, most=most, caller=caller
        )
        status = response.status_code
        if response.is_success:
            return response.content
        said = self.said(path, response)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise KeyRefused(f"{said}; check the key")
        pause = pause_of(response)
        if status == HTTPStatus.TOO_MANY_REQUESTS or (status == HTTPStatus.SERVICE_UNAVAILABLE and pause is not None):
            raise ServerBusy(said, pause)
        if status == HTTPStatus.GATEWAY_TIMEOUT and honours_deadlines:
            if budget.last:
                raise self._too_late(f"{self.base} could not answer before the deadline")
            raise ServerBusy(said, None)
        if status == FAILED_DEPENDENCY or (response.is_server_error and status != HTTPStatus.NOT_IMPLEMENTED):
            raise ServerUnavailable(said)
        raise RequestRefused(said)

    def _headers(self, given: Mapping[str, str] | None, caller: str) -> dict[str, str]:
        headers = {} if given is None else dict(given)
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        if (request_id := tracing.request_id.get()) is not None:
            headers[tracing.REQUEST_ID] = request_id
        if self.ours and caller:
            headers[ON_BEHALF_OF] = caller
        return headers

    def _too_late(self, message: str) -> DeadlineExceeded:
        return DeadlineExceeded(message, public=f"the {self._role} did not answer before the deadline")

    def said(self, path: str, response: PeerResponse) -> str:
        """Describe an error answer, without the key, which some servers repeat."""
        message = " ".join(_message(response).split())
        if self._key is not None:
            message = message.replace(self._key, "***")
        answered = f"{self.base}{path} answered {response.status_code}"
        return f"{answered}: {message[:EXCERPT]}" if message else answered


def concerns_us(response: PeerResponse) -> bool:
    """Return whether an answer is about our key or our address of the server."""
    redirected = HTTPStatus.MULTIPLE_CHOICES <= response.status_code < HTTPStatus.BAD_REQUEST
    return redirected or response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def tells_of_server(response: PeerResponse) -> bool:
    """Return whether an answer is about the server, or about us, rather than about the request."""
    return concerns_us(response) or response.status_code == HTTPStatus.TOO_MANY_REQUESTS or response.is_server_error


def pause_of(response: PeerResponse) -> float | None:
    """Return the seconds for which the server asks not to be called, if it gives a valid time."""
    return retry_after(response.headers.get("retry-after"), time.time())


def retry_after(header: str | None, now: float) -> float | None:
    """Return the seconds of a Retry-After header, or None if it is invalid.

    The header has seconds or a date; `now` is in seconds since 1970.
    """
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            return max(0.0, parsedate_to_datetime(header).timestamp() - now)
        except (ValueError, OverflowError):
            return None
    return seconds if 0 <= seconds < float("inf") else None


def _message(response: PeerResponse) -> str:
    """Return the message of an error's body in a usual form, or a body that is not JSON.

    Other JSON is dropped, because errors are logged and validation errors repeat the request.
    """
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return response.content.decode(errors="replace")[: 10 * EXCERPT]
    for key in ("error", "message", "detail", "title"):
        if isinstance(body, dict) and body.get(key):
            body = body[key]
    if isinstance(body, list):
        return "; ".join(_located(mistake) for mistake in body if isinstance(mistake, dict))
    return body if isinstance(body, str) else ""


def _located(mistake: dict[str, Any]) -> str:
    place, message = mistake.get("loc"), mistake.get("msg")
    where = ".".join(map(str, place)) if isinstance(place, list) else ""
    return ": ".join(filter(None, [where, message if isinstance(message, str) else ""]))


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__
