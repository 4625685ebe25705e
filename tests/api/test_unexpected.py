"""What no route should raise: the answer, and what the log has of it."""

import io
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from boundarymorph.server.app import create_app
from boundarymorph.settings import Settings
from boundarymorph.telemetry import tracing
from tests.api.service import client_of, fake_service, problem


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The lines as they are written, with the ids of their requests."""
    lines, logger = io.StringIO(), logging.getLogger("boundarymorph.api.problems")
    handler = logging.StreamHandler(lines)
    handler.setFormatter(tracing.Lines())
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    """With a route that raises, and one that raises when its answer has begun."""
    app = create_app(Settings(data_directory=tmp_path), build=fake_service)

    async def raising() -> None:
        raise KeyError("a private matter")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        raise KeyError("a private matter")

    async def breaking() -> StreamingResponse:
        return StreamingResponse(pieces())

    app.add_api_route("/raises", raising)
    app.add_api_route("/breaks", breaking)
    return app


async def test_has_what_every_answer_has(app: FastAPI, log: io.StringIO) -> None:
    async with client_of(app) as client:
        response = await client.get("/raises", headers={"x-request-id": "r1"})
        assert "private" not in problem(response, 500, "internal-error")
        assert response.headers["x-request-id"] == "r1"
        assert response.headers["server-timing"].startswith("total;")
        assert response.headers["x-content-type-options"] == "nosniff"
        exposed = (await client.get("/metrics")).text
    assert 'count{method="GET",route="/raises",status="500"} 1.0' in exposed
    assert "unexpected error [r1]" in log.getvalue()
    assert "KeyError: 'a private matter'" in log.getvalue()


async def test_after_an_answer_has_begun_breaks_it(app: FastAPI, log: io.StringIO) -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        with pytest.raises(KeyError):
            await client.get("/breaks", headers={"x-request-id": "r2"})
    assert "unexpected error [r2]" in log.getvalue()
