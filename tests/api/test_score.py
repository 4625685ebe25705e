"""Test the scorer's application: POST /score, GET /info, readiness, and shutdown."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from boundarymorph.server.app import create_scorer_app
from boundarymorph.settings import Limits, Settings
from tests.fakes.scorer import SeededCrossEncoder, score_of
from tests.fakes.service import QUEUE_TOKENS, answer, client_of, fake_scorer, problem, ready
from tests.patience import PATIENCE

LIMITS = Limits(body_bytes=2048, texts=4, query_characters=20, text_characters=200)


@pytest.fixture
def model(request: pytest.FixtureRequest) -> SeededCrossEncoder:
    """Return a model with the options of the test's parameter."""
    return SeededCrossEncoder(**getattr(request, "param", {}))


@pytest.fixture
async def client(model: SeededCrossEncoder) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(limits=LIMITS)
    async with client_of(create_scorer_app(settings, build=fake_scorer(model))) as client:
        await ready(client)
        yield client


async def score(client: httpx.AsyncClient, *texts: str, **options: Any) -> httpx.Response:
    return await client.post("/score", json={"query": "q", "texts": texts, **options})


async def test_score_route_returns_scores_in_the_order_of_the_texts(client: httpx.AsyncClient) -> None:
    body = answer(await score(client, "one", "two " * 30, "three"))
    assert body == {
        "model": "seeded",
        "scores": [score_of("q", text) for text in ("one", "two " * 30, "three")],
        "truncated": 1,
    }
    assert answer(await score(client))["scores"] == []


async def test_info_route_describes_the_model_and_limits(client: httpx.AsyncClient) -> None:
    assert answer(await client.get("/info")) == {
        "model": "seeded",
        "backend": "test",
        "max_length": 100,
        "max_texts": 4,
        "batch_tokens": 50,
        "queue_tokens": QUEUE_TOKENS,
        "instructed": False,
    }


async def test_score_route_admits_its_limits_and_refuses_one_more(client: httpx.AsyncClient) -> None:
    for edge in ({"query": "q" * 20}, {"texts": ["t"] * 4}, {"texts": ["t" * 200]}):
        answer(await client.post("/score", json={"query": "q", "texts": ["t"]} | edge))
    for over in ({"query": "q" * 21}, {"texts": ["t"] * 5}, {"texts": ["t" * 201]}):
        refused = await client.post("/score", json={"query": "q", "texts": ["t"]} | over)
        assert next(iter(over)) in problem(refused, 422, "limit-exceeded")
    problem(await client.post("/score", content=b" " * 2049), 413, "body-too-large")


async def test_score_route_refuses_a_long_text_if_truncation_is_off(
    client: httpx.AsyncClient, model: SeededCrossEncoder
) -> None:
    model.batches.clear()
    problem(await score(client, "short", "t" * 101, truncate=False), 422, "text-too-long")
    assert model.batches == []
    assert answer(await score(client, "t" * 100, truncate=False))["truncated"] == 0


async def test_score_route_answers_504_when_the_deadline_passes(
    client: httpx.AsyncClient, model: SeededCrossEncoder
) -> None:
    model.open.clear()
    problem(await score(client, "t", deadline_ms=20), 504, "deadline-exceeded")
    model.open.set()
    answer(await score(client, "t", deadline_ms=10_000))


async def test_scorer_service_ends_when_its_device_is_lost() -> None:
    ended = threading.Event()
    app = create_scorer_app(Settings(), build=fake_scorer(), on_failure=ended.set)
    async with client_of(app) as client, asyncio.timeout(PATIENCE):
        await ready(client)
        assert not ended.is_set()
        problem(await score(client, "lightning"), 503, "scorer-unavailable")
        assert await asyncio.to_thread(ended.wait, 10)
        health = await client.get("/readyz")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        assert "failed" in problem(await score(client, "t"), 503, "not-ready")
        assert (await client.get("/livez")).is_success
