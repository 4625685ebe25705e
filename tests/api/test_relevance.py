"""Test what `relevance` means: expected human judgements by default, or the scorer's scores."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.settings import Settings
from tests.fakes.scorer import SeededScorer, score_of
from tests.fakes.service import answer, filled, select, texts

QUERY = "witnesses"
POOL = texts(60)
SCORES = {document["id"]: score_of(QUERY, document["text"]) for document in POOL}


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a service with the default relevance, which other tests override."""
    monkeypatch.delenv("BOUNDARYMORPH_RELEVANCE")
    async with filled(Settings(data_directory=tmp_path)) as client:
        yield client


async def chosen(client: httpx.AsyncClient, **given: Any) -> Any:
    return await select(client, **{"query": QUERY, "pool": POOL, "budget": 60, "k": 10, "reuse": False, **given})


@pytest.mark.parametrize("source", [{}, {"pool": None, "index": "texts", "k": 60}, {"vectors": "encoder"}])
async def test_relevance_defaults_to_human_with_scores_beside_it(
    client: httpx.AsyncClient, source: dict[str, Any]
) -> None:
    body = await chosen(client, explain=True, **source)
    assert body["relevance"] == "human" and body["calibration"] is None
    relevances = [document["relevance"] for document in body["documents"]]
    assert relevances == sorted(relevances, reverse=True)
    scored = [document for document in body["documents"] if document["source"] == "cross_encoder"]
    assert scored and all(document["std"] == 0 for document in scored)
    by_call = {call["id"]: call["score"] for part in body["rounds"] for call in part["calls"]}
    for document in scored:
        assert document["cross_encoder_score"] == by_call[document["id"]]
    assert any(document["relevance"] != document["cross_encoder_score"] for document in scored)
    if not source:
        assert by_call == SCORES


async def test_relevance_scorer_orders_by_cross_encoder_scores(client: httpx.AsyncClient) -> None:
    body = await chosen(client, relevance="scorer")
    assert body["relevance"] == "scorer"
    assert [document["id"] for document in body["documents"]] == sorted(SCORES, key=lambda id: -SCORES[id])[:10]
    assert all(document["relevance"] == document["cross_encoder_score"] for document in body["documents"])


async def test_relevance_of_a_request_overrides_the_setting(tmp_path: Path) -> None:
    async with filled(Settings(data_directory=tmp_path, relevance="scorer")) as client:
        assert (await chosen(client))["relevance"] == "scorer"
        assert (await chosen(client, relevance="human"))["relevance"] == "human"
        assert (await chosen(client, relevance="people"))["relevance"] == "human"  # its name in earlier releases
    assert Settings(relevance="people").relevance == "human"


async def test_rerank_relevance_is_human_with_a_budget_and_scorer_without(
    client: httpx.AsyncClient,
) -> None:
    listed = {"query": QUERY, "documents": [document["text"] for document in POOL]}

    async def ranked(**given: Any) -> list[tuple[str, float]]:
        found = answer(await client.post("/v2/rerank", json={**listed, **given}))["results"]
        return [(POOL[result["index"]]["id"], result["relevance_score"]) for result in found]

    own = sorted(SCORES.items(), key=lambda pair: -pair[1])
    assert await ranked() == await ranked(relevance="scorer") == await ranked(budget=60, relevance="scorer") == own
    for budget in (20, 60):
        body = await chosen(client, ranked=True, budget=budget, k=60)
        human = [(document["id"], document["relevance"]) for document in body["documents"]]
        assert await ranked(budget=budget) == human != own
    assert await ranked(relevance="human") == human


@pytest.mark.parametrize("budget", [0, 20])
async def test_trust_setting_changes_relevance_and_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.delenv("BOUNDARYMORPH_RELEVANCE")
    found = {}
    for trust in (None, "weak", "normal", "strong"):
        settings = Settings.model_validate({"data_directory": tmp_path, "scorer": {"trust": trust}})
        async with filled(settings) as client:
            found[trust] = body = await chosen(client, budget=budget)
            shown = {"model": SeededScorer().name, "trust": trust or "normal"}
            assert body["scorer"] == shown == answer(await client.get("/readyz"))["scorer"]
    order = {trust: [(one["id"], one["relevance"]) for one in body["documents"]] for trust, body in found.items()}
    assert order[None] == order["normal"]
    assert len({str(order[trust]) for trust in ("weak", "normal", "strong")}) == 3


@pytest.mark.parametrize("weight", [1.0, 0.5])
async def test_relevance_to_several_queries_has_the_scale_of_one_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight: float
) -> None:
    monkeypatch.delenv("BOUNDARYMORPH_RELEVANCE")
    monkeypatch.setattr(SeededScorer, "name", "cross-encoder/ms-marco-MiniLM-L-12-v2@0123456789ab/int8/512")
    async with filled(Settings(data_directory=tmp_path)) as client:
        alone = {query: await chosen(client, query=query, k=60) for query in (QUERY, "others")}
        queries = [{"query": QUERY, "weight": weight}, "others"]
        several = await chosen(client, query=None, queries=queries, budget=120)
    own = [{one["id"]: one["relevance"] for one in body["documents"]} for body in alone.values()]
    worth = {id: max(weight * own[0][id], own[1][id]) for id in SCORES}
    assert several["calibration"] == "shipped"
    assert [one["id"] for one in several["documents"]] == sorted(SCORES, key=lambda id: -worth[id])[:10]
    for one in several["documents"]:
        assert one["relevance"] == pytest.approx(worth[one["id"]])
        assert one["relevances"] == pytest.approx([each[one["id"]] for each in own])
