"""A service on a socket with cheap models, and the SDK's own client for it over each transport."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx
import httpx2
import orjson
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.caching.known import MemoryScoreCache
from boundarymorph.scoring.scorer import Scores
from boundarymorph.server.app import create_app
from boundarymorph.settings import AgentSettings, RateLimitSettings, Settings
from tests.fakes.scorer import SeededScorer
from tests.fakes.service import answer, faked, on_socket, ready
from tests.patience import PATIENCE

SECRETS = {
    "owner": callers.make_key("owner", list(Scope)),
    "narrow": callers.make_key("narrow", [Scope.SELECT], ["papers"]),
    "rare": callers.make_key("rare", [Scope.SELECT]),
    "writer": callers.make_key("writer", [Scope.WRITE]),
}
LONG = " ".join(f"word{number}" for number in range(3_000))
ABOUT = "Papers, each with its year. " + "Said at length. " * 40


class GatedScorer(SeededScorer):
    """It can be made to wait, and notices when it is no longer waited for.

    rounds_left: before it waits for good; None: it never does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rounds_left: int | None = None
        self.waiting = asyncio.Event()
        self.left = asyncio.Event()

    async def score(self, query: str, texts: Sequence[str], *, deadline: float | None = None, **_: Any) -> Scores:
        if self.rounds_left == 0:
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.left.set()
                raise
        if self.rounds_left is not None:
            self.rounds_left -= 1
        return await super().score(query, texts, deadline=deadline)


class Transport(StrEnum):
    HTTP = "http"  # of protocols since 2026
    LEGACY = "legacy"  # HTTP as before
    STDIO = "stdio"


@dataclass(frozen=True, slots=True)
class Running:
    """A service, and its scorer in this process."""

    url: str
    scorer: GatedScorer

    def api(self, name: str = "owner") -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {SECRETS[name][0]}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE)

    @asynccontextmanager
    async def connect(self, transport: Transport, name: str = "owner") -> AsyncIterator[Client]:
        """A client with the key of this name."""
        secret = SECRETS[name][0]
        if transport == Transport.STDIO:
            command = StdioServerParameters(
                command=sys.executable,
                args=["-m", "boundarymorph.cli", "mcp", "--url", self.url],
                env={"BOUNDARYMORPH_API_KEY": secret},
            )
            async with Client(command) as client:
                yield client
            return
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {secret}"}, timeout=PATIENCE) as http:
            over = streamable_http_client(f"{self.url}/mcp", http_client=http)
            async with Client(over, mode="legacy" if transport == Transport.LEGACY else "auto") as client:
                yield client


async def structured(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The answer, which the client has held against the tool's output schema, and is the text too."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    [text] = result.content
    assert text.type == "text"
    found: dict[str, Any] = result.structured_content
    assert orjson.loads(text.text) == found
    return found


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """What the language model is told."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert result.structured_content is None
    [text] = result.content
    assert text.type == "text"
    return text.text


Serve = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """A service with the indexes "papers" (p0 to p39, of which p7 is long and has a URL) and "empty"."""

    @asynccontextmanager
    async def serving(**changes: Any) -> AsyncIterator[Running]:
        scorer = GatedScorer()

        given = {
            "data_directory": tmp_path,
            "keys": tuple(str(key) for _, key in SECRETS.values()),
            "rate_limits": RateLimitSettings(keys={"rare": "2/hour"}),
            "agents": AgentSettings(),
        }
        settings = Settings(**{**given, **changes})
        build = faked(scorer, cache=MemoryScoreCache())
        async with on_socket(create_app(settings, build=build)) as url:
            running = Running(url, scorer)
            async with running.api() as api:
                await ready(api)
                await _fill(api)
            scorer.rounds.clear()
            yield running

    return serving


@pytest.fixture
async def service(serve: Serve) -> AsyncIterator[Running]:
    async with serve() as running:
        yield running


async def _fill(api: httpx.AsyncClient) -> None:
    answer(await api.put("/indexes/papers"))
    assert (await api.put("/indexes/papers/description", json={"description": ABOUT})).is_success
    answer(await api.put("/indexes/empty"))
    papers = [
        {"id": f"p{n}", "title": f"Paper {n}", "text": f"text {n}", "metadata": {"year": 2000 + n}} for n in range(40)
    ]
    papers[7] |= {"text": LONG, "metadata": {"year": 2007, "url": "https://example.org/seven"}}
    assert answer(await api.post("/indexes/papers/documents", json=papers))["added"] == 40
