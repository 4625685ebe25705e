"""Test both clients with recorded exchanges: requests, answers, and attempts."""

from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

import boundarymorph_client as bm
from tests.clients.conftest import Connect

SELECTION: dict[str, Any] = {
    "id": "0b", "k": 1, "method": "boundarymorph", "status": "complete", "stop_reason": "budget", "pool_size": 2,
    "max_tokens": None, "min_relevance": None,
    "expected_loss": 0.1, "relevance": "scorer", "scorer": {"model": "seeded", "trust": "weak"}, "vectors": "lexical",
    "warnings": [],
    "usage": {"budget": 1, "cross_encoder_calls": 1, "cached_scores": 0, "reused_scores": 0, "rounds": 1,
              "truncated_documents": 0, "scorer_requests": 1},
    "timings_ms": {"total": 2.0}, "documents": [],
}  # fmt: skip
ASKED: dict[str, Any] = {"pool": ["a", "b"], "budget": 1, "k": 1}
Answer = Callable[[httpx.Request], httpx.Response]


class Exchanges:
    """A transport that records requests and answers them in order; it raises exceptions."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.requests: list[httpx.Request] = []
        self._answers = list(answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def selection() -> httpx.Response:
    return httpx.Response(200, json=SELECTION)


async def test_select_sends_the_key_and_the_remaining_time(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUNDARYMORPH_API_KEY", "bm_secret")
    exchanges = Exchanges(httpx.Response(429, headers={"retry-after": "0.05"}), selection())
    client = connect(exchanges)
    assert (await client.select("q", **ASKED, deadline_ms=20_000)).usage.cross_encoder_calls == 1
    assert [request.headers["authorization"] for request in exchanges.requests] == ["Bearer bm_secret"] * 2
    first, second = (orjson.loads(request.content)["deadline_ms"] for request in exchanges.requests)
    assert first <= 20_000 and second <= first - 50, "the pause is part of the time"
    assert "bm_secret" not in repr(vars(client))


async def test_select_tries_again_when_a_connection_breaks(connect: Connect) -> None:
    exchanges = Exchanges(httpx.ReadError("reset"), httpx.RemoteProtocolError("closed"), selection())
    assert (await connect(exchanges).select("q", **ASKED)).status == "complete"
    assert len(exchanges.requests) == 3


async def test_timeout_is_not_retried(connect: Connect) -> None:
    exchanges = Exchanges(httpx.ReadTimeout("late"), httpx.ReadTimeout("late"))
    with pytest.raises(bm.TimedOut):
        await connect(exchanges).select("q", index="texts")
    with pytest.raises(TimeoutError):
        await anext(connect(exchanges).stream("q", index="texts"))
    assert len(exchanges.requests) == 2


async def test_answers_of_a_foreign_server_raise_errors(connect: Connect) -> None:
    page = httpx.Response(200, html="<h1>Hello</h1>"), httpx.Response(502, html="<h1>Hello</h1>")
    client = connect(Exchanges(*page, httpx.Response(404, json={"type": f"{bm.errors.TYPE}not-found", "title": "t",
                                                                "status": 404, "detail": "no route"})))  # fmt: skip
    with pytest.raises(bm.UnexpectedAnswer):
        await client.list_indexes()
    with pytest.raises(bm.ProblemError, match="Hello") as raised:
        await client.select("q", index="texts")
    assert (raised.value.type, raised.value.status) == ("about:blank", 502)
    with pytest.raises(bm.NotFound) as missing:
        await client.list_indexes()
    assert type(missing.value) is bm.NotFound


async def test_ready_returns_the_status_of_an_unready_service(connect: Connect) -> None:
    body = {"status": "failed", "detail": "no disk", "type": f"{bm.errors.TYPE}not-ready", "title": "t"}
    failed = httpx.Response(503, json=body)
    refused = httpx.Response(503, json={**body, "status": 503}, headers={"retry-after": "1"})
    client = connect(Exchanges(failed, refused), retries=0)
    ready = await client.ready()
    assert (ready.status, ready.detail) == ("failed", "no disk")
    with pytest.raises(bm.NotReady) as raised:
        await client.list_indexes()
    assert raised.value.retry_after == 1


@pytest.mark.strangers
async def test_unreachable_service_is_named_without_its_password(connect: Connect) -> None:
    client = connect("http://user:password@127.0.0.1:9/prefix", retries=0)
    with pytest.raises(
        bm.ConnectionFailed, match=r"http://127\.0\.0\.1:9/prefix .*`boundarymorph serve` running"
    ) as raised:
        await client.ready()
    assert "password" not in str(raised.value)
