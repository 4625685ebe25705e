"""Test POST /select when the deadline passes, or the scorer or the encoder fails."""

import asyncio
from typing import Any, ClassVar

import httpx
import orjson
import pytest

from boundarymorph.errors import BoundaryMorphError, EncoderFailed, EncoderUnavailable, Overloaded, ScorerFailed
from tests.fakes.scorer import SeededScorer, failing, late
from tests.fakes.service import answer, problem, select, texts
from tests.retrieval.fakes import SeededEncoder, vector_of

REQUEST: dict[str, Any] = {"query": "q", "index": "texts", "budget": 6, "rounds": 3, "k": 5}


class TestGivenOrder:
    """The pool has scores and embeddings, but the query cannot be encoded."""

    POOL: ClassVar[list[dict[str, Any]]] = [
        {"id": f"d{number}", "text": f"text {number}", "score": float(number % 7), "embedding": vector_of("x").tolist()}
        for number in range(12)
    ]
    IN_ORDER: ClassVar[list[str]] = ["d6", "d5", "d4", "d11", "d3", "d10", "d2", "d9", "d1", "d8", "d0", "d7"]

    async def test_given_order_is_the_answer_when_the_encoder_is_away(
        self, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        request = {"query": "q", "pool": self.POOL, "budget": 6, "k": 5, "return_documents": True}
        for error, reason, status in (
            (EncoderUnavailable("away"), "encoder_unavailable", 503),
            (EncoderFailed("nonsense"), "encoder_failed", 502),
        ):

            async def away(*_: object, error: BoundaryMorphError = error) -> Any:
                raise error

            monkeypatch.setattr(SeededEncoder, "encode_query", away)
            response = await client.post("/select", json=request)
            body = answer(response)
            assert response.headers["x-boundarymorph-status"] == body["status"] == "retrieval_only"
            assert (body["stop_reason"], body["usage"]["rounds"], body["expected_loss"]) == (reason, 0, 1)
            assert [document["id"] for document in body["documents"]] == self.IN_ORDER[:5]
            assert answer(await client.post("/select", json=request | {"k": 12}))["expected_loss"] == 0
            assert [document["retrieval_rank"] for document in body["documents"]] == [1, 2, 3, 4, 5]
            assert [document["retrieval_score"] for document in body["documents"]] == [6, 5, 4, 4, 3]
            assert body["documents"][0]["text"] == "text 6"
            (warning,) = body["warnings"]
            assert warning["slug"] == "nothing-scored"
            assert error.public in warning["message"] and "the order is the one given" in warning["message"]
            problem(await client.post("/select", json=request | {"on_failure": "error"}), status, error.slug)
            without = [{name: value for name, value in one.items() if name != "score"} for one in self.POOL]
            by_words = answer(await client.post("/select", json=request | {"pool": without}))
            assert "the order is BM25's" in by_words["warnings"][0]["message"]
            wordless = request | {"pool": without, "method": "boundarymorph"}
            problem(await client.post("/select", json=wordless), status, error.slug)
            problem(await client.post("/select", json=REQUEST), status, error.slug)


class TestOverload:
    async def test_overloaded_scorer_gives_429_or_a_degraded_answer(
        self, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        error = Overloaded("too much to do", retry_after=3)
        monkeypatch.setattr(SeededScorer, "score", failing(error))
        for accepted in ({}, {"on_failure": "error"}):
            refused = await client.post("/select", json=REQUEST | accepted)
            problem(refused, 429, "overloaded")
            assert refused.headers["retry-after"] == "3"
        body = answer(await client.post("/select", json=REQUEST | {"on_failure": "degrade"}))
        assert (body["status"], body["stop_reason"]) == ("retrieval_only", "overloaded")
        assert any(warning["slug"] == "nothing-scored" for warning in body["warnings"])

    async def test_scorer_overloaded_midway_gives_a_partial_answer(
        self, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        error = Overloaded("too much to do")
        for accepted in ({}, {"on_failure": "degrade"}):
            monkeypatch.setattr(SeededScorer, "score", failing(error, first=2))
            response = await client.post("/select", json=REQUEST | accepted)
            body = answer(response)
            assert (body["status"], body["usage"]["cross_encoder_calls"]) == ("partial", 4)
            assert response.headers["x-boundarymorph-status"] == "partial"
            monkeypatch.undo()
        monkeypatch.setattr(SeededScorer, "score", failing(error, first=2))
        problem(await client.post("/select", json=REQUEST | {"on_failure": "error"}), 429, "overloaded")

    async def test_deadline_that_passes_in_the_queue_gives_429(
        self, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(SeededScorer, "score", late)
        pool = TestGivenOrder.POOL  # so that there is an answer however soon the deadline comes
        request = {"query": "q", "pool": pool, "query_embedding": vector_of("q").tolist(), "budget": 6, "k": 5}
        short = request | {"deadline_ms": 400}
        alone = answer(await client.post("/select", json=short))
        assert (alone["status"], alone["stop_reason"]) == ("retrieval_only", "deadline")
        problem(await client.post("/select", json=short | {"on_failure": "error"}), 504, "deadline-exceeded")
        other = asyncio.create_task(client.post("/select", json=request | {"deadline_ms": 60_000}))
        while "boundarymorph_select_running 1.0" not in (await client.get("/metrics")).text:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        refused = await client.post("/select", json=short)
        assert "while 1 other" in problem(refused, 429, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        degraded = answer(await client.post("/select", json=short | {"on_failure": "degrade"}))
        assert (degraded["status"], degraded["stop_reason"]) == ("retrieval_only", "deadline")
        problem(await client.post("/select", json=short | {"on_failure": "error"}), 504, "deadline-exceeded")
        other.cancel()


async def test_scorer_failure_during_a_stream_is_a_problem_event(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SeededScorer, "score", failing(ScorerFailed("logits"), first=1))
    request = {"query": "q", "pool": texts(9), "budget": 6, "rounds": 3, "k": 5, "on_failure": "error"}
    response = await client.post("/select", json=request, headers={"accept": "text/event-stream"})
    assert response.text.count("event: round") == 2
    problem_event = response.text.rpartition("event: problem")[2]
    assert '"status":502' in problem_event and '"urn:boundarymorph:problem:scorer-failed"' in problem_event


@pytest.mark.parametrize("ranked", [{"ranked": True}, {}], ids=["in order", "by words"])
async def test_selection_before_the_first_score_equals_budget_zero(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, ranked: dict[str, bool]
) -> None:
    """It is a stream's first event, and the answer if the deadline passes before a score."""
    request = {"query": "text 7 and 11", "pool": texts(80), "k": 9, "reuse": False, **ranked}
    without = [document["id"] for document in (await select(client, **request, budget=0))["documents"]]
    stream = await client.post("/select", json=request | {"budget": 8}, headers={"accept": "text/event-stream"})
    first = next(line for line in stream.text.splitlines() if line.startswith("data: "))
    assert orjson.loads(first.removeprefix("data: "))["ids"] == without
    monkeypatch.setattr(SeededScorer, "score", late)
    body = await select(client, **request, budget=8, deadline_ms=300, on_failure="degrade")
    assert body["status"] == "retrieval_only"
    assert [document["id"] for document in body["documents"]] == without
