"""Speak HTTP/1.1 with callers, within limits on time and connections.

Some answers are sent before there is a request.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import h11
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from boundarymorph.api.problems import MEDIA_TYPE
from boundarymorph.api.schemas import Problem
from boundarymorph.errors import PROBLEM_TYPE, InvalidConfiguration
from boundarymorph.inference.concurrency import descriptors
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics

ROOM = 16  # connections beyond the limit, for probes and for heads that are still arriving
LARGEST = 10_000  # the default limit where a process may open far more descriptors


class Connections:
    """The open connections of a process: `most` with a request in progress, and `ROOM` more.

    A connection without a request is idle or has an incomplete head. When there are too many, the one that has waited
    longest is closed.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: set[ProblemProtocol] = set()
        self._waiting: dict[ProblemProtocol, None] = {}  # those without a request in progress, the longest first

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) - len(self._waiting) >= self.most

    def opened(self, connection: ProblemProtocol) -> None:
        self._open.add(connection)
        self.mark_idle(connection)
        if len(self._open) > self.most + ROOM:
            next(iter(self._waiting)).abort("full")

    def closed(self, connection: ProblemProtocol) -> None:
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def mark_idle(self, connection: ProblemProtocol) -> None:
        if connection in self._open:
            self._waiting.pop(connection, None)
            self._waiting[connection] = None

    def mark_busy(self, connection: ProblemProtocol) -> None:
        self._waiting.pop(connection, None)


