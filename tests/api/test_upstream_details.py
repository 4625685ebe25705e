"""Test that details of the servers behind a service are logged, and hidden from callers."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.access.callers import Scope, make_key
from boundarymorph.api import problems
from boundarymorph.api.lifecycle import Readiness
from boundarymorph.errors import ScorerUnavailable
from boundarymorph.scoring.remote import RemoteScorer
from boundarymorph.selector import failures
from boundarymorph.server.app import create_app
from boundarymorph.settings import Settings
from boundarymorph.telemetry import tracing
from tests.fakes.service import client_of, fake_service, faked, ready, serving, texts
from tests.fakes.upstream import Behaviour, answer, hang, reset
from tests.fakes.wires import Ours, Server, running

SECRET = "what-only-the-upstream-says"
REQUEST = {"query": "q", "pool": texts(8), "k": 2, "budget": 4, "on_failure": "degrade"}


@asynccontextmanager
async def scored_by(server: Server, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(Settings(data_directory=tmp_path), faked(RemoteScorer([server.endpoint()]))) as client:
        yield client


@pytest.mark.parametrize(
    ("behaviour", "deadline_ms"),
    [
        (reset, 20_000),
        (hang, 1_000),
        (answer({"error": SECRET}, 500), 20_000),
        (answer({"error": SECRET}, 429, retry_after="30"), 1_000),
        (answer({"scores": [SECRET], "model": "stand-in"}), 20_000),
    ],
    ids=["reset", "hangs", "status 500", "status 429", "no scores"],
)
async def test_error_details_of_a_scorer_are_logged_not_returned(
    behaviour: Behaviour, deadline_ms: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = list[str | None]()

    class WithId(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            if record.name in (failures.log.name, problems.log.name):
                ids.append(tracing.request_id.get())
            return True

    caplog.handler.addFilter(WithId())
    caplog.set_level("WARNING", "boundarymorph")
    async with running(Ours()) as [server], scored_by(server, tmp_path) as client:
        server.behaviour = behaviour
        private = (f":{server.port}", "127.0.0.1", "http://", SECRET)
        headers = {"X-Request-ID": "asked-so"}
        request = REQUEST | {"deadline_ms": deadline_ms}
        degraded = await client.post("/select", json=request, headers=headers)
        assert degraded.json()["status"] == "retrieval_only"
        assert any("scorer" in warning["message"] for warning in degraded.json()["warnings"])
        told = [message for message in caplog.messages if f"127.0.0.1:{server.port}" in message]
        assert len(told) == 1, "by the selection, unless the log has it from the change of the server's state"
        streamed = await client.post("/select", json=request, headers=headers | {"Accept": "text/event-stream"})
        assert "retrieval_only" in streamed.text
        refused = await client.post("/select", json=request | {"on_failure": "error"}, headers=headers)
        for response in (degraded, streamed, refused):
            assert not [word for word in private if word in response.text], response.text
        assert set(ids) == {"asked-so"}


async def test_readyz_shows_addresses_of_servers_only_to_admins(tmp_path: Path) -> None:
    admin, admin_key = make_key("root", {Scope.ADMIN})
    reader, reader_key = make_key("app", {Scope.SELECT, Scope.WRITE})
    away = ScorerUnavailable("http://10.0.0.5:8081 cannot be reached")

    async def probe(deadline: float) -> None:
        raise away

    def application(keys: tuple[str, ...]) -> Any:
        app = create_app(Settings(data_directory=tmp_path, keys=keys), build=fake_service)
        return app, app.state.lifecycle

    app, state = application((str(admin_key), str(reader_key)))
    async with client_of(app) as client:
        await ready(client)
        state.readiness = Readiness({"scorer": probe}, interval=1, timeout=1)
        await state.readiness.probe()
        full = await client.get("/readyz", headers={"Authorization": f"Bearer {admin}"})
        assert full.json()["detail"] == f"scorer: {away}"
        assert full.json()["parts"]["scorer"]["detail"] == str(away)
        for headers in ({}, {"Authorization": f"Bearer {reader}"}, {"Authorization": "Bearer nonsense"}):
            brief = await client.get("/readyz", headers=headers)
            assert brief.status_code == full.status_code == 503
            assert brief.json() == full.json() | {
                "detail": "no answer from: scorer",
                "parts": {"scorer": full.json()["parts"]["scorer"] | {"detail": None}},
                "scorer": None,
            }
        assert full.json()["scorer"]["trust"] == "normal"
        state.failure = "/data/models is gone"
        assert (await client.get("/readyz")).json()["detail"] is None

    app, state = application(())
    async with client_of(app) as client:
        await ready(client)
        state.readiness = Readiness({"scorer": probe}, interval=1, timeout=1)
        await state.readiness.probe()
        assert "10.0.0.5" in (await client.get("/readyz")).text
    for host, told in (("127.0.0.1", True), ("::1", True), ("10.1.2.3", False), ("testclient", False)):
        transport = httpx.ASGITransport(app, client=(host, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as elsewhere:
            assert ("10.0.0.5" in (await elsewhere.get("/readyz")).text) == told
