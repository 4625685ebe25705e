"""One request to a server, and what became of it."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from email.utils import parsedate_to_datetime
from functools import cache
from http import HTTPStatus
from typing import Any

import httpx
import orjson

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.remote.urls import Endpoint

CONNECT_TIMEOUT = 1.0  # seconds; a server that is up accepts at once
# Less than the five seconds after which common servers close an idle connection, perhaps just when it is used again.
KEEPALIVE = 4.0
EXCERPT = 200  # characters of a server's own message
FAILED_DEPENDENCY = 424  # with which TEI tells that its backend is gone


class Unavailable(Exception):
    """The server cannot be reached or does not work.

    carried_out: whether it may have done the request nevertheless; stale: whether a connection that had been idle broke
    as it was used again, which says nothing about the server.
    """

    def __init__(self, message: str, *, carried_out: bool = True, stale: bool = False) -> None:
        super().__init__(message)
        self.carried_out = carried_out
        self.stale = stale


class Late(TimeoutError):
    """The server says that it could not answer in time: it is there, but has too much to do."""


class Busy(Exception):
    """The server has too much to do. pause: seconds for which it asks to be left alone, None where it does not say."""

    def __init__(self, message: str, pause: float | None) -> None:
        super().__init__(message)
        self.pause = pause


class Refused(Exception):
    """The server refuses the request; another try will not help."""


class KeyRefused(Refused):
    """The server does not take the key, or wants one."""


class Exchange:
    """A pool of connections to all servers. The key goes to each of them, and into no message."""

    def __init__(self, *, api_key: str | None, connections: int) -> None:
        """Raises InvalidConfiguration for a key that no header can carry."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        self._key = api_key or None
        if self._key is not None:
            if not (self._key.isascii() and self._key.isprintable()) or " " in self._key:
                raise InvalidConfiguration("the key of a server holds characters that no header may")
            headers["Authorization"] = f"Bearer {self._key}"
        self._opened: Counter[str] = Counter()
        self._client = httpx.AsyncClient(
            headers=headers,
            verify=_trust(),
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
            limits=httpx.Limits(
                max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEEPALIVE
            ),
        )

    @property
    def closed(self) -> bool:
        return self._client.is_closed

    async def close(self) -> None:
        await self._client.aclose()

    def opened(self, endpoint: Endpoint) -> int:
        """How many connections to a server there have been. There may be another server behind each."""
        return self._opened[endpoint.base]

    async def send(self, endpoint: Endpoint, path: str, body: bytes | None, seconds: float) -> bytes:
        """POST the body, or GET without one; the body of the answer.

        Raises TimeoutError after that many seconds, Unavailable, Busy, KeyRefused or Refused. A cancelled request
        closes its connection, by which the server learns that nobody waits.
        """
        fresh = False

        async def trace(event: str, _: dict[str, Any]) -> None:
            nonlocal fresh
            if event == "connection.connect_tcp.started":
                fresh = True
                self._opened[endpoint.base] += 1

        request = self._client.build_request(
            "GET" if body is None else "POST", endpoint.base + path, content=body, extensions={"trace": trace}
        )
        try:
            async with asyncio.timeout(seconds):
                response = await self._client.send(request)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unavailable(f"{endpoint.base} cannot be reached ({_reason(error)})", carried_out=False) from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise Unavailable(f"{endpoint.base} broke off ({_reason(error)})", stale=not fresh) from error
        self._check(endpoint, path, response)
        return response.content

    def _check(self, endpoint: Endpoint, path: str, response: httpx.Response) -> None:
        status, where = response.status_code, f"{endpoint.base}{path}"
        if response.is_success:
            return
        said = f"{where} answered {status}{self._excerpt(response)}"
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise KeyRefused(f"{said}; check the key")
        pause = retry_after(response.headers.get("retry-after"), time.time())
        if status == HTTPStatus.TOO_MANY_REQUESTS or (status == HTTPStatus.SERVICE_UNAVAILABLE and pause is not None):
            raise Busy(said, pause)
        if status == HTTPStatus.GATEWAY_TIMEOUT and endpoint.dialect.honours_deadlines:
            raise Late(said)
        if status == FAILED_DEPENDENCY or (response.is_server_error and status != HTTPStatus.NOT_IMPLEMENTED):
            raise Unavailable(said)
        raise Refused(said)

    def _excerpt(self, response: httpx.Response) -> str:
        """What the server says about its refusal, without the key, which some repeat."""
        message = " ".join(_message(response).split())
        if self._key is not None:
            message = message.replace(self._key, "***")
        return f": {message[:EXCERPT]}" if message else ""


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