def most_connections(chosen: int | None) -> int:
    """Return the chosen number of connections, or the default."""
    return chosen or max(1, min(LARGEST, descriptors() // 2 - ROOM))


def check_connections(chosen: int | None) -> None:
    """Raise InvalidConfiguration if the chosen number leaves no descriptors for other files."""
    if chosen is not None and chosen + ROOM >= descriptors():
        raise InvalidConfiguration(
            f"limits.connections is {chosen:,}, and a process may open {descriptors():,} descriptors in all: "
            "choose fewer connections, or raise the limit (ulimit -n)"
        )


SLICE = 2**14  # bytes to parse between two checks of the size of a head or of trailers
FREE_CHUNKS, LEAST_CHUNK = 1_000, 16  # chunks of a body, after which they need this mean size in bytes
BLANK_LINES = re.compile(rb"[\r\n]+")


class StrictParser(h11.Connection):
    """h11's parser of requests, that refuses input that only an attacker sends."""

    refused: h11.RemoteProtocolError | None = None  # the error of the first message that is not accepted
    _blank = _chunks = _bytes = 0

    def __init__(self, head_bytes: int) -> None:
        super().__init__(h11.SERVER, head_bytes)
        self._head_bytes = head_bytes

    def next_event(self) -> Any:
        """Return the next event. Raises h11.RemoteProtocolError if the request is refused."""
        try:
            if self.their_state is h11.IDLE:
                self._skip_blank_lines()
            event = super().next_event()
            self._check(event)
        except h11.RemoteProtocolError as error:
            self.refused = error
            raise
        return event

    def _skip_blank_lines(self) -> None:
        """Ignore some blank lines before a request (RFC 9112, 2.2)."""
        received = self._receive_buffer._data
        if blank := BLANK_LINES.match(received):
            del received[: blank.end()]
            self._blank += blank.end()
            if self._blank > self._head_bytes:
                raise h11.RemoteProtocolError("there are too many blank lines before the request")

    @property
    def has_excess_input(self) -> bool:
        """Return whether later requests have arrived with more bytes than a head may have."""
        return self.their_state is not h11.SEND_BODY and len(self._receive_buffer) > self._head_bytes

    def _check(self, event: Any) -> None:
        if isinstance(event, h11.Request):
            self._blank = self._chunks = self._bytes = 0
            names = {name for name, _ in event.headers}
            if event.http_version not in (b"1.0", b"1.1"):
                raise h11.RemoteProtocolError(f"HTTP/{event.http_version.decode()} is not spoken here; use HTTP/1.1")
            if event.method == b"CONNECT" or not event.target.startswith((b"/", b"http://", b"https://", b"*")):
                raise h11.RemoteProtocolError("this is no proxy; the target must be a path, such as /select")
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("a request has either Content-Length or Transfer-Encoding, not both")
            self._check_size(event.headers, len(event.method) + len(event.target))
        elif isinstance(event, h11.Data) and event.chunk_start:
            self._chunks, self._bytes = self._chunks + 1, self._bytes + len(event.data)
            if self._chunks > FREE_CHUNKS and self._bytes < LEAST_CHUNK * self._chunks:
                raise h11.RemoteProtocolError(f"the chunks are too small; send at least {LEAST_CHUNK} bytes in each")
        elif isinstance(event, h11.EndOfMessage) and event.headers:
            self._check_size(event.headers, 0)

    def _check_size(self, headers: Any, size: int) -> None:
        size += sum(len(name) + len(value) + len(b": \r\n") for name, value in headers) + len(b"  HTTP/1.1\r\n\r\n")
        if size > self._head_bytes:
            raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)


class Flow(FlowControl):
    """uvicorn's flow control, which leaves pipelined requests in the socket during a body."""

    def __init__(self, transport: asyncio.Transport, parser: StrictParser) -> None:
        super().__init__(transport)
        self._parser = parser

    def resume_reading(self) -> None:
        if not self._parser.has_excess_input:
            super().resume_reading()


PROBES = (b"/livez", b"/readyz", b"/health", b"/metrics")
RETRY_SECONDS = 1
TOO_MANY = "this process has as many requests as limits.connections allows; try again in a second"


def configured(app: Any, settings: Settings, **options: Any) -> Config:
    most = most_connections(settings.limits.connections)
    protocol = partial(ProblemProtocol, settings=settings, connections=Connections(most))
    # One round of accepted connections must leave descriptors for other files.
    return Config(
        app,
        http=protocol,  # type: ignore[arg-type]  # uvicorn calls it like a class
        ws="none",
        backlog=max(16, min(2048, most // 2)),
        timeout_keep_alive=settings.keep_alive_seconds,  # type: ignore[arg-type]  # a float, too
        **options,
    )


class ProblemProtocol(H11Protocol):
    """uvicorn's protocol over h11, with problem details.

    A connection is closed if a head does not arrive within `head_seconds` or exceeds `head_bytes`, and if its client
    reads nothing of an answer for `event_seconds`.
    """

    conn: StrictParser
    _head_timer: asyncio.TimerHandle | None = None
    _reading_timer: asyncio.TimerHandle | None = None
    _unread = 0  # bytes of answers in the transport's buffer, when last looked at

    def __init__(self, *arguments: Any, settings: Settings, connections: Connections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.connections_of_callers = connections
        self.head_seconds, self.head_bytes = settings.head_seconds, settings.limits.head_bytes
        self.event_seconds = settings.event_seconds
        self.conn = StrictParser(self.head_bytes)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport, self.conn)
        self._await_head(self.head_seconds)
        self.connections_of_callers.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._leave()

    def abort(self, reason: str) -> None:
        metrics.connections_closed.labels(reason).inc()
        self._leave()
        self._end_request()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), SLICE):
            if self.transport.is_closing() or self.conn.their_state in (h11.MUST_CLOSE, h11.CLOSED):
                return  # RFC 9112, 9.6: bytes after the last request are not read
            super().data_received(data[start : start + SLICE])

    def _should_upgrade(self) -> bool:
        """Begin a request whose scope has just been made.

        An upgrade that is not taken is ignored (RFC 9110, 7.8).
        """
        self._stop_awaiting_head()
        path = self.scope["raw_path"]
        if not path.startswith(b"/") and path != b"*":  # RFC 9112, 3.2.2: the absolute form
            path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
            self.scope |= {"raw_path": path, "path": unquote(path.decode("ascii"))}
        refused = self.connections_of_callers.full and path not in PROBES
        self.app = _too_many if refused else self.config.loaded_app
        self.connections_of_callers.mark_busy(self)
        return False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.flow.resume_reading()  # a head that is buffered may want its rest
        self._watch_reader()
        if self.cycle.response_complete:  # else the next request of this connection has begun
            self._await_head(self.timeout_keep_alive + self.head_seconds)
            self.connections_of_callers.mark_idle(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = 2**63  # the client has read

    def send_400_response(self, msg: str) -> None:
        """Answer a refused request with a problem, unless an answer has begun, and close."""
        self._end_request()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status, slug, detail = HTTPStatus.BAD_REQUEST, "malformed-http", f"{msg[:-1]}: {self.conn.refused}"[:200]
            if getattr(self.conn.refused, "error_status_hint", 400) == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
                status, slug = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers-too-large"
                detail = f"the head is over {self.head_bytes:,} bytes"
            headers, body = _problem(status, slug, detail)
            response = h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()
        self._watch_reader()

    def _end_request(self) -> None:
        """Let the application see that the client of a request in progress has gone."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _await_head(self, seconds: float) -> None:
        self._stop_awaiting_head()
        if not self.transport.is_closing():
            self._head_timer = self.loop.call_later(seconds, self.abort, "head")

    def _stop_awaiting_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _watch_reader(self) -> None:
        """Close the connection if the client reads nothing of the answer for too long."""
        unread = self.transport.get_write_buffer_size()
        if self._reading_timer is None and unread:
            self._unread = unread
            self._reading_timer = self.loop.call_later(self.event_seconds, self._check_reader)

    def _check_reader(self) -> None:
        self._reading_timer = None
        unread = self.transport.get_write_buffer_size()
        if unread >= self._unread:
            self.abort("not_reading")
        else:
            self._watch_reader()

    def _leave(self) -> None:
        self.connections_of_callers.closed(self)
        self._stop_awaiting_head()
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None


def _problem(status: HTTPStatus, slug: str, detail: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    title = slug.replace("-", " ").capitalize()
    problem = Problem(type=PROBLEM_TYPE + slug, title=title, status=status, detail=detail)
    body = problem.model_dump_json(exclude_none=True).encode()
    return [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ], body


async def _too_many(scope: Any, receive: Any, send: Any) -> None:
    headers, body = _problem(HTTPStatus.SERVICE_UNAVAILABLE, "too-many-connections", TOO_MANY)
    headers.append((b"retry-after", str(RETRY_SECONDS).encode()))
    await send({"type": "http.response.start", "status": HTTPStatus.SERVICE_UNAVAILABLE, "headers": headers})
    await send({"type": "http.response.body", "body": body})
