"""Test the service with the embedded models: the scores in answers are the models' own."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from boundarymorph.scoring.scorer import OnnxCrossEncoder
from boundarymorph.server import composition
from boundarymorph.settings import CacheSettings, Settings
from tests.fakes.service import answer, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUERY = "string instruments"
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "violin", "text": "A violin has four strings, tuned in fifths.", "title": "Violin"},
    {"id": "cello", "text": "The cello is played sitting, held between the knees."},
    {"id": "tram", "text": "Trams leave every ten minutes.", "metadata": {"line": 4}},
    {"id": "bread", "text": "Yeast makes the dough rise overnight."},
    {"id": "guitar", "text": "Guitars are plucked or strummed."},
    {"id": "tax", "text": "The tax return is due in July."},
    {"id": "harp", "text": "A harp stands upright; its strings are plucked with the fingers."},
    {"id": "long", "text": "Rivers carry stones down to the sea. " * 120},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(data_directory=tmp_path_factory.mktemp("data"), cache=CacheSettings(enabled=False))
    async with serving(settings, composition.build) as client:
        answer(await client.put("/indexes/few"))
        report = answer(await client.post("/indexes/few/documents", json=DOCUMENTS))
        assert (report["added"], report["truncated"]) == (8, 1)
        yield client


async def test_select_scores_equal_those_of_the_cross_encoder(client: httpx.AsyncClient) -> None:
    request = {"query": QUERY, "index": "few", "k": 7, "budget": 8, "rounds": 3, "return_documents": True}
    body = answer(await client.post("/select", json=request))
    model = OnnxCrossEncoder.embedded()
    for document in body["documents"]:
        title = f"{document['title']}\n" if document["title"] else ""
        (score,) = model.run(model.tokenize(QUERY, [title + document["text"]]))
        assert document["cross_encoder_score"] == pytest.approx(score, rel=1e-6)
        assert document["std"] == 0
    expected = {
        "cross_encoder_calls": 8,
        "cached_scores": 0,
        "truncated_documents": 1,
        "rounds": 1,
        "scorer_requests": 1,
    }
    assert body["usage"].items() >= expected.items()
    assert any(warning["slug"] == "scoring-truncated" for warning in body["warnings"])
    assert body["timings_ms"]["score"] > 0


BOOK = "".join(f"On day {day} the mayor opened a bridge, and the band played until midnight. " for day in range(400))
ANSWER = "A harp is an instrument whose strings are plucked with the fingers. "
SHELF = [{"id": "bread", "text": "Yeast makes the dough rise."}, {"id": "book", "text": BOOK + ANSWER + BOOK}]


@pytest.mark.parametrize("path", ["/select", "/v1/rerank"])
async def test_long_document_ranks_first_by_its_best_passage(client: httpx.AsyncClient, path: str) -> None:
    if path == "/select":
        request: dict[str, Any] = {"pool": SHELF, "k": 2, "budget": 6, "return_documents": True}
    else:
        request = {"documents": [document["text"] for document in SHELF], "budget": 6}
    body = answer(await client.post(path, json={"query": QUERY, **request}))
    first, second = body["documents"] if path == "/select" else body["results"]
    passage = first["passage"]
    assert SHELF[1]["text"][passage["start"] : passage["end"]] == passage["text"]
    assert ANSWER.strip() in passage["text"] and len(passage["text"]) < 2_000
    assert second.get("passage") is None
    assert first.get("text", SHELF[1]["text"]) == SHELF[1]["text"]
    assert (first.get("id", "book"), first.get("index", 1)) == ("book", 1)
    usage = body["usage"] if path == "/select" else body["boundarymorph"]
    assert usage["cross_encoder_calls"] == 6
    warnings = body["warnings"] if path == "/select" else usage["warnings"]
    assert [warning["slug"] for warning in warnings] == ["passages-left-out"]


async def test_rerank_spends_one_call_per_long_document(client: httpx.AsyncClient) -> None:
    texts = [BOOK, "A violin has four strings.", BOOK + ANSWER]
    body = answer(await client.post("/v2/rerank", json={"query": QUERY, "documents": texts, "model": "any"}))
    assert sorted(result["index"] for result in body["results"]) == [0, 1, 2]
    assert body["boundarymorph"]["cross_encoder_calls"] == 3
    whole = answer(await client.post("/v1/rerank", json={"query": QUERY, "documents": texts, "passages": False}))
    assert all("passage" not in result for result in whole["results"])
    assert [warning["slug"] for warning in whole["boundarymorph"]["warnings"]] == ["scoring-truncated"]


async def test_rounds_and_exclude_ids_name_documents_not_passages(client: httpx.AsyncClient) -> None:
    request = {"query": QUERY, "pool": SHELF, "k": 1, "budget": 4, "rounds": 2}
    async with client.stream("POST", "/select", json=request, headers={"accept": "text/event-stream"}) as stream:
        events = [json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: ")]
    assert {id for event in events[:-1] for id in event["ids"]} <= {"bread", "book"}
    body = answer(await client.post("/select", json={**request, "exclude_ids": ["book"]}))
    assert [document["id"] for document in body["documents"]] == ["bread"]
    boosted = [SHELF[0], SHELF[1] | {"weight": 0.001}]
    body = answer(await client.post("/select", json={**request, "k": 2, "pool": boosted, "relevance": "human"}))
    assert [document["id"] for document in body["documents"]] == ["bread", "book"]
