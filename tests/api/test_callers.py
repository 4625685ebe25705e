"""On whose behalf the work of a request is done."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.access import callers
from boundarymorph.inference.concurrency import CALLER
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.server.app import create_app
from boundarymorph.settings import Settings
from tests.agents import rpc
from tests.api.service import answer, client_of, fake_service, on_socket, ready


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The callers of the lists of indexes."""
    told: list[str] = []
    listed = LocalCatalog.list

    def noted(catalog: LocalCatalog) -> Any:
        told.append(CALLER.get())
        return listed(catalog)

    monkeypatch.setattr(LocalCatalog, "list", noted)
    return told


async def ask(client: httpx.AsyncClient, **headers: str) -> None:
    answer(await client.get("/indexes", headers=headers))


@pytest.mark.parametrize(
    ("address", "caller"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
    ],
)
async def test_without_keys_it_is_the_address(tmp_path: Path, told: list[str], address: str, caller: str) -> None:
    app = create_app(Settings(data_directory=tmp_path), build=fake_service)
    async with client_of(app) as client:
        await ready(client)
        transport = httpx.ASGITransport(app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as from_there:
            await ask(from_there)
            called = await rpc.call(from_there, "list_indexes")
            assert called["structuredContent"]["indexes"] == []
    assert told == [caller, caller], "a tool calls on behalf of its caller"


async def test_behind_a_proxy_on_this_machine_it_is_the_address_that_the_proxy_tells(
    tmp_path: Path, told: list[str]
) -> None:
    app = create_app(Settings(data_directory=tmp_path), build=fake_service)
    async with on_socket(app) as url, httpx.AsyncClient(base_url=url) as client:
        await ready(client)
        await ask(client)
        await ask(client, **{"X-Forwarded-For": "203.0.113.9, 192.0.2.7"})
    assert told == ["127.0.0.1", "192.0.2.7"], "what a client itself puts before it counts for nothing"


async def test_with_keys_it_is_the_key_wherever_it_comes_from(tmp_path: Path, told: list[str]) -> None:
    secret, key = callers.make_key("rag", [callers.Scope.SELECT])
    app = create_app(Settings(data_directory=tmp_path, keys=(str(key),)), build=fake_service)
    async with client_of(app) as client:
        client.headers["Authorization"] = f"Bearer {secret}"
        await ready(client)
        await ask(client)
        await ask(client, **{"X-BoundaryMORPH-Caller": "another"})
    assert told == ["rag", "rag"]
