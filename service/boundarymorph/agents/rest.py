"""The REST API as the tools use it, over the network or within the process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx2
import orjson
from mcp.server.mcpserver.exceptions import ToolError
from pydantic_core import to_json
from starlette.types import ASGIApp, Message

from boundarymorph.api.dependencies import COUNTED
from boundarymorph.errors import PROBLEM_TYPE
from boundarymorph.settings import AgentSettings

STARTING_SECONDS, START_PAUSE = 60.0, 0.2  # how long to wait for a service that is loading its models, and how often
ADVICE = {
    "unknown-index": "Call list_indexes for the names of indexes.",
    "empty-index": "Choose another one; list_indexes returns how many documents each index has.",
    "invalid-index-name": "Call list_indexes for the names of indexes.",
    "unknown-document": "Use ids from search and select_documents, unchanged, or search again.",
    "invalid-input": "Correct that argument and call again.",
    "limit-exceeded": "Ask for less and call again.",
    "unauthenticated": "Tell your user that an API key is needed; calling again will not help.",
    "forbidden": "Tell your user that the API key does not permit this; calling again will not help.",
    "overloaded": "Wait {seconds} seconds and call again.",
    "rate-limited": "Wait {seconds} seconds and call again.",
    "deadline-exceeded": "Call again with a smaller budget.",
}
UNAVAILABLE = "Wait {seconds} seconds and call again; if that does not help, tell your user."
BROKEN = "Calling again is unlikely to help; tell your user what you could not look up."


class Refused(ToolError):
    """A problem of the service, with what the language model should do about it.

    slug: the type of the problem.
    """

    def __init__(self, problem: Mapping[str, Any], after: str) -> None:
        status, self.slug = problem["status"], problem["type"].removeprefix(PROBLEM_TYPE)
        usual = UNAVAILABLE if status == 503 else BROKEN if status >= 500 else ADVICE["invalid-input"]
        advice = ADVICE.get(self.slug, usual).format(seconds=after if after.isdecimal() else 1)
        super().__init__(f"{problem['detail'].rstrip('.')}. {advice}")


@dataclass(frozen=True, slots=True)
class Service:
    """A service's API, as the tools call it on behalf of one caller.

    url: the public URL of the service, for links to documents. headers: sent with every request, with the credentials
    of the caller.
    """

    http: httpx2.AsyncClient
    url: str
    settings: AgentSettings
    headers: Mapping[str, str] = field(default_factory=dict)

    async def get(self, path: str) -> Any:
        """Return the JSON at a path. Raises ToolError."""
        async with self._answer("GET", path) as response:
            return orjson.loads(await response.aread())

    async def select(self, body: Mapping[str, Any], told: Callable[[Any], Awaitable[None]]) -> Any:
        """Return the answer of POST /select. told: hears the event before each round. Cancelling it ends the work in
        the service. Raises ToolError."""
        headers = {"accept": "text/event-stream", "content-type": "application/json"}
        last = None
        async with self._answer("POST", "/select", content=to_json(body), headers=headers) as response:
            async for event in httpx2.EventSource(response, max_event_size=None):
                last = orjson.loads(event.data)
                if event.event == "problem":
                    raise Refused(last, response.headers.get("retry-after", ""))
                if event.event == "round":
                    await told(last)
                    last = None
        if last is None:
            raise ToolError("the service broke off its answer. Call again.")
        return last

    @asynccontextmanager
    async def _answer(self, method: str, path: str, **sent: Any) -> AsyncIterator[httpx2.Response]:
        """Yield a successful response, streamed, after waiting for a service that is starting. Raises ToolError for any
        other response."""
        sent["headers"] = {**self.headers, **sent.get("headers", {})}
        until = time.monotonic() + STARTING_SECONDS
        try:
            while True:
                async with self.http.stream(method, path, **sent) as response:
                    if response.is_success:
                        yield response
                        return
                    refused = _refused(response, await response.aread())
                if getattr(refused, "slug", None) != "not-ready" or time.monotonic() >= until:
                    raise refused
                await asyncio.sleep(START_PAUSE)
        except httpx2.HTTPError as error:
            said = str(error) or type(error).__name__
            raise ToolError(
                f"the service at {self.url} cannot be reached, or its answer broke off: {said}. {BROKEN}"
            ) from error


def path_of(index: str, *below: str) -> str:
    """Return the path of an index, or of what is below it. Parts `.` and `..`, which would lead to another route, are
    escaped, too."""
    parts = [quote(name, safe="") if name.strip(".") else name.replace(".", "%2E") for name in (index, *below)]
    return "/indexes/" + "/".join(parts)


def _refused(response: httpx2.Response, body: bytes) -> ToolError:
    try:
        return Refused(orjson.loads(body), response.headers.get("retry-after", ""))
    except (ValueError, KeyError, TypeError, AttributeError):  # no problem of ours
        return ToolError(f"the service answered {response.status_code} {response.reason_phrase}. {BROKEN}")


_running: set[asyncio.Task[None]] = set()  # the event loop keeps only weak references to tasks


class Loopback(httpx2.AsyncBaseTransport):
    """A transport to an ASGI application. Unlike `httpx2.ASGITransport`, it does not wait for the end of a response.

    Closing a response early is a disconnection for the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body, messages, left = [await request.aread()], asyncio.Queue[Message | None](), asyncio.Event()

        async def receive() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self._app(_scope(request), receive, messages.put)
            finally:
                messages.put_nowait(None)

        task = asyncio.create_task(run())
        _running.add(task)
        task.add_done_callback(_running.discard)
        try:
            start = await messages.get()
        except asyncio.CancelledError:
            left.set()
            raise
        if start is None:
            raise httpx2.RemoteProtocolError("the application gave no answer", request=request)
        return httpx2.Response(start["status"], headers=start["headers"], stream=_Answer(messages, left))


class _Answer(httpx2.AsyncByteStream):
    """The body of a response, by its messages. left: set when it is closed."""

    def __init__(self, messages: asyncio.Queue[Message | None], left: asyncio.Event) -> None:
        self._messages, self._left = messages, left

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._messages.get()) is not None:
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return

    async def aclose(self) -> None:
        self._left.set()


def _scope(request: httpx2.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "server": (request.url.host, request.url.port),
        "client": None,
        "state": {COUNTED: True},
    }
