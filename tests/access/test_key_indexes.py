"""Test keys that may use only some indexes: every route hides the other indexes."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.server.app import create_app, create_retriever_app, create_scorer_app
from boundarymorph.settings import RetrieverSettings, Settings
from tests.fakes.service import answer, application, bearer, client_of, gateway_to, on_socket, problem, ready

SOME, ALL = callers.make_key("some", list(Scope), ["photos", "team-*"]), callers.make_key("all", list(Scope))
DOCUMENT = {"id": "a", "text": "t", "embedding": [1, 0]}
ON_INDEXES: list[tuple[str, str, object]] = [
    ("GET", "/indexes/{name}", None),
    ("PUT", "/indexes/{name}", {"dimension": 2}),
    ("POST", "/indexes/{name}/documents", [DOCUMENT]),
    ("GET", "/indexes/{name}/documents", None),
    ("GET", "/indexes/{name}/stats", None),
    ("PUT", "/indexes/{name}/description", {"description": "d"}),
    ("GET", "/indexes/{name}/artifacts", None),
    ("PATCH", "/indexes/{name}/artifacts", {"distinct": "n"}),
    ("GET", "/indexes/{name}/documents/{id}", None),
    ("DELETE", "/indexes/{name}/documents/{id}", None),
    ("DELETE", "/indexes/{name}/documents", {"ids": ["a"]}),
    ("DELETE", "/indexes/{name}", None),
]
SELECT: tuple[str, str, dict[str, Any]] = (
    "POST",
    "/select",
    {"index": None, "query": "q", "query_embedding": [1, 0], "k": 1, "budget": 1},
)
OF_RETRIEVERS: list[tuple[str, str, object]] = [
    ("POST", "/retrieve", {"index": None, "query": "", "query_embedding": [1, 0], "depth": 1}),
    ("POST", "/documents", {"index": None, "ids": ["a"]}),
    ("POST", "/characters", {"index": None, "ids": ["a"]}),
]
SELECTING = [SELECT, *ON_INDEXES]
ROUTES = {"whole": SELECTING, "gateway": SELECTING, "retriever": [*OF_RETRIEVERS, *ON_INDEXES]}


@pytest.fixture(params=ROUTES)
async def role(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    """Yield each application that has index routes, and a client that has both keys."""
    settings = Settings(data_directory=tmp_path, keys=tuple(str(key) for _, key in (SOME, ALL)))
    async with AsyncExitStack() as stack:
        if request.param == "gateway":
            behind = application("retriever", Settings(data_directory=tmp_path))
            made = gateway_to(await stack.enter_async_context(on_socket(behind)), settings)
        else:
            made = client_of(application(request.param, settings))
        client = await stack.enter_async_context(made)
        await ready(client)
        for name in ("photos", "secret", "team-a"):
            answer(await client.put(f"/indexes/{name}", json={"dimension": 2}, headers=bearer(ALL[0])))
            answer(await client.post(f"/indexes/{name}/documents", json=[DOCUMENT], headers=bearer(ALL[0])))
        yield request.param, client


async def ask(client: httpx.AsyncClient, route: tuple[str, str, Any], index: str, who: Any = SOME) -> httpx.Response:
    method, path, body = route
    if isinstance(body, dict) and "index" in body:
        body = body | {"index": index}
    return await client.request(method, path.format(name=index, id="a"), json=body, headers=bearer(who[0]))


async def names(client: httpx.AsyncClient, who: Any) -> list[str]:
    return [index["name"] for index in answer(await client.get("/indexes", headers=bearer(who[0])))["indexes"]]


async def test_key_sees_other_indexes_as_unknown(role: tuple[str, httpx.AsyncClient]) -> None:
    application, client = role
    for route in ROUTES[application]:
        there, nowhere = [await ask(client, route, name) for name in ("secret", "absent")]
        told = problem(there, 404, "unknown-index"), problem(nowhere, 404, "unknown-index")
        assert told[0].replace("secret", "absent") == told[1], route
    assert await names(client, SOME) == ["photos", "team-a"]
    assert await names(client, ALL) == ["photos", "secret", "team-a"]
    assert answer(await client.get("/indexes/secret", headers=bearer(ALL[0])))["count"] == 1


async def test_key_uses_its_own_indexes_on_every_route(role: tuple[str, httpx.AsyncClient]) -> None:
    application, client = role
    for name in ("photos", "team-a"):
        for route in ROUTES[application]:
            response = await ask(client, route, name)
            assert response.is_success, (route, response.text)
            if route[0] == "DELETE":
                answer(await client.put(f"/indexes/{name}", json={"dimension": 2}, headers=bearer(SOME[0])))
                answer(await client.post(f"/indexes/{name}/documents", json=[DOCUMENT], headers=bearer(SOME[0])))
    for route in ROUTES[application]:
        assert "unknown-index" not in (await ask(client, route, "secret", ALL)).text, route


def test_routes_of_this_test_are_all_that_name_an_index(tmp_path: Path) -> None:
    settings = Settings(data_directory=tmp_path)
    gateway = settings.model_copy(update={"retriever": RetrieverSettings(url=("http://127.0.0.1:1",))})
    applications = {
        "whole": create_app(settings),
        "gateway": create_app(gateway),
        "retriever": create_retriever_app(settings),
    }
    for name, app in applications.items():
        listed = {(method, path) for method, path, _ in ROUTES[name]}
        assert _with_index(app.openapi()) == listed, name
    assert _with_index(create_scorer_app(settings).openapi()) == set()


def _with_index(document: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the operations that have an index in their path or body."""
    found = set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            schema = content.get("schema", {})
            if reference := schema.get("$ref"):
                schema = document["components"]["schemas"][reference.rpartition("/")[2]]
            if "{name}" in path or {"index", "knowledge_id"} & schema.get("properties", {}).keys():
                found.add((method.upper(), path.replace(":path", "")))
    return found
