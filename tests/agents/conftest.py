"""Run a service on a socket, and connect the SDK's own client over each transport."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import httpx2
import orjson
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

import boundarymorph_client as bm
from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.caching.scores import MemoryScoreCache
from boundarymorph.server.app import create_app
from boundarymorph.settings import Settings
from tests.clients.conftest import serving
from tests.fakes.scorer import SeededScorer
from tests.fakes.service import faked
from tests.patience import PATIENCE

SECRETS = {
    "owner": callers.make_key("owner", list(Scope)),
    "narrow": callers.make_key("narrow", [Scope.SELECT], ["papers"]),
    "rare": callers.make_key("rare", [Scope.SELECT]),
    "writer": callers.make_key("writer", [Scope.WRITE]),
}
LONG = " ".join(f"word{number}" for number in range(3_000))
ABOUT = "Papers, each with its year. " + "Said at length. " * 40


class Transport(StrEnum):
    HTTP = "http"  # protocols since 2026
    LEGACY = "legacy"  # earlier protocols
    STDIO = "stdio"


@dataclass(frozen=True, slots=True)
class Running:
    url: str

    def api(self, name: str = "owner") -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {SECRETS[name][0]}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE)

    def client(self) -> bm.Client:
        return bm.Client(self.url, api_key=SECRETS["owner"][0])

    @asynccontextmanager
    async def connect(self, transport: Transport = Transport.HTTP, name: str = "owner") -> AsyncIterator[Client]:
        """Connect a client that uses the key of this name."""
        secret = SECRETS[name][0]
        if transport == Transport.STDIO:
            args = ["-m", "boundarymorph.cli", "mcp", "--url", self.url]
            command = StdioServerParameters(command=sys.executable, args=args, env={"BOUNDARYMORPH_API_KEY": secret})
            async with Client(command) as client:
                yield client
            return
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {secret}"}, timeout=PATIENCE) as http:
            over = streamable_http_client(f"{self.url}/mcp", http_client=http)
            async with Client(over, mode="legacy" if transport == Transport.LEGACY else "auto") as client:
                yield client


async def call_tool(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the structured answer, after checking that the text content is equal."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    [text] = result.content
    assert text.type == "text"
    found: dict[str, Any] = result.structured_content
    assert orjson.loads(text.text) == found
    return found


async def tool_error(client: Client, tool: str, **arguments: Any) -> str:
    """Return the error message that the language model receives."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error and result.structured_content is None
    [text] = result.content
    assert text.type == "text"
    return text.text


@contextmanager
def running(directory: Path, **changes: Any) -> Iterator[Running]:
    """Run a service with the indexes "papers" (p0 to p39) and "empty".

    Document p7 is long and has a URL.
    """
    settings = Settings(data_directory=directory, keys=tuple(str(key) for _, key in SECRETS.values()), **changes)
    papers: list[dict[str, Any]] = [
        {"id": f"p{n}", "title": f"Paper {n}", "text": f"text {n}", "metadata": {"year": 2000 + n}} for n in range(40)
    ]
    papers[7] |= {"text": LONG, "metadata": {"year": 2007, "url": "https://example.org/seven"}}
    with serving(create_app(settings, build=faked(SeededScorer(), cache=MemoryScoreCache()))) as url:
        service = Running(url)
        with service.client() as client:
            client.create_index("papers")
            client.set_description("papers", ABOUT)
            client.create_index("empty")
            assert client.upload("papers", papers).added == 40
        yield service


Serve = Callable[..., AbstractContextManager[Running]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Return a function that starts services with other settings or changeable indexes."""
    return partial(running, tmp_path)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield a shared service whose indexes no test changes."""
    with running(tmp_path_factory.mktemp("data")) as service:
        yield service
