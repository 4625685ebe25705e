"""Test how the times of Server-Timing are collected and sent."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from boundarymorph.server.app import create_retriever_app
from boundarymorph.settings import Settings
from boundarymorph.telemetry import tracing
from tests.fakes.service import answer, client_of, fake_retrieval, ready, serving, texts

REQUEST = {"query": "q", "pool": texts(9), "k": 2, "budget": 3, "rounds": 3}
STAGES = ["receive", "parse", "wait", "retrieve", "fetch", "select", "score", "total"]


def parsed(response: httpx.Response) -> dict[str, float]:
    found = re.findall(r"([a-z_]+);dur=([0-9]+\.[0-9]{3})(?:, |$)", response.headers["server-timing"])
    assert ", ".join(f"{name};dur={value}" for name, value in found) == response.headers["server-timing"]
    return {name: float(value) for name, value in found}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(Settings(data_directory=tmp_path)) as client:
        yield client


async def test_server_timing_of_a_selection_lists_its_stages(client: httpx.AsyncClient) -> None:
    response = await client.post("/select", json=REQUEST)
    stages, body = parsed(response), answer(response)
    assert list(stages) == STAGES
    assert {name: stages[name] for name in STAGES[:-1]} == pytest.approx(
        {name: body["timings_ms"][name] for name in STAGES[:-1]}, abs=1e-3
    )
    assert (
        stages["total"]
        >= body["timings_ms"]["total"]
        >= max(value for name, value in stages.items() if name != "total")
    )


async def test_server_timing_of_a_stream_omits_its_rounds(client: httpx.AsyncClient) -> None:
    response = await client.post("/select", json=REQUEST, headers={"accept": "text/event-stream"})
    assert "score" not in parsed(response)
    assert '"score"' in response.text


async def test_server_timing_of_a_retriever_lists_retrieval(tmp_path: Path) -> None:
    async with client_of(create_retriever_app(Settings(data_directory=tmp_path), build=fake_retrieval)) as client:
        await ready(client)
        await client.put("/indexes/few")
        await client.post("/indexes/few/documents", json=texts(3))
        response = await client.post("/retrieve", json={"index": "few", "query": "q", "depth": 2})
        assert response.is_success
        assert list(parsed(response)) == ["retrieve", "total"]
        exposed = (await client.get("/metrics")).text
        assert 'boundarymorph_retriever_call_duration_seconds_count{call="retrieve",outcome="ok"}' in exposed


async def test_timings_of_concurrent_requests_are_separate() -> None:
    async def request(name: str) -> dict[str, float]:
        with tracing.collect_stages() as stages:
            tracing.add_seconds(name, 1)
            await asyncio.sleep(0)
            await asyncio.gather(asyncio.to_thread(tracing.add_seconds, name, 2))
            return stages

    assert list(await asyncio.gather(request("a"), request("b"))) == [{"a": 3}, {"b": 3}]
