from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from boundarymorph.server import composition
from boundarymorph.server.app import create_app
from boundarymorph.settings import CacheSettings, Settings
from tests.clients.flavours import Connect, Flavour, connecting
from tests.clients.way import Recorder, Way
from tests.fakes.service import NDJSON, answer, fake_service, on_socket, ready

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read when it is imported


@pytest.fixture(params=[Flavour.ASYNC, pytest.param(Flavour.SYNC, marks=pytest.mark.slow)])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """The test runs with `AsyncClient`, and in `make test-all` with `Client`, which is made from it."""
    return Flavour(request.param)


@pytest.fixture
async def connect(flavour: Flavour) -> AsyncIterator[Connect]:
    async with connecting(flavour) as connect:
        yield connect


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_directory=tmp_path)


@pytest.fixture
def recorder(settings: Settings) -> Recorder:
    """The application of a service, and what it is asked."""
    return Recorder(create_app(settings, build=fake_service))


@pytest.fixture
async def url(recorder: Recorder) -> AsyncIterator[str]:
    """A service on a socket, with cheap models and the index "texts" (d0 to d39)."""
    async with on_socket(recorder) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            await ready(client)
            if not recorder.app.state.access.keys:
                answer(await client.put("/indexes/texts"))
                lines = "\n".join(f'{{"id": "d{number}", "text": "text {number}"}}' for number in range(40))
                answer(await client.post("/indexes/texts/documents", content=lines, headers=NDJSON))
        recorder.seen.clear()
        yield url


@pytest.fixture
async def embedded_url(tmp_path: Path) -> AsyncIterator[str]:
    """A service on a socket, with the embedded models."""
    settings = Settings(data_directory=tmp_path / "data", cache=CacheSettings(enabled=False))
    async with on_socket(create_app(settings, build=composition.build)) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            await ready(client)
        yield url


@pytest.fixture
async def way(url: str) -> AsyncIterator[Way]:
    """A way to the service that can be cut."""
    async with Way.to(url) as way:
        yield way


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOUNDARYMORPH_URL", raising=False)
    monkeypatch.delenv("BOUNDARYMORPH_API_KEY", raising=False)
