"""Several queries with one budget and one set, and selections without what was seen before."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.api.lifecycle import Parts
from boundarymorph.errors import EncoderUnavailable
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.selector.selector import Selector
from boundarymorph.settings import Limits, Settings
from tests.fakes.scorer import score_of
from tests.fakes.service import answer, fake_service, filled, problem, select, serving, streamed
from tests.retrieval.fakes import SeededEncoder

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
    found = await select(client, **asked)
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
    seen = ids(await select(client, **asked))
    found = await select(client, **asked, exclude_ids=seen)
    touched = {call["id"] for made in found["rounds"] for call in made["calls"]}
    assert not (touched | {one["id"] for one in found["documents"]}) & set(seen)
    assert not any("deleted" in warning for warning in found["warnings"])


@pytest.mark.parametrize("spend", ["order", "set"])
async def test_where_everything_fits_calls_go_to_the_order_or_nowhere(client: httpx.AsyncClient, spend: str) -> None:
    asked = {"queries": QUERIES, "pool": POOL, "budget": 9, "k": 30, "spend": spend}
    found = await select(client, **asked)
    assert len(found["documents"]) == 30
    assert found["usage"]["cross_encoder_calls"] == (9 if spend == "order" else 0)
    assert spend == "order" or found["stop_reason"] == "nothing_to_decide"


async def test_a_stream_has_the_selection_alone(client: httpx.AsyncClient) -> None:
    asked = {"queries": QUERIES, **SOURCES["index"], "budget": 30, "k": 5, "explain": True, "reuse": False}
    (streamed_selection,) = await streamed(client, **asked)
    assert streamed_selection["documents"] == (await select(client, **asked))["documents"]
    assert {call["query"] for made in streamed_selection["rounds"] for call in made["calls"]} == {0, 1, 2}


QUERY = "what is new"
SCORES = {str(number): score_of(QUERY, text) for number, text in enumerate(POOL)}


def ids(found: dict[str, Any]) -> list[str]:
    return [document["id"] for document in found["documents"]]


@pytest.mark.parametrize("budget", [0, 6])
@pytest.mark.parametrize("more", [{"k": 5}, {"k": 100}, {"max_tokens": 20}, {"k": 8, "distinct": True}])
async def test_turns_share_nothing(
    client: httpx.AsyncClient, source: dict[str, Any], budget: int, more: dict[str, Any]
) -> None:
    """An agent's turns: each leaves out what those before it returned, until nothing is left."""
    asked = {"query": QUERY, **source, "budget": budget, **more}
    seen: list[str] = []
    for _ in range(12):
        found = await select(client, **asked, exclude_ids=seen)
        assert not set(ids(found)) & set(seen) and not any("deleted" in warning for warning in found["warnings"])
        seen += ids(found)
        size = found["pool_size"]
        if len(seen) == size:
            break
    assert len(seen) == len(set(seen)) == size
    last = await select(client, **asked, exclude_ids=[*seen, "unknown"])
    assert ids(last) == [] and last["usage"]["cross_encoder_calls"] == 0


async def test_no_call_for_them_and_the_best_of_the_others(client: httpx.AsyncClient) -> None:
    best = sorted(SCORES, key=lambda id: -SCORES[id])
    asked = {"query": QUERY, "pool": POOL, "budget": 40, "k": 5, "exclude_ids": best[:10], "explain": True}
    found = await select(client, **asked)
    called = {call["id"] for made in found["rounds"] for call in made["calls"]}
    assert ids(found) == best[10:15] and not called & set(best[:10])
    assert found["usage"]["cross_encoder_calls"] == 20
    numbers = await select(client, **asked | {"exclude_ids": [int(id) for id in best[:10]]})
    assert ids(numbers) == ids(found), "an integer is the same id"


async def test_their_known_scores_replace_no_call(client: httpx.AsyncClient) -> None:
    pool = [{"text": text} for text in POOL]
    known = [
        {**document, "cross_encoder_score": SCORES[str(n)]} if n < 10 else document for n, document in enumerate(pool)
    ]
    seen = [str(number) for number in range(10)]
    asked = {"query": QUERY, "pool": known, "budget": 6, "k": 4, "exclude_ids": seen}
    found = await select(client, **asked)
    assert found["usage"]["cross_encoder_calls"] == 6 and not set(ids(found)) & set(seen)


async def test_a_small_depth_is_filled(client: httpx.AsyncClient) -> None:
    asked = {"query": QUERY, "index": "texts", "depth": 5, "k": 5, "budget": 0}
    first = await select(client, **asked)
    second = await select(client, **asked, exclude_ids=ids(first))
    assert len(ids(second)) == 5 and second["pool_size"] == 10


async def test_how_many(tmp_path: Path) -> None:
    async with filled(Settings(data_directory=tmp_path, depth=4, limits=Limits(pool=6))) as client:
        asked = {"query": QUERY, "index": "texts", "k": 2, "budget": 0}
        found = await select(client, **asked, exclude_ids=[f"x{n}" for n in range(6)])
        assert found["pool_size"] == 6, "no more candidates than the limit"
        over = await client.post("/select", json=asked | {"exclude_ids": [f"x{n}" for n in range(7)]})
        assert "exclude_ids" in problem(over, 422, "limit-exceeded")


@pytest.mark.parametrize("more", [{"k": 5}, {"k": 100}, {"max_tokens": 20}, {"k": 8, "distinct": True}])
async def test_where_only_the_order_is_known(tmp_path: Path, more: dict[str, Any]) -> None:
    class Away(SeededEncoder):
        async def encode_documents(self, texts: Sequence[str]) -> Embeddings:
            raise EncoderUnavailable("its server is gone")

    def build(settings: Settings, *_: object) -> Parts:
        whole, encoder = fake_service(settings), Away()
        retriever = IndexRetriever(whole.catalog, encoder)
        return replace(whole, encoder=encoder, retriever=retriever, selector=Selector(retriever, whole.scorer))

    async with serving(Settings(data_directory=tmp_path), build) as client:
        seen = [str(number) for number in range(3)]
        asked = {"query": QUERY, "pool": POOL, "ranked": True, "vectors": "encoder", "exclude_ids": seen, **more}
        found = await select(client, **asked)
    assert found["status"] == "retrieval_only"
    count = len(ids(found))
    assert count > 0 and ids(found) == [str(number) for number in range(3, 3 + count)]
