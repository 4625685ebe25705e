"""Test several queries with one budget and one set, and selections with excluded documents."""

from typing import Any

import httpx
import pytest

from tests.fakes.scorer import score_of
from tests.fakes.service import answer, select, streamed

QUERIES = ["winter cabins", "summer beaches", "trains by night"]
POOL = [f"text {number}" for number in range(30)]
SOURCES: dict[str, dict[str, Any]] = {"pool": {"pool": POOL, "ranked": True}, "index": {"index": "texts"}}
RELEVANCE = {
    str(number): [score_of(query, text) for query in QUERIES] for number, text in enumerate(POOL)
}  # options of a pool


@pytest.fixture(params=["pool", "index"])
def source(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return a pool of 30 documents, or an index of 40."""
    return SOURCES[request.param]


async def test_queries_select_documents_best_for_any_query(client: httpx.AsyncClient) -> None:
    asked = {"queries": QUERIES, **SOURCES["pool"], "budget": 90, "k": 8, "explain": True}
    found = await select(client, **asked)
    best = sorted(RELEVANCE, key=lambda id: -max(RELEVANCE[id]))[:8]
    assert [one["id"] for one in found["documents"]] == best
    for one in found["documents"]:
        scores = RELEVANCE[one["id"]]
        assert one["relevances"] == pytest.approx(scores)
        assert one["query"] == scores.index(max(scores))
        assert one["relevance"] == one["cross_encoder_score"] == pytest.approx(max(scores))
    assert found["usage"]["cross_encoder_calls"] == 90 and found["expected_loss"] == 0.0


@pytest.mark.parametrize("budget", [0, 1, 7])
async def test_queries_share_one_budget(client: httpx.AsyncClient, source: dict[str, Any], budget: int) -> None:
    asked = {"queries": QUERIES, **source, "budget": budget, "k": 5, "explain": True}
    found = await select(client, **asked)
    calls = [(call["query"], call["id"]) for made in found["rounds"] for call in made["calls"]]
    usage = found["usage"]
    assert len(calls) == len(set(calls)) == usage["cross_encoder_calls"] == budget
    assert usage["rounds"] == len(found["rounds"]) == max([made["round"] for made in found["rounds"]], default=0)
    assert len({one["id"] for one in found["documents"]}) == 5
    assert found["status"] == "complete" and found["stop_reason"] == "budget"
    scored = set(calls)
    for one in found["documents"]:
        assert (one["source"] == "cross_encoder") == ((one["query"], one["id"]) in scored)


async def test_query_weight_scales_relevance_but_not_the_score(client: httpx.AsyncClient) -> None:
    weighted = [QUERIES[0], {"query": QUERIES[1], "weight": 0.01}]
    found = answer(await client.post("/select", json={"queries": weighted, "pool": POOL, "budget": 60, "k": 6}))
    best = sorted(RELEVANCE, key=lambda id: -max(RELEVANCE[id][0], 0.01 * RELEVANCE[id][1]))[:6]
    assert [one["id"] for one in found["documents"]] == best
    turned = answer(await client.post("/select", json={"queries": weighted[1:], "pool": POOL, "budget": 30, "k": 6}))
    first = turned["documents"][0]
    assert first["relevance"] == pytest.approx(0.01 * first["cross_encoder_score"])


async def test_stream_of_several_queries_contains_only_the_selection(client: httpx.AsyncClient) -> None:
    asked = {"queries": QUERIES, **SOURCES["index"], "budget": 30, "k": 5, "explain": True, "reuse": False}
    (streamed_selection,) = await streamed(client, **asked)
    assert streamed_selection["documents"] == (await select(client, **asked))["documents"]
    assert {call["query"] for made in streamed_selection["rounds"] for call in made["calls"]} == {0, 1, 2}


QUERY = "new songs"
SCORES = {str(number): score_of(QUERY, text) for number, text in enumerate(POOL)}


def ids(found: dict[str, Any]) -> list[str]:
    return [document["id"] for document in found["documents"]]


@pytest.mark.parametrize("budget", [0, 6])
@pytest.mark.parametrize("more", [{"k": 5}, {"max_tokens": 20}, {"k": 8, "distinct": True}])
async def test_exclude_ids_omit_documents_of_earlier_turns(
    client: httpx.AsyncClient, source: dict[str, Any], budget: int, more: dict[str, Any]
) -> None:
    """Each turn of an agent excludes what earlier turns returned, until no document is left."""
    asked = {"query": QUERY, **source, "budget": budget, **more}
    seen: list[str] = []
    for _ in range(12):
        found = await select(client, **asked, exclude_ids=seen)
        assert not set(ids(found)) & set(seen) and not any(
            warning["slug"] == "documents-deleted" for warning in found["warnings"]
        )
        seen += ids(found)
        size = found["pool_size"]
        if len(seen) == size:
            break
    assert len(seen) == len(set(seen)) == size
    last = await select(client, **asked, exclude_ids=[*seen, "unknown"])
    assert ids(last) == [] and last["usage"]["cross_encoder_calls"] == 0


async def test_excluded_documents_do_not_use_up_the_depth(client: httpx.AsyncClient) -> None:
    asked = {"query": QUERY, "index": "texts", "depth": 5, "k": 5, "budget": 0}
    first = await select(client, **asked)
    second = await select(client, **asked, exclude_ids=ids(first))
    assert len(ids(second)) == 5 and second["pool_size"] == 10
