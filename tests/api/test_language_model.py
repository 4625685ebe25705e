"""POST /select where a language model is the scorer, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.api.lifecycle import Parts
from boundarymorph.caching.known import MemoryScoreCache
from boundarymorph.scoring.build import build_scorer
from boundarymorph.server.composition import ledger
from boundarymorph.settings import Settings
from tests.api.service import answer as body_of
from tests.api.service import bearer, faked, problem, select, serving, streamed
from tests.scoring.fakes import score_of
from tests.scoring.judge.scripted import READ, WRITTEN, Chat, completion
from tests.scoring.remote.servers import Behaviour, Server, answer, running

SECRETS = {name: callers.make_key(name, [Scope.SELECT]) for name in ("rag", "batch")}
POOL = [{"id": f"d{number}", "text": f"Text {number} of music.", "score": -float(number)} for number in range(12)]
REQUEST: dict[str, Any] = {"query": "music", "pool": POOL, "budget": 6, "rounds": 3, "k": 4}


def judged(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Parts:
    """A service on a cheap encoder and the scorer of its settings."""
    scorer = build_scorer(settings, on_lost, lambda: ledger(settings))
    return faked(scorer, cache=MemoryScoreCache())(settings)


@asynccontextmanager
async def service(
    directory: Path, chat: Chat | None = None, **judge: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Server]]:
    """A ready service and the language model behind it, which was asked once."""
    async with running(chat or Chat()) as (server,):
        url = f"openai+http://127.0.0.1:{server.port}/v1?model=scripted"
        settings = Settings(
            data_directory=directory,
            scorer={"url": (url,), "judge": judge},
            keys=tuple(str(key) for _, key in SECRETS.values()),
        )
        async with serving(settings, judged) as client:
            server.asked.clear()
            client.headers.update(bearer(SECRETS["rag"][0]))
            yield client, server


async def test_grades_are_scores_and_are_paid_for_once(tmp_path: Path) -> None:
    async with service(tmp_path, input_price=2.0, output_price=8.0) as (client, server):
        first = await select(client, **REQUEST)
        assert first["status"] == "complete" and len(server.asked) == 6
        scored = {d["id"]: d["cross_encoder_score"] for d in first["documents"] if d["source"] == "cross_encoder"}
        texts = {document["id"]: str(document["text"]) for document in POOL}
        assert scored and all(score == pytest.approx(score_of("music", texts[id])) for id, score in scored.items())
        assert first["usage"]["cross_encoder_calls"] == 6
        assert first["usage"]["language_model"] == {
            "input_tokens": 6 * READ,
            "output_tokens": 6 * WRITTEN,
            "cost": pytest.approx(6 * (READ * 2 + WRITTEN * 8) / 1e6),
        }
        again = await select(client, **REQUEST)
        assert again["usage"]["reused_scores"] == 6 and len(server.asked) == 6
        assert again["usage"]["language_model"] == {"input_tokens": 0, "output_tokens": 0, "cost": 0.0}
        assert 'boundarymorph_judge_tokens_total{kind="read"}' in (await client.get("/metrics")).text


async def test_events_tell_the_cost_so_far(tmp_path: Path) -> None:
    async with service(tmp_path, input_price=1.0) as (client, _):
        *rounds, last = await streamed(client, **REQUEST)
    assert [event["language_model"]["input_tokens"] for event in rounds] == [0, 2 * READ, 4 * READ]
    assert last["usage"]["language_model"]["cost"] == pytest.approx(6 * READ / 1e6)


async def test_rerank_routes_tell_it_too(tmp_path: Path) -> None:
    async with service(tmp_path) as (client, server):
        request = {"model": "any", "query": "music", "documents": ["one", "two", "three"]}
        answered = body_of(await client.post("/v1/rerank", json=request))
        assert len(server.asked) == 3
        assert answered["boundarymorph"]["language_model"]["input_tokens"] == 3 * READ


UNGRADED = [answer(completion("no idea")), answer(completion(None, refusal="I cannot help with that."))]


@pytest.mark.parametrize("behaviour", UNGRADED)
async def test_a_document_without_a_grade_is_as_believed(tmp_path: Path, behaviour: Behaviour) -> None:
    async with service(tmp_path) as (client, server):
        server.script = [behaviour]
        body = await select(client, **REQUEST | {"k": 12})
        assert body["status"] == "complete" and body["usage"]["cross_encoder_calls"] == 6
        assert len(body["documents"]) == 12
        assert sum(document["source"] == "cross_encoder" for document in body["documents"]) == 5
        (warning,) = body["warnings"]
        assert warning.startswith("1 document got no score")
        server.asked.clear()
        again = await select(client, **REQUEST | {"k": 12})
        assert again["usage"]["reused_scores"] == 5 and len(server.asked) == 1, "it is not remembered as a 0"


async def test_the_ceiling_of_a_request_ends_it(tmp_path: Path) -> None:
    async with service(tmp_path, request_tokens=3_500) as (client, server):
        body = await select(client, **REQUEST)
        assert (body["status"], body["stop_reason"]) == ("partial", "cost_ceiling")
        assert "scorer.judge.request_tokens" in body["warnings"][0]
        assert 0 < len(server.asked) < 6
        assert body["usage"]["language_model"]["input_tokens"] <= 3_500


async def test_the_ceiling_of_a_key_is_its_own(tmp_path: Path) -> None:
    async with service(tmp_path, key_day_tokens=2_500) as (client, server):
        body = await select(client, **REQUEST | {"rounds": 6})
        assert body["stop_reason"] == "cost_ceiling"
        asked = len(server.asked)
        assert asked == 4, "of 301 tokens each, where one may take up to 1,397"
        refused = await client.post("/select", json=REQUEST | {"query": "another"})
        assert "this key has" in problem(refused, 429, "cost-ceiling")
        assert 0 < int(refused.headers["retry-after"]) <= 86_400
        degraded = await select(client, **REQUEST | {"query": "another", "on_failure": "degrade"})
        assert (degraded["status"], degraded["stop_reason"]) == ("retrieval_only", "cost_ceiling")
        assert len(server.asked) == asked, "nothing was sent"
        other = body_of(
            await client.post("/select", json=REQUEST | {"query": "another"}, headers=bearer(SECRETS["batch"][0]))
        )
        assert other["usage"]["cross_encoder_calls"] > 0


async def test_a_request_that_no_ceiling_lets_begin_is_refused_without_a_time(tmp_path: Path) -> None:
    async with service(tmp_path, request_tokens=10) as (client, _):
        refused = await client.post("/select", json=REQUEST)
        problem(refused, 429, "cost-ceiling")
        assert "retry-after" not in refused.headers


async def test_callers_read_nothing_of_the_model_or_its_server(tmp_path: Path) -> None:
    async with service(tmp_path) as (client, server):
        server.behaviour = answer({"error": {"message": "quota of org-123 exceeded"}}, 500)
        response = await client.post("/select", json=REQUEST)
        assert "org-123" not in response.text and "127.0.0.1" not in response.text
        assert response.json()["status"] == "retrieval_only"
