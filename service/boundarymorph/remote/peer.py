"""An HTTP server that we call: the outcomes of a request to it, its state, and which requests it may get."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import Enum
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import aiohttp
import orjson

from boundarymorph.errors import BoundaryMorphError, DeadlineExceeded, InvalidConfiguration
from boundarymorph.inference.concurrency import CALLER, ON_BEHALF_OF, Budget
from boundarymorph.remote.connections import NOT_CONNECTED, SMALL, ConnectionPool, Response, Unreadable
from boundarymorph.telemetry import tracing

EXCERPT = 200  # characters of a server's message that we quote
FAILED_DEPENDENCY = 424  # TEI's status when its backend is gone
JSON = {"Content-Type": "application/json", "Accept": "application/json"}


class Unavailable(Exception):
    """The server cannot be reached or does not work. carried_out: whether it may have handled the request anyway."""

    def __init__(self, message: str, *, carried_out: bool = True) -> None:
        super().__init__(message)
        self.carried_out = carried_out


class TimedOut(Unavailable):
    """The server did not answer in time."""


class Busy(Exception):
    """The server is overloaded.

    pause: seconds for which it asks not to be called, None if it does not say; public: its own message for callers.
    """

    def __init__(self, message: str, pause: float | None, *, public: str | None = None) -> None:
        super().__init__(message)
        self.pause, self.public = pause, public


class Refused(Exception):
    """The server rejects the request; another try will not help."""


class KeyRefused(Refused):
    """The server rejects the key, or requires one."""


class Mismatch(Refused):
    """The server is not the expected one: it has another model, or is another kind of server."""

    carried_out = False


class OtherModel(Mismatch):
    """The server serves another model than most of them."""


class Flawed(Refused):
    """The server's answer is unusable. kind: a more specific error for the caller than the usual one."""

    carried_out = True

    def __init__(self, message: str, *, kind: type[BoundaryMorphError] | None = None) -> None:
        super().__init__(message)
        self.kind = kind


class Relayed(Exception):
    """The server works, and answered with an error that is meant for the caller."""

    def __init__(self, error: BoundaryMorphError) -> None:
        super().__init__(str(error))
        self.error = error


class Peer:
    """A server and the connections to it. The key is sent only there, and appears in no message.

    base: its URL without a trailing slash; paid: whether each request costs money, so that one which may have been
    carried out must not be repeated; ours: whether it is a process of this service, which is told on whose behalf we
    call.
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
        """role: what it is to us, for messages. Raises InvalidConfiguration if the key is not valid in a header."""
        self.base, self.paid, self.ours = base, paid, ours
        self._role, self._key = role, api_key or None
        if self._key is not None and (not (self._key.isascii() and self._key.isprintable()) or " " in self._key):
            raise InvalidConfiguration("the key of a server contains characters that are not allowed in a header")
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
        budget: Budget | None,
        content: bytes | AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        most: int | None = SMALL,
    ) -> Response:
        """Send a request and return the answer, whatever its status.

        path: under the base. budget: None for no limit. repeatable: whether to send again once if the connection breaks
        (an idle one may, just when it is reused). most: bytes of the answer, which is read no further. None: the caller
        must read the body or close the answer, unless it `concerns_us` or, for a repeatable request, `tells_of_server`.

        Raises Unavailable, Flawed for a success that is longer or compressed, or DeadlineExceeded if the budget ends
        with the deadline. Cancelling closes the connection, which tells the server to stop.
        """

        async def once(sent: Mapping[str, str]) -> Response:
            response = await self._connections.request(method, path, content, sent)
            if most is not None or concerns_us(response) or (repeatable and tells_of_server(response)):
                try:
                    await response.read(most or SMALL)
                except Unreadable as flaw:
                    if response.is_success:
                        raise Flawed(f"the answer of {self.base}{path} is {flaw}") from flaw
            return response

        try:
            async with asyncio.timeout(None if budget is None else budget.seconds):
                with tracing.calling(method, self.base + path) as trace:
                    sent = {**self._headers(headers), **trace}
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
            message = f"{self.base} cannot be reached ({_reason(error)}){plain}"
            raise Unavailable(message, carried_out=False) from error
        except aiohttp.ClientError as error:
            raise Unavailable(f"the request to {self.base} failed ({_reason(error)})") from error
        except TimeoutError as timeout:
            if budget is None:
                raise  # raised by the source of the body
            if budget.last:
                raise self._too_late(f"{self.base} did not answer before the deadline") from timeout
            raise TimedOut(f"{self.base} did not answer within {budget.seconds:.3g} s") from timeout

    async def fetch(
        self, path: str, body: bytes | None, budget: Budget, *, most: int = SMALL, honours_deadlines: bool = False
    ) -> bytes:
        """POST the body, or GET if it is None, and return the body of a successful answer.

        most: see `send`. honours_deadlines: whether a 504 means that the deadline passed. Raises as `send` does, and
        Busy, KeyRefused or Refused.
        """
        method = "GET" if body is None else "POST"
        response = await self.send(
            method, path, budget=budget, content=body, headers=JSON, repeatable=not self.paid, most=most
        )
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
                raise self._too_late(f"{self.base} could not answer before the deadline")
            raise Busy(said, None)
        if status == FAILED_DEPENDENCY or (response.is_server_error and status != HTTPStatus.NOT_IMPLEMENTED):
            raise Unavailable(said)
        raise Refused(said)

    def _headers(self, given: Mapping[str, str] | None) -> dict[str, str]:
        headers = {} if given is None else dict(given)
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        if (request_id := tracing.request_id.get()) is not None:
            headers[tracing.REQUEST_ID] = request_id
        if self.ours and (caller := CALLER.get()):
            headers[ON_BEHALF_OF] = caller
        return headers

    def _too_late(self, message: str) -> DeadlineExceeded:
        return DeadlineExceeded(message, public=f"the {self._role} did not answer before the deadline")

    def said(self, path: str, response: Response) -> str:
        """Describe an error answer, without the key, which some servers repeat."""
        message = " ".join(_message(response).split())
        if self._key is not None:
            message = message.replace(self._key, "***")
        answered = f"{self.base}{path} answered {response.status_code}"
        return f"{answered}: {message[:EXCERPT]}" if message else answered


def concerns_us(response: Response) -> bool:
    """Whether an answer is about our key or about the address that we have for the server."""
    return response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) or response.is_redirect


def tells_of_server(response: Response) -> bool:
    """Whether an answer is about the server, or about us, rather than about the request."""
    return concerns_us(response) or response.status_code == HTTPStatus.TOO_MANY_REQUESTS or response.is_server_error


def pause_of(response: Response) -> float | None:
    """Return the seconds for which the server asks not to be called; None if it gives no valid time."""
    return retry_after(response.headers.get("retry-after"), time.time())


def retry_after(header: str | None, now: float) -> float | None:
    """Return the seconds that a Retry-After header asks for, given as seconds or as a date; None if it is invalid.

    now: seconds since 1970.
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


