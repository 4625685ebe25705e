"""The REST API as the tools use it, over the network or within the process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
import orjson
from pydantic_core import to_json

from boundarymorph.errors import PROBLEM_TYPE

STARTING_SECONDS, START_PAUSE = 60.0, 0.2  # how long to wait for a service that is loading its models, and how often
EVENTS = "text/event-stream"
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


class ToolError(Exception):
    """An error for a language model: what is wrong, and what to do next.

    problem: the service's, if it answered with one.
    """

    def __init__(self, message: str, problem: Mapping[str, Any] | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.problem = problem
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Rest:
    """A service's API with the credentials of one caller.

    url: the public URL of the service, for links to documents. headers: sent with every request.
    """

    http: httpx.AsyncClient
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    async def get(self, path: str) -> dict[str, Any]:
        """Return the JSON at a path. Raises ToolError."""
        request = self.http.build_request("GET", path, headers=self.headers)
        async with self._answer(request) as response:
            await response.aread()
            found: dict[str, Any] = response.json()
            return found

    async def select(self, body: Mapping[str, Any]) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Yield the events of POST /select: `round` before each round, `selection` last. Closing the generator ends the
        work in the service.

        Raises ToolError.
        """
        headers = {**self.headers, "accept": EVENTS, "content-type": "application/json"}
        request = self.http.build_request("POST", "/select", content=to_json(body), headers=headers)
        async with self._answer(request) as response:
            name = b""
            async for line in _lines(response):
                key, _, value = line.partition(b": ")
                if key == b"event":
                    name = value
                elif key == b"data":
                    data: dict[str, Any] = orjson.loads(value)
                    if name == b"problem":
                        raise _error(data, response.headers)
                    yield name.decode(), data

    def document_path(self, index: str, id: str) -> str:
        return f"{self.index_path(index)}/documents/{_segment(id)}"

    def index_path(self, index: str) -> str:
        return f"/indexes/{_segment(index)}"

    @asynccontextmanager
    async def _answer(self, request: httpx.Request) -> AsyncIterator[httpx.Response]:
        """Yield a successful response, streamed, after waiting for a service that is starting. Raises ToolError for any
        other response."""
        until = time.monotonic() + STARTING_SECONDS
        try:
            while not (response := await self.http.send(request, stream=True)).is_success:
                async with aclosing(response):
                    await response.aread()
                error = _of_response(response)
                if not _starting(error) or time.monotonic() >= until:
                    raise error
                await asyncio.sleep(START_PAUSE)
            async with aclosing(response):
                yield response
        except httpx.HTTPError as error:
            said = str(error) or type(error).__name__
            raise ToolError(
                f"the service at {self.url} cannot be reached, or its answer broke off: {said}. {BROKEN}"
            ) from error


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the complete lines of a response. httpx would also end them at U+2028 and others, which JSON permits in
    strings."""
    parts: list[bytes] = []
    async for received in response.aiter_bytes():
        rest, *others = received.split(b"\n")
        parts.append(rest)
        for other in others:
            yield b"".join(parts)
            parts = [other]


def _segment(name: str) -> str:
    """Escape a segment of a path, including `.` and `..`, which would lead to another route."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def _starting(error: ToolError) -> bool:
    return error.problem is not None and error.problem["type"] == f"{PROBLEM_TYPE}not-ready"


def _of_response(response: httpx.Response) -> ToolError:
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if isinstance(problem, dict) and all(isinstance(problem.get(field), str) for field in ("detail", "type")):
        return _error(problem, response.headers)
    return ToolError(f"the service answered {response.status_code} {response.reason_phrase}. {BROKEN}")


def _error(problem: dict[str, Any], headers: Mapping[str, str]) -> ToolError:
    after = headers.get("retry-after", "")
    seconds = int(after) if after.isdecimal() else None
    usual = UNAVAILABLE if problem["status"] == 503 else BROKEN if problem["status"] >= 500 else ADVICE["invalid-input"]
    advice = ADVICE.get(problem["type"].removeprefix(PROBLEM_TYPE), usual).format(seconds=seconds or 1)
    message = f"{problem['detail'].rstrip('.')}. {advice}"
    return ToolError(message, {**problem, "detail": message}, seconds)
