"""HTTP/1.1 on the connections of callers: how long they may take, how many stay open, and answers before a request."""

from __future__ import annotations

import asyncio
import resource
from functools import partial
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from boundarymorph.api.problems import MEDIA_TYPE
from boundarymorph.api.schemas import Problem
from boundarymorph.errors import PROBLEM_TYPE, InvalidConfiguration
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics

ROOM = 16  # connections beyond the limit, for probes and for heads that are still arriving
LARGEST = 10_000  # the default limit where a process may open far more descriptors


class Connections:
    """The open connections of a process: at most `most` with a request in progress, and `ROOM` more.

    A connection without a request, idle or with an incomplete head, may have to make room: first the one that has been
    so for longest.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: set[ProblemProtocol] = set()
        self._waiting: dict[ProblemProtocol, None] = {}  # without a request in progress, the longest first

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        """Whether only a probe may begin."""
        return len(self._open) - len(self._waiting) >= self.most

    def opened(self, connection: ProblemProtocol) -> None:
        """Add a connection; if there are too many, another one makes room, or this one is closed."""
        self._open.add(connection)
        self.waits(connection)
        if len(self._open) > self.most + ROOM:
            next(iter(self._waiting)).abort("full")

    def closed(self, connection: ProblemProtocol) -> None:
        """Forget a connection."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def waits(self, connection: ProblemProtocol) -> None:
        """Note that a connection waits for a request."""
        if connection in self._open:
            self._waiting.pop(connection, None)
            self._waiting[connection] = None

    def works(self, connection: ProblemProtocol) -> None:
        """Note that a request of a connection begins."""
        self._waiting.pop(connection, None)