def _message(response: Response) -> str:
    """Return the message of an error's body in one of the usual forms, or a body that is not JSON.

    Any other JSON is dropped: validation errors often repeat the request, and errors are logged.
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
    """Format an entry of FastAPI's `detail`: where the error is, and what it is."""
    place, message = mistake.get("loc"), mistake.get("msg")
    where = ".".join(map(str, place)) if isinstance(place, list) else ""
    return ": ".join(filter(None, [where, message if isinstance(message, str) else ""]))


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__


BACKOFF, MOST_BACKOFF = 1.0, 30.0  # seconds after the first failure, doubled after each further one
PAUSE, LONGEST_PAUSE = 0.25, 60.0  # seconds, if a busy server does not say how long, and if it says more
MISSES = 3  # callers in a row that stopped waiting


class State(Enum):
    """What is known of a server, and what it gets for that."""

    WORKS = "it answers: calls up to its limits, and a probe once `MISSES` callers in a row left before the answer"
    BUSY = "it asked for a pause: after that, one call at a time"
    OTHER = "it has another model than most: after 1, 2, 4 ... 30 s a probe, or one call if no other server is free"
    AWAY = "it failed: the same, and no say in which model is used"


SHOWN: dict[type, State] = {  # the state that an outcome of a request shows; any other shows nothing
    type(None): State.WORKS,
    Relayed: State.WORKS,
    Busy: State.BUSY,
    OtherModel: State.OTHER,
    Mismatch: State.AWAY,
    Unavailable: State.AWAY,
    Flawed: State.AWAY,  # if another server has answered the same call
}
P = TypeVar("P", bound=Peer)


@dataclass(slots=True, eq=False)
class Replica(Generic[P]):
    """A server.

    fault, since: the outcome that put it into its state, None if it works, and when; free_at: when it may be asked;
    failures, misses: in a row; begun: number of requests so far; running: the texts of those under way, by number;
    newest: the first request whose outcome counts; model: the one it last named; most_texts: under way at a time, None
    for any number; probe: the last one.
    """

    peer: P
    state: State = State.WORKS
    fault: Exception | None = None
    since: float = 0.0
    free_at: float = 0.0
    failures: int = 0
    misses: int = 0
    begun: int = 0
    running: dict[int, int] = field(default_factory=dict)
    newest: int = 1
    model: str | None = None
    most_texts: int | None = None
    probe: asyncio.Task[None] | None = None

    @property
    def works(self) -> bool:
        return self.state in (State.WORKS, State.BUSY)

    @property
    def doubted(self) -> bool:
        """Whether it gets probes, and calls only if no other server is free. A paid one does not: it is not probed."""
        return not self.peer.paid and (not self.works or self.misses >= MISSES)

    @property
    def texts(self) -> int:
        """Number of texts under way."""
        return sum(self.running.values())

    @property
    def on_trial(self) -> bool:
        """Whether a request is under way that will show whether it works again."""
        return self.state is not State.WORKS and any(number >= self.newest for number in self.running)

    def has_room(self, texts: int, requests: int) -> bool:
        """Whether it may get so many texts besides those under way. requests: most at a time."""
        if self.state is not State.WORKS:
            return not self.on_trial
        fits = self.most_texts is None or self.texts + texts <= self.most_texts
        return not self.running or (len(self.running) < requests and fits)

    def begin(self, texts: int) -> int:
        """Note that a request begins, and return its number."""
        self.begun += 1
        self.running[self.begun] = texts
        return self.begun

    def become(self, state: State, fault: Exception | None, now: float) -> None:
        """Change the state. fault: unless it works."""
        self.state, self.fault, self.since, self.misses = state, fault, now, 0
        if state is State.WORKS:
            self.free_at, self.failures = 0.0, 0
            return
        self.newest = self.begun + 1
        if isinstance(fault, Busy):
            pause = PAUSE if fault.pause is None else min(fault.pause, LONGEST_PAUSE)
            self.free_at = max(self.free_at, now + pause)
        else:
            self.free_at = now + min(BACKOFF * 2 ** min(self.failures, 10), MOST_BACKOFF)
            self.failures += 1
        if state is State.AWAY:
            self.model = None  # it may return with another one
