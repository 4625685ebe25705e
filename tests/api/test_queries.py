"""Several queries with one budget and one set."""

from typing import Any

import httpx
import pytest

from tests.api.service import answer
from tests.scoring.fakes import score_of

QUERIES = ["winter cabins", "summer beaches", "trains by night"]
POOL = [f"text {number}" for number in range(30)]
SOURCES: dict[str, dict[str, Any]] = {"pool": {"pool": POOL, "ranked": True}, "index": {"index": "texts"}}
RELEVANCE = {
    str(number): [score_of(query, text) for query in QUERIES] for number, text in enumerate(POOL)
}  # of the pool


@pytest.fixture(params=["pool", "index"])
def source(request: pytest.FixtureRequest) -> dict[str, Any]:
    """30 documents of a pool, or 40 of an index."""
    return SOURCES[request.param]


async def test_with_every_score_the_set_has_what_answers_any_best(client: httpx.AsyncClient) -> None:
    asked = {"queries": QUERIES, **SOURCES["pool"], "budget": 90, "k": 8, "explain": True}
    found = answer(await client.post("/select", json=asked))
    best = sorted(RELEVANCE, key=lambda id: -max(RELEVANCE[id]))[:8]
    assert [one["id"] for one in found["documents"]] == best
    for one in found["documents"]:
        scores = RELEVANCE[one["id"]]
        assert one["relevances"] == pytest.approx(scores)
        assert one["query"] == scores.index(max(scores))
        assert one["relevance"] == one["cross_encoder_score"] == pytest.approx(max(scores))
    assert found["usage"]["cross_encoder_calls"] == 90 and found["expected_loss"] == 0.0


@pytest.mark.parametrize("budget", [0, 1, 2, 7, 25])
async def test_one_budget_for_all(client: httpx.AsyncClient, source: dict[str, Any], budget: int) -> None:
    asked = {"queries": QUERIES, **source, "budget": budget, "k": 5, "explain": True}
    found = answer(await client.post("/select", json=asked))
    calls = [(call["query"], call["id"]) for made in found["rounds"] for call in made["calls"]]
    usage = found["usage"]
    assert len(calls) == len(set(calls)) == usage["cross_encoder_calls"] == budget
    assert usage["rounds"] == len(found["rounds"]) == max([made["round"] for made in found["rounds"]], default=0)
    assert len({one["id"] for one in found["documents"]}) == 5
    assert found["status"] == "complete" and found["stop_reason"] == "budget"
    scored = set(calls)
    for one in found["documents"]:
        assert (one["source"] == "cross_encoder") == ((one["query"], one["id"]) in scored)


async def test_a_weight_lowers_what_counts_but_not_the_score(client: httpx.AsyncClient) -> None:
    weighted = [QUERIES[0], {"query": QUERIES[1], "weight": 0.01}]
    found = answer(await client.post("/select", json={"queries": weighted, "pool": POOL, "budget": 60, "k": 6}))
    best = sorted(RELEVANCE, key=lambda id: -max(RELEVANCE[id][0], 0.01 * RELEVANCE[id][1]))[:6]
    assert [one["id"] for one in found["documents"]] == best
    turned = answer(await client.post("/select", json={"queries": weighted[1:], "pool": POOL, "budget": 30, "k": 6}))
    first = turned["documents"][0]
    assert first["relevance"] == pytest.approx(0.01 * first["cross_encoder_score"])


async def test_one_query_alone_is_its_ranking(client: httpx.AsyncClient, source: dict[str, Any]) -> None:
    asked = {**source, "budget": 40, "k": 5, "return_documents": True}
    one = answer(await client.post("/select", json={"query": QUERIES[0], **asked}))
    several = answer(await client.post("/select", json={"queries": QUERIES[:1], **asked}))
    for name in ("id", "relevance", "text", "source"):
        assert [document[name] for document in one["documents"]] == [
            document[name] for document in several["documents"]
        ]


async def test_what_was_excluded_is_neither_scored_nor_returned(
    client: httpx.AsyncClient, source: dict[str, Any]
) -> None:
    asked = {"queries": QUERIES, **source, "budget": 10, "k": 5, "explain": True}
    seen = [one["id"] for one in answer(await client.post("/select", json=asked))["documents"]]
    found = answer(await client.post("/select", json={**asked, "exclude_ids": seen}))
    touched = {call["id"] for made in found["rounds"] for call in made["calls"]}
    assert not (touched | {one["id"] for one in found["documents"]}) & set(seen)
    assert not any("deleted" in warning for warning in found["warnings"])


@pytest.mark.parametrize("spend", ["order", "set"])
async def test_where_everything_fits_calls_go_to_the_order_or_nowhere(client: httpx.AsyncClient, spend: str) -> None:
    asked = {"queries": QUERIES, "pool": POOL, "budget": 9, "k": 30, "spend": spend}
    found = answer(await client.post("/select", json=asked))
    assert len(found["documents"]) == 30
    assert found["usage"]["cross_encoder_calls"] == (9 if spend == "order" else 0)
    assert spend == "order" or found["stop_reason"] == "nothing_to_decide"


async def test_rounds_are_streamed(client: httpx.AsyncClient) -> None:
    asked = {"queries": QUERIES, **SOURCES["index"], "budget": 30, "k": 5, "explain": True}
    response = await client.post("/select", json=asked, headers={"accept": "text/event-stream"})
    names = [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event")]
    assert names[-1] == "selection" and names.count("round") > 2
    assert '"query":2' in response.text  # of a call, beside those of the other queries
