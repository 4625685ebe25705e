"""Test `boost` and the weights of documents in `POST /select`."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

from boundarymorph.retrieval.boosts import MAX_RULES
from boundarymorph.settings import Settings
from tests.fakes.scorer import score_of
from tests.fakes.service import answer, gateway, select, serving, texts

QUERY, COUNT = "signals", 40
LIKED = {"filter": {"number": {"gte": 30}}, "weight": 4}
RULES = [LIKED, {"linear": {"field": "number", "origin": 40, "scale": 20}}]
POOL = [document | {"metadata": {"number": number}} for number, document in enumerate(texts(COUNT))]
SCORES = {document["id"]: score_of(QUERY, document["text"]) for document in POOL}


def boost_of(id: str, weights: Mapping[str, float] | None = None) -> float:
    """Return the boost of a document, which is the boost by RULES times its weight."""
    number = int(id[1:])
    linear = max(0.001, 1 - (40 - number) / 40)
    return (4 if number >= 30 else 1) * linear * (weights or {}).get(id, 1.0)


@pytest.fixture(params=["pool", "index", "gateway"])
async def source(
    request: pytest.FixtureRequest, settings: Settings
) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, Any]]]:
    """Yield a client and its documents: of the request, a local index, and a remote retriever."""
    async with gateway(settings) if request.param == "gateway" else serving(settings) as client:
        if request.param == "pool":
            yield client, {"pool": POOL}
        else:
            answer(await client.put("/indexes/numbered"))
            answer(await client.post("/indexes/numbered/documents", json=POOL))
            yield client, {"index": "numbered"}


@pytest.mark.parametrize("budget", [COUNT, 8, 0])
async def test_select_value_is_relevance_times_boost(
    source: tuple[httpx.AsyncClient, dict[str, Any]], budget: int
) -> None:
    """This holds for scores and, with few or no scores, for expected relevance."""
    client, given = source
    body = await select(client, query=QUERY, k=10, budget=budget, boost=RULES, relevance="scorer", **given)
    documents = body["documents"]
    values = [document["value"] for document in documents]
    assert values == sorted(values, reverse=True)
    for document in documents:
        assert document["value"] == pytest.approx(document["relevance"] * boost_of(document["id"]))
    assert body["usage"]["cross_encoder_calls"] == budget
    if budget == COUNT:
        best = sorted(SCORES, key=lambda id: -SCORES[id] * boost_of(id))[:10]
        assert [document["id"] for document in documents] == best
        assert body["expected_loss"] == 0.0
    plain = await select(client, query=QUERY, k=COUNT, budget=budget, relevance="scorer", **given)
    assert all(document["value"] is None for document in plain["documents"])
    if budget != 8:  # with a few, others are scored
        relevance = {document["id"]: document["relevance"] for document in plain["documents"]}
        assert all(document["relevance"] == relevance[document["id"]] for document in documents)


async def test_weight_of_a_pool_document_multiplies_its_value(client: httpx.AsyncClient) -> None:
    weights = {"d3": 50.0, "d38": 0.01}
    pool = [document | ({"weight": weights[document["id"]]} if document["id"] in weights else {}) for document in POOL]
    for boost in (None, RULES):
        body = await select(client, query=QUERY, pool=pool, k=5, budget=COUNT, relevance="scorer", boost=boost)
        own = {id: boost_of(id, weights) if boost else weights.get(id, 1.0) for id in SCORES}
        expected = sorted(SCORES, key=lambda id: -SCORES[id] * own[id])[:5]
        assert [document["id"] for document in body["documents"]] == expected


async def test_boost_multiplies_relevance_to_people(client: httpx.AsyncClient) -> None:
    plain, boosted = [
        await select(client, query=QUERY, pool=POOL, k=COUNT, budget=10, reuse=False, **more)
        for more in ({}, {"boost": RULES})
    ]
    for document in boosted["documents"]:
        assert document["value"] == pytest.approx(document["relevance"] * boost_of(document["id"]))
    values = [document["value"] for document in boosted["documents"]]
    assert values == sorted(values, reverse=True) != [document["relevance"] for document in plain["documents"]]


async def test_boost_applies_to_several_queries(client: httpx.AsyncClient) -> None:
    queries = [{"query": QUERY, "weight": 0.5}, "other"]
    asked = {"queries": queries, "pool": POOL, "budget": 2 * COUNT, "relevance": "scorer"}
    body = await select(client, **asked, k=8, boost=RULES)
    relevance = {id: max(0.5 * score, score_of("other", f"text {id[1:]}")) for id, score in SCORES.items()}
    best = sorted(relevance, key=lambda id: -relevance[id] * boost_of(id))[:8]
    assert [document["id"] for document in body["documents"]] == best
    for document in body["documents"]:
        assert document["relevance"] == pytest.approx(relevance[document["id"]])
        assert document["value"] == pytest.approx(relevance[document["id"]] * boost_of(document["id"]))


async def test_min_relevance_compares_relevance_without_boost(client: httpx.AsyncClient) -> None:
    least = sorted(SCORES.values())[-12]
    asked = {"query": QUERY, "pool": POOL, "budget": COUNT, "relevance": "scorer", "min_relevance": least}
    body = await select(client, **asked, k=COUNT, boost=RULES)
    relevant = [id for id, score in SCORES.items() if score >= least]
    assert [document["id"] for document in body["documents"]] == sorted(
        relevant, key=lambda id: -SCORES[id] * boost_of(id)
    )


async def test_boost_by_a_missing_field_is_warned_of(client: httpx.AsyncClient) -> None:
    rules = [*RULES, {"field_value_factor": {"field": "clicks"}}]
    body = await select(client, query=QUERY, pool=POOL, k=5, boost=rules)
    (warning,) = [one for one in body["warnings"] if one["slug"] == "field-not-found"]
    assert "'clicks'" in warning["message"]


async def test_blank_document_has_no_value_whatever_its_weight(client: httpx.AsyncClient) -> None:
    pool = [{"text": "", "weight": 1_000}, *POOL[:3]]
    body = await select(client, query=QUERY, pool=pool, k=4, budget=4)
    assert body["documents"][-1]["value"] == body["documents"][-1]["relevance"] == 0.0


async def test_select_accepts_the_most_boost_rules_allowed(client: httpx.AsyncClient) -> None:
    assert (await select(client, query=QUERY, pool=POOL, k=5, boost=[LIKED] * MAX_RULES))["documents"]


@pytest.mark.parametrize("budget", [None, 8])
async def test_rerank_routes_return_boosted_values_as_scores(client: httpx.AsyncClient, budget: int | None) -> None:
    documents = [{"text": document["text"], **document["metadata"]} for document in POOL]
    asked = {"query": QUERY, "documents": documents, "boost": RULES, "budget": budget, "relevance": "scorer"}
    body = answer(await client.post("/v1/rerank", json=asked))
    scores = {result["index"]: result["relevance_score"] for result in body["results"]}
    assert [*scores.values()] == sorted(scores.values(), reverse=True) and len(scores) == COUNT
    relevance = {int(index): value for index, value in body["boundarymorph"]["relevance"].items()}
    for index, score in scores.items():
        assert score == pytest.approx(relevance[index] * boost_of(f"d{index}"))
        if index not in body["boundarymorph"]["inferred"]:
            assert relevance[index] == pytest.approx(SCORES[f"d{index}"])
    least = sorted(SCORES.values())[-12]
    few = answer(await client.post("/v1/rerank", json=asked | {"budget": None, "min_relevance": least}))
    assert {result["index"] for result in few["results"]} == {int(id[1:]) for id in SCORES if SCORES[id] >= least}
