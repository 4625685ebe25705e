"""Call the REST API for the tools, over the network or within the process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx2
import orjson
from mcp.server.mcpserver.exceptions import ToolError
from pydantic_core import to_json
from starlette.types import ASGIApp, Receive, Scope, Send

from boundarymorph.agents.notes import ShownNotes
from boundarymorph.api.visit import VISIT, Visit
from boundarymorph.errors import PROBLEM_TYPE
from boundarymorph.settings import AgentSettings

STARTING_SECONDS, START_PAUSE = 60.0, 0.2  # how long to wait for a service that is loading its models, and how often
ADVICE = {
    "unknown-index": "Call list_indexes for the names of indexes.",
    "empty-index": "Choose another one; list_indexes returns how many documents each index has.",
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
JSON = {"content-type": "application/json"}
BROKEN = "Calling again is unlikely to help; tell your user what you could not look up."


class ServiceProblem(ToolError):
    """A problem that the service answered, with advice for the language model.

    Attributes:
        slug: The type of the problem; empty if the answer has no type.
    """

    def __init__(self, response: httpx2.Response) -> None:
        status, after = response.status_code, response.headers.get("retry-after", "")
        try:
            problem = orjson.loads(response.content)
            detail, self.slug = problem["detail"].rstrip("."), problem["type"].removeprefix(PROBLEM_TYPE)
        except (ValueError, KeyError, TypeError, AttributeError):  # an answer of a proxy
            detail, self.slug = f"the service answered {status} {response.reason_phrase}", ""
        usual = UNAVAILABLE if status == 503 else BROKEN if status >= 500 or not self.slug else ADVICE["invalid-input"]
        advice = ADVICE.get(self.slug, usual).format(seconds=after if after.isdecimal() else 1)
        super().__init__(f"{detail}. {advice}")


@dataclass(frozen=True, slots=True)
class Service:
    """A service's API, which the tools call for one caller.

    Attributes:
        http: A client that sends the credentials of the caller.
        url: The public URL of the service, for links to documents.
        settings: The settings of the tools.
        caller: The name of the caller.
        shown: The notes that callers have been shown.
    """

    http: httpx2.AsyncClient
    url: str
    settings: AgentSettings
    caller: str = ""
    shown: ShownNotes = field(default_factory=ShownNotes)

    async def get(self, path: str) -> Any:
        """Return the JSON at a path. Raises ToolError."""
        return await self._answer("GET", path)

    async def select(self, asked: Mapping[str, Any]) -> Any:
        """Return the answer of POST /select, with texts.

        Fields that are None are not sent. Cancelling the call ends the work in the service.

        Raises:
            ToolError: If the service refuses the request or does not answer.
        """
        given = {name: value for name, value in asked.items() if value is not None}
        return await self._answer("POST", "/select", to_json({"return_documents": True, **given}))

    async def _answer(self, method: str, path: str, body: bytes = b"") -> Any:
        """Return the JSON of an answer, after waiting for a starting service. Raises ToolError."""
        until = time.monotonic() + STARTING_SECONDS
        while True:
            try:
                response = await self.http.request(method, path, content=body, headers=JSON)
            except httpx2.HTTPError as error:
                said = str(error) or type(error).__name__
                broken = f"the service at {self.url} cannot be reached, or its answer broke off: {said}"
                raise ToolError(f"{broken}. {BROKEN}") from error
            if response.is_success:
                return orjson.loads(response.content)
            if (refused := ServiceProblem(response)).slug != "not-ready" or time.monotonic() >= until:
                raise refused
            await asyncio.sleep(START_PAUSE)


def local_service(
    app: ASGIApp,
    url: str,
    headers: Mapping[str, str],
    settings: AgentSettings,
    caller: str = "",
    shown: ShownNotes | None = None,
) -> Service:
    """Return a `Service` that calls the application in this process.

    Args:
        app: The application.
        url: Its public URL.
        headers: The headers with the credentials of the caller.
        settings: The settings of the tools.
        caller: The name of the caller that the service works for.
        shown: The notes that callers have been shown; None if there were none.
    """

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "client": None, "state": {VISIT: Visit(counted=True, caller=caller)}}, receive, send)

    transport = httpx2.ASGITransport(inside, raise_app_exceptions=False)
    http = httpx2.AsyncClient(transport=transport, base_url="http://service", headers=headers, trust_env=False)
    return Service(http, url, settings, caller, shown or ShownNotes())


def path_of(index: str, *below: str) -> str:
    """Return the path of an index, or of a resource below it.

    The parts `.` and `..` are escaped because they would lead to another route.
    """
    parts = [quote(name, safe="") if name.strip(".") else name.replace(".", "%2E") for name in (index, *below)]
    return "/indexes/" + "/".join(parts)
