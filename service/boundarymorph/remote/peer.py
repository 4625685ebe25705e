"""An HTTP server that we call, and the outcomes of a request to it."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from functools import cache
from http import HTTPStatus
from typing import Any

import httpx
import orjson

from boundarymorph.errors import BoundaryMorphError, DeadlineExceeded, InvalidConfiguration
from boundarymorph.remote.deadline import Budget
from boundarymorph.telemetry import logs

CONNECT_TIMEOUT = 1.0  # seconds; a server that is up accepts at once
# Less than the five seconds after which common servers close an idle connection, perhaps just when it is used again.
KEEPALIVE = 4.0
EXCERPT = 200  # characters of a server's own message
FAILED_DEPENDENCY = 424  # TEI's status when its backend is gone
JSON = {"Content-Type": "application/json", "Accept": "application/json"}


class Unavailable(Exception):
    """The server cannot be reached or does not work. carried_out: whether it may have done the request nevertheless."""

    def __init__(self, message: str, *, carried_out: bool = True) -> None:
        super().__init__(message)
        self.carried_out = carried_out


class TimedOut(Unavailable):
    """The server did not answer in time."""


class Busy(Exception):
    """The server has too much to do.

    pause: seconds for which it asks to be left alone, None where it does not say; public: its own words for callers.
    """

    def __init__(self, message: str, pause: float | None, *, public: str | None = None) -> None:
        super().__init__(message)
        self.pause, self.public = pause, public


class Refused(Exception):
    """The server refuses the request; another try will not help."""


class KeyRefused(Refused):
    """The server does not take the key, or wants one."""


class Mismatch(Refused):
    """The server is not the one that was expected: another model, or another kind of server."""


class Flawed(Refused):
    """The server's answer cannot be used. kind: of the error for the caller, where the usual one says too little."""

    def __init__(self, message: str, *, kind: type[BoundaryMorphError] | None = None) -> None:
        super().__init__(message)
        self.kind = kind


class Relayed(Exception):
    """The server works; it answered with an error that is the caller's to read."""

    def __init__(self, error: BoundaryMorphError) -> None:
        super().__init__(str(error))
        self.error = error


