"""Run a service on a socket, record its requests, and give both clients one interface."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import orjson
import pytest
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boundarymorph.server import composition
from boundarymorph.server.app import create_app
from boundarymorph.settings import CacheSettings, Settings
from boundarymorph_client import AsyncClient, Client
from tests.fakes.service import fake_service, on_socket
from tests.patience import until

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # Haystack's import reads this
Connect = Callable[..., AsyncClient]
Step = TypeVar("Step")
COUNT = 40  # documents of the index "texts"


@dataclass
class Seen:
    """A request that the service received; `client` is its address, one per connection."""

    path: str
    headers: dict[str, str]
    client: tuple[str, int]
    content: bytearray = field(default_factory=bytearray)

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.content)
        return found


class Recorder:
    """ASGI middleware that records the requests."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self.seen: list[Seen] = []
        self.url = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        seen = Seen(scope["path"], headers, scope["client"])
        self.seen.append(seen)

        async def received() -> Message:
            message = await receive()
            seen.content += message.get("body", b"")
            return message

        await self.app(scope, received, send)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Return the bodies of POST /select, in order."""
        return [seen.body for seen in self.seen if seen.path == "/select"]

    @property
    def connections(self) -> int:
        return len({seen.client for seen in self.seen})

    def is_idle(self) -> bool:
        access = self.app.state.access
        return bool(access.requests.total == access.admission.running == 0)


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Yield the URL of an application in a thread of its own, so that tests may block."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(on_socket(app)) as url:
        until(lambda: httpx.get(f"{url}/readyz").status_code != httpx.codes.SERVICE_UNAVAILABLE)
        yield url


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    """Yield a service with cheap models and the index "texts" (d0 to d39).

    Tests must not change the index.
    """
    recorder = Recorder(create_app(Settings(data_directory=tmp_path_factory.mktemp("data")), build=fake_service))
    with serving(recorder) as recorder.url:
        with Client(recorder.url) as client:
            client.create_index("texts")
            client.upload(
                "texts",
                [
                    {"id": f"d{n}", "text": f"text {n}", "title": f"Title {n}", "metadata": {"n": n}}
                    for n in range(COUNT)
                ],
            )
        yield recorder


@pytest.fixture
def recorder(service: Recorder) -> Recorder:
    """Return the recorder of requests, emptied before the test."""
    service.seen.clear()
    return service


@pytest.fixture
def url(service: Recorder) -> str:
    return service.url


@pytest.fixture
def embedded_url(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a service with the embedded models and the default relevance."""
    settings = Settings(data_directory=tmp_path / "data", relevance="human", cache=CacheSettings(enabled=False))
    with serving(create_app(settings, build=composition.build)) as url:
        yield url


class Flavour(StrEnum):
    ASYNC = "async"
    SYNC = "sync"


class InThread:
    """A `Client` with the methods of an `AsyncClient`: each call runs in a thread."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **options: Any) -> Any:
            return await asyncio.to_thread(getattr(self._client, name), *arguments, **options)

        return call

    def stream(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        return self._each(self._client.stream(*arguments, **options))

    def select_batch(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        return self._each(self._client.select_batch(*arguments, **options))

    async def _each(self, steps: Generator[Step, None, None]) -> AsyncIterator[Step]:
        try:
            while (step := await asyncio.to_thread(next, steps, None)) is not None:
                yield step
        finally:
            await asyncio.to_thread(steps.close)


@pytest.fixture(params=[Flavour.ASYNC, pytest.param(Flavour.SYNC, marks=pytest.mark.slow)])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Run the test with `AsyncClient`, and in `make test-all` also with `Client`.

    `Client` is generated from `AsyncClient`.
    """
    return Flavour(request.param)


@pytest.fixture
async def connect(flavour: Flavour) -> AsyncIterator[Connect]:
    """Return a function that makes clients of a URL or a transport, and close them afterwards."""
    made: list[Any] = []

    def connect(to: str | Callable[[httpx.Request], httpx.Response], **options: Any) -> AsyncClient:
        if not isinstance(to, str):
            kind = httpx.AsyncClient if flavour is Flavour.ASYNC else httpx.Client
            options["http"], to = kind(transport=httpx.MockTransport(to)), "http://service"
        client = AsyncClient(to, **options) if flavour is Flavour.ASYNC else InThread(Client(to, **options))
        made.append(client)
        return cast(AsyncClient, client)

    yield connect
    for client in made:
        await client.close()


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOUNDARYMORPH_URL", raising=False)
    monkeypatch.delenv("BOUNDARYMORPH_API_KEY", raising=False)
