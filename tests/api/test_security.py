"""Test keys, scopes, security headers, and admission when the service is full."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import orjson
import pytest

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.settings import Limits, Settings
from boundarymorph.telemetry import tracing
from tests.fakes.service import BlockedScoring, bearer, problem, serving, texts
from tests.metrics import counted
from tests.patience import until_async

SECRETS = {scope: callers.make_key(scope, [scope]) for scope in Scope}
SELECT = {"query": "q", "pool": texts(9), "budget": 3, "k": 2, "rounds": 1}
ROUTES = [
    ("POST", "/select", Scope.SELECT),
    ("GET", "/indexes", Scope.SELECT),
    ("GET", "/indexes/x", Scope.SELECT),
    ("GET", "/indexes/x/documents/y", Scope.SELECT),
    ("PUT", "/indexes/x", Scope.WRITE),
    ("PUT", "/indexes/x/description", Scope.WRITE),
    ("GET", "/indexes/x/artifacts", Scope.SELECT),
    ("PATCH", "/indexes/x/artifacts", Scope.WRITE),
    ("POST", "/indexes/x/documents", Scope.WRITE),
    ("DELETE", "/indexes/x/documents", Scope.WRITE),
    ("DELETE", "/indexes/x/documents/y", Scope.WRITE),
    ("DELETE", "/indexes/x", Scope.ADMIN),
]


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a service with one key per scope."""
    configured = tuple(str(key) for _, key in SECRETS.values())
    async with serving(Settings(data_directory=tmp_path, keys=configured)) as client:
        yield client


class TestKeys:
    @pytest.mark.parametrize(("method", "path", "scope"), ROUTES)
    async def test_each_route_requires_its_scope(
        self, locked: httpx.AsyncClient, method: str, path: str, scope: Scope
    ) -> None:
        missing = await locked.request(method, path)
        problem(missing, 401, "unauthenticated")
        assert missing.headers["www-authenticate"] == "Bearer"
        wrong = await locked.request(method, path, headers={"authorization": "Bearer bm_wrong"})
        assert "bm_wrong" not in problem(wrong, 401, "unauthenticated")
        for other in Scope:
            response = await locked.request(method, path, headers=bearer(SECRETS[other][0]))
            assert (response.status_code == 403) == (other != scope), other
            assert response.status_code != 401


class TestEveryAnswer:
    @pytest.mark.parametrize("path", ["/livez", "/indexes/none", "/nowhere"])
    async def test_every_answer_has_security_headers(self, client: httpx.AsyncClient, path: str) -> None:
        response = await client.get(path)
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
        assert len(response.headers["x-request-id"]) == 32
        assert "access-control-allow-origin" not in response.headers

    async def test_valid_request_id_of_the_caller_is_kept(self, client: httpx.AsyncClient) -> None:
        for given, kept in (("trace-1.A_b", True), ("x" * 65, False), ("a b", False), ('"', False)):
            response = await client.get("/livez", headers={"x-request-id": given})
            assert (response.headers["x-request-id"] == given) == kept

    async def test_access_log_omits_texts_and_query_strings(
        self, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "boundarymorph.access_log"):
            request = SELECT | {"query": "a private question"}
            await client.post("/select?token=private", json=request, headers={"x-request-id": "r1"})
            await client.get("/livez")
        (record,) = [record for record in caplog.records if record.name == "boundarymorph.access_log"]
        line = orjson.loads(tracing.JsonLines().format(record))
        assert (line["method"], line["path"], line["status"]) == ("POST", "/select", 422)
        assert line["seconds"] > 0
        assert "private" not in caplog.text

    @pytest.mark.parametrize(
        ("path", "logged"),
        [
            ("/indexes/x%0aINFO:%20%20%20%20%20POST%20/select%20200", None),
            ("/indexes/x%0D%0a%1b[31m", None),
            ("/indexes/a%2Fb/documents/%E2%82%AC", None),
            ("/indexes/\u20ac", "/indexes/%E2%82%AC"),
        ],
    )
    async def test_access_log_shows_the_path_escaped(
        self, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, path: str, logged: str | None
    ) -> None:
        with caplog.at_level(logging.INFO, "boundarymorph.access_log"):
            await client.get(path)
        (record,) = [record for record in caplog.records if record.name == "boundarymorph.access_log"]
        text, line = tracing.Lines().format(record), orjson.loads(tracing.JsonLines().format(record))
        assert line["path"] == (logged or path)
        assert f" GET {logged or path} 4" in text
        assert text.isprintable()

    async def test_access_log_names_the_caller(
        self, locked: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "boundarymorph.access_log"):
            for headers, status in (
                (bearer(SECRETS[Scope.WRITE][0]), 201),
                (bearer(SECRETS[Scope.SELECT][0]), 403),
                ({"authorization": "Bearer bm_wrong"}, 401),
            ):
                assert (await locked.put("/indexes/x", headers=headers)).status_code == status
        records = [record for record in caplog.records if record.name == "boundarymorph.access_log"]
        lines = [orjson.loads(tracing.JsonLines().format(record)) for record in records]
        assert [(line["status"], line["caller"]) for line in lines] == [(201, "write"), (403, "select"), (401, None)]
        texts_ = [tracing.Lines().format(record) for record in records]
        assert [text.rpartition(" ms ")[2] for text in texts_] == ["write", "select", "-"]
        assert "bm_wrong" not in caplog.text


def admitted() -> float:
    """Return the number of selections that run or wait for their turn."""
    return counted("boundarymorph_select_running") + counted("boundarymorph_select_waiting")


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_busy_key_leaves_a_place_in_the_queue_for_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accept: str
) -> None:
    """One selection runs at a time, and two may wait."""
    made = {name: callers.make_key(name, [Scope.SELECT]) for name in ("busy", "other")}
    keys = tuple(str(key) for _, key in made.values())
    settings = Settings(data_directory=tmp_path, limits=Limits(sessions=1, requests=3, key_share=0.75), keys=keys)
    async with serving(settings) as client:
        held, tasks = BlockedScoring(monkeypatch), list[asyncio.Task[httpx.Response]]()

        async def send(name: str, query: str) -> None:
            headers = bearer(made[name][0]) | {"accept": accept}
            tasks.append(asyncio.create_task(client.post("/select", json=SELECT | {"query": query}, headers=headers)))
            await until_async(lambda: admitted() == len(tasks) and bool(held.order))

        for number in range(2):
            await send("busy", f"busy {number}")
        refused = await client.post("/select", content=b"not even JSON", headers=bearer(made["busy"][0]))
        assert "2 by this caller" in problem(refused, 429, "overloaded")
        await send("other", "other")
        held.open.set()
        assert all([(await task).is_success for task in tasks])
    assert held.order == ["busy 0", "other", "busy 1"]