class Peer:
    """A server and the connections to it. The key goes to it, and into no message.

    base: its URL without a slash at the end; paid: whether each request costs money, so that none may be repeated that
    may have been carried out; opened: how many connections there have been, behind each of which may be another server.
    """

    def __init__(
        self, base: str, role: str, *, api_key: str | None = None, connections: int = 64, paid: bool = False
    ) -> None:
        """role: what it is to us, for messages. Raises InvalidConfiguration for a key that no header can carry."""
        self.base, self.paid, self.opened = base, paid, 0
        self._role, self._key = role, api_key or None
        if self._key is not None and (not (self._key.isascii() and self._key.isprintable()) or " " in self._key):
            raise InvalidConfiguration("the key of a server holds characters that no header may")
        self._client = httpx.AsyncClient(
            headers={} if self._key is None else {"Authorization": f"Bearer {self._key}"},
            verify=_trust(),
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
            limits=httpx.Limits(
                max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEEPALIVE
            ),
        )

    def forget(self) -> None:
        """What it said of itself may hold no longer."""

    async def close(self) -> None:
        await self._client.aclose()

    async def send(
        self,
        method: str,
        path: str | bytes,
        *,
        budget: Budget | None,
        content: bytes | AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        stream: bool = False,
    ) -> httpx.Response:
        """The answer, whatever its status.

        path: under the base; bytes are sent as they are, whatever dots they have. budget: None for no limit.
        repeatable: sent once more where the connection breaks, as an idle one may just when it is used again. stream:
        the body is still to be read, and the answer to be closed, unless it `tells_of_server` in answer to what is
        repeatable. Raises Unavailable, or DeadlineExceeded where the budget ends with the deadline. A cancelled request
        closes its connection, by which the server learns that it need not go on.
        """
        extensions: dict[str, Any] = {"trace": self._trace}
        url = httpx.URL(self.base)
        if isinstance(path, bytes):
            extensions["target"] = url.raw_path.rstrip(b"/") + path
        else:
            url = httpx.URL(self.base + path)
        request = self._client.build_request(method, url, content=content, headers=headers, extensions=extensions)
        if (request_id := logs.request_id.get()) is not None:
            request.headers[logs.REQUEST_ID] = request_id

        async def once() -> httpx.Response:
            try:
                response = await self._client.send(request, stream=stream)
            except AttributeError as error:  # of anyio, about a connection that was lost just as it was made
                raise httpx.ConnectError("the connection was lost at once") from error
            if stream and repeatable and tells_of_server(response):
                await response.aread()
            return response

        try:
            async with asyncio.timeout(None if budget is None else budget.seconds):
                try:
                    return await once()
                except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                    if not repeatable:
                        raise
                    return await once()
        except TimeoutError as timeout:
            if budget is None:
                raise  # an error of the body's own source
            if budget.last:
                raise self._too_late(f"{self.base} had not answered when the time was over") from timeout
            raise TimedOut(f"{self.base} did not answer within {budget.seconds:.3g} s") from timeout
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            plain = "; is it plain HTTP? +http after the scheme's name says so" if "SSL" in _reason(error) else ""
            message = f"{self.base} cannot be reached ({_reason(error)}){plain}"
            raise Unavailable(message, carried_out=False) from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise Unavailable(f"{self.base} broke off ({_reason(error)})") from error

    async def fetch(self, path: str, body: bytes | None, budget: Budget, *, honours_deadlines: bool = False) -> bytes:
        """POST the body, or GET without one; the body of a good answer.

        honours_deadlines: whether a 504 says that the time was over. Raises as `send` does, and Busy, KeyRefused or
        Refused.
        """
        method = "GET" if body is None else "POST"
        response = await self.send(method, path, budget=budget, content=body, headers=JSON, repeatable=not self.paid)
        status = response.status_code
        if response.is_success:
            return response.content
        said = self.said(path, response)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise KeyRefused(f"{said}; check the key")
        pause = pause_of(response)
        if status == HTTPStatus.TOO_MANY_REQUESTS or (status == HTTPStatus.SERVICE_UNAVAILABLE and pause is not None):
            raise Busy(said, pause)
        if status == HTTPStatus.GATEWAY_TIMEOUT and honours_deadlines:
            if budget.last:
                raise self._too_late(f"{self.base} could not answer before the time was over")
            raise Busy(said, None)
        if status == FAILED_DEPENDENCY or (response.is_server_error and status != HTTPStatus.NOT_IMPLEMENTED):
            raise Unavailable(said)
        raise Refused(said)

    async def _trace(self, event: str, _: dict[str, Any]) -> None:
        self.opened += event == "connection.connect_tcp.started"

    def _too_late(self, message: str) -> DeadlineExceeded:
        return DeadlineExceeded(message, public=f"the {self._role} had not answered when the time was over")

    def said(self, path: str, response: httpx.Response) -> str:
        """What the server answered instead of results, without the key, which some repeat."""
        message = " ".join(_message(response).split())
        if self._key is not None:
            message = message.replace(self._key, "***")
        answered = f"{self.base}{path} answered {response.status_code}"
        return f"{answered}: {message[:EXCERPT]}" if message else answered


def tells_of_server(response: httpx.Response) -> bool:
    """Whether it is about the server rather than about the request."""
    return response.status_code == HTTPStatus.TOO_MANY_REQUESTS or response.is_server_error


def pause_of(response: httpx.Response) -> float | None:
    """Seconds for which the server asks to be left alone; None where it says nothing usable."""
    return retry_after(response.headers.get("retry-after"), time.time())


def retry_after(header: str | None, now: float) -> float | None:
    """Seconds that a Retry-After header asks for, given as seconds or as a date; None where it says nothing usable.

    now: seconds since 1970.
    """
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - now
        except ValueError:
            return None
    return max(0.0, seconds) if seconds < float("inf") else None


@cache
def _trust() -> ssl.SSLContext:
    """The certificates that are trusted, which take longer to load than all else here."""
    return httpx.create_ssl_context()


def _message(response: httpx.Response) -> str:
    """The message in the usual shapes of an error's body, or a body that is no JSON.

    Nothing of any other JSON: what validates a body likes to repeat it, and errors are logged.
    """
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return response.text[: 10 * EXCERPT]
    for key in ("error", "message", "detail", "title"):
        if isinstance(body, dict) and body.get(key):
            body = body[key]
    match body:
        case str():
            return body
        case list():
            return "; ".join(_located(mistake) for mistake in body if isinstance(mistake, dict))
        case _:
            return ""


def _located(mistake: dict[str, Any]) -> str:
    """Where a mistake is and what it is, of one entry of FastAPI's `detail`."""
    place, message = mistake.get("loc"), mistake.get("msg")
    where = ".".join(map(str, place)) if isinstance(place, list) else ""
    return ": ".join(filter(None, [where, message if isinstance(message, str) else ""]))


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