def most_connections(chosen: int | None) -> int:
    """Return the limit in force: half of the descriptors that this process may open, unless another is chosen."""
    return chosen or max(1, min(LARGEST, descriptors() // 2 - ROOM))


def check_connections(chosen: int | None) -> None:
    """Raises InvalidConfiguration if so many connections would leave no descriptors for anything else."""
    if chosen is not None and chosen + ROOM >= descriptors():
        raise InvalidConfiguration(
            f"limits.connections is {chosen:,}, and a process may open {descriptors():,} descriptors in all: "
            "choose fewer connections, or raise the limit (ulimit -n)"
        )


def descriptors() -> int:
    """Return the number of descriptors that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


class RequestParser:
    """httptools' parser, which reads on where that one would leave the connection to another protocol.

    At the end of a head with an `Upgrade` httptools stops and takes the body for something else. RFC 9110, 7.8: an
    upgrade that is not taken is ignored. So the head is parsed anew without that field, and then what came after it.
    The protocol's callbacks come for both heads; those of the first one while `asks_for_upgrade`.
    """

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self._parser = _fresh(protocol)

    def feed_data(self, data: bytes) -> None:
        """Parse what has arrived. Raises httptools.HttpParserError; then the connection must be closed."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                if self.get_method() == b"CONNECT":
                    raise httptools.HttpParserError("this is no proxy") from None
                data = self._head() + data[stopped.args[0] :]
                self._parser = _fresh(self._protocol)
            else:
                return

    def _head(self) -> bytes:
        """Return the head that has just ended, without what asks for an upgrade."""
        line = b"%s %s HTTP/%s" % (self.get_method(), self._protocol.url, self.get_http_version().encode())
        fields = [b"%s: %s" % (name, value) for name, value in self._protocol.headers if name != b"upgrade"]
        return b"\r\n".join([line, *fields, b"", b""])

    @property
    def asks_for_upgrade(self) -> bool:
        """Whether the head that is being parsed will be parsed anew, or refused."""
        return bool(self._parser.should_upgrade())

    def should_upgrade(self) -> bool:
        """Return False: to uvicorn a request is one like any other."""
        return False

    def __getattr__(self, name: str) -> Any:
        """Return what else uvicorn uses of httptools' parser."""
        return getattr(self._parser, name)


def _fresh(protocol: HttpToolsProtocol) -> Any:
    parser = httptools.HttpRequestParser(protocol)
    if hasattr(parser, "set_dangerous_leniencies"):
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
    return parser


PROBES = (b"/livez", b"/readyz", b"/health", b"/metrics")
RETRY_SECONDS = 1
TOO_MANY = "this process has as many requests as limits.connections allows; try again in a second"


def configured(app: Any, settings: Settings, **options: Any) -> Config:
    """Return uvicorn's configuration for an application and the limits in its settings."""
    most = most_connections(settings.limits.connections)
    protocol = partial(ProblemProtocol, settings=settings, connections=Connections(most))
    # What is accepted at once must leave descriptors for others.
    return Config(
        app,
        http=protocol,  # type: ignore[arg-type]  # uvicorn calls it like a class
        ws="none",
        backlog=max(16, min(2048, most // 2)),
        timeout_keep_alive=settings.keep_alive_seconds,  # type: ignore[arg-type]  # a float, too
        **options,
    )


class ProblemProtocol(HttpToolsProtocol):
    """uvicorn's protocol with bounds on connections, heads and readers, and with problem details instead of plain text.

    A connection is closed if a head does not arrive within `head_seconds` or exceeds `head_bytes`, and if its client
    reads nothing of an answer for `event_seconds`.
    """

    parser: RequestParser  # type: ignore[assignment]  # it has what uvicorn uses of httptools'
    _head_timer: asyncio.TimerHandle | None = None
    _reading_timer: asyncio.TimerHandle | None = None
    _in_head = False
    _head_size = 0  # bytes of a head that has not ended
    _unread = 0  # bytes of answers in the transport's buffer, when last looked at
    _refused = HTTPStatus.BAD_REQUEST

    def __init__(self, *arguments: Any, settings: Settings, connections: Connections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.connections_of_callers = connections
        self.head_seconds, self.head_bytes = settings.head_seconds, settings.limits.head_bytes
        self.event_seconds = settings.event_seconds
        self.parser = RequestParser(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head(self.head_seconds)
        self.connections_of_callers.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._leave()

    def abort(self, reason: str) -> None:
        """Close the connection at once."""
        metrics.connections_closed.labels(reason).inc()
        self._leave()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head_size += len(data) if self._in_head else 0
        if self._in_head and self._head_size > self.head_bytes and not self.transport.is_closing():
            self._refused = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_size = True, 0

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.head_bytes:
            self._refused = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise ValueError("the head of the request is too large")  # answered by send_400_response
        if self.parser.asks_for_upgrade:
            return  # it is parsed anew
        self._in_head = False
        self._stop_awaiting_head()
        probe = self.url.partition(b"?")[0] in PROBES
        self.app = _too_many if self.connections_of_callers.full and not probe else self.config.loaded_app
        self.connections_of_callers.works(self)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.asks_for_upgrade:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_reader()
        if self.cycle.response_complete:  # else the next request of this connection has begun
            self._await_head(self.timeout_keep_alive + self.head_seconds)
            self.connections_of_callers.waits(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = 2**63  # it has read

    def send_400_response(self, msg: str) -> None:
        status = self._refused
        slug = "malformed-http" if status == HTTPStatus.BAD_REQUEST else "headers-too-large"
        detail = msg if status == HTTPStatus.BAD_REQUEST else f"the head is over {self.head_bytes:,} bytes"
        head, body = _problem(status, slug, detail)
        lines = b"".join(b"%s: %s\r\n" % header for header in head)
        self.transport.write(f"HTTP/1.1 {status} {status.phrase}\r\n".encode() + lines + b"\r\n" + body)
        self.transport.close()
        self._watch_reader()

    def _await_head(self, seconds: float) -> None:
        self._stop_awaiting_head()
        if not self.transport.is_closing():
            self._head_timer = self.loop.call_later(seconds, self.abort, "head")

    def _stop_awaiting_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _watch_reader(self) -> None:
        """Close the connection if nothing of what is to be sent is read for too long."""
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
    """Return headers and body of the response to a request that the application does not see."""
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
