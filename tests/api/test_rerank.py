"""The rerank routes of others: what they answer."""

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from boundarymorph.errors import ScorerUnavailable
from boundarymorph.settings import Limits, Settings
from boundarymorph.settings.sections import RerankSettings
from tests import metrics
from tests.fakes.scorer import SeededScorer, score_of
from tests.fakes.service import answer, faked, serving
from tests.retrieval.fakes import SeededEncoder

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUERY = "what is asked"
TEXTS = [f"text {number}" for number in range(12)]
SCORES = {index: score_of(QUERY, text) for index, text in enumerate(TEXTS)}
ORDER = sorted(SCORES, key=lambda index: -SCORES[index])
FAMILY = ("/v1/rerank", "/v2/rerank", "/rerank", "/infinity/rerank", "/reranking", "/v1/reranking")


class Noting(SeededEncoder):
    """An encoder that keeps the queries too."""

    async def encode_query(self, text: str) -> NDArray[np.float32]:
        self.encoded.append(text)
        return await super().encode_query(text)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """A service with the defaults."""
    async with serving(Settings(data_directory=tmp_path_factory.mktemp("rerank"))) as client:
        yield client


async def post(client: httpx.AsyncClient, path: str = "/v1/rerank", **fields: Any) -> Any:
    return (await client.post(path, json={"query": QUERY, "documents": TEXTS, **fields})).raise_for_status().json()


def indexes(body: dict[str, Any]) -> list[int]:
    return [result["index"] for result in body["results"]]


@pytest.mark.parametrize("path", FAMILY)
async def test_documents_to_results(client: httpx.AsyncClient, path: str) -> None:
    body = await post(client, path, model="rerank-v3.5")
    assert indexes(body) == ORDER
    assert {result["index"]: result["relevance_score"] for result in body["results"]} == SCORES
    assert all("document" not in result for result in body["results"])
    assert (len(body["id"]), body["object"], body["model"]) == (32, "rerank", "seeded")
    assert body["created"] > 1_700_000_000
    assert body["meta"]["api_version"] == {"version": "2" if path == "/v2/rerank" else "1"}
    assert body["meta"]["billed_units"] == {"search_units": 1}
    tokens = math.ceil(sum(len(QUERY) + len(text) for text in TEXTS) / 4)
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert body["meta"]["tokens"] == {"input_tokens": tokens, "output_tokens": 0}
    ours = body["boundarymorph"]
    assert (ours["status"], ours["stop_reason"]) == ("complete", "pool_exhausted")
    assert (ours["documents"], ours["budget"], ours["cross_encoder_calls"]) == (12, 12, 12)
    assert (ours["inferred"], ours["warnings"], ours["expected_loss"]) == ([], [], 0)
    assert ours["timings_ms"]["total"] > 0


async def test_all_are_scored_in_one_trip_and_nothing_else_is_done(tmp_path: Path) -> None:
    scorer, encoder = SeededScorer(), Noting()
    async with serving(Settings(data_directory=tmp_path), faked(scorer, encoder)) as client:
        encoder.encoded.clear()
        await post(client)
        assert (scorer.rounds, encoder.encoded) == ([TEXTS], [])


@pytest.mark.parametrize(("top_n", "count"), [(None, 12), (0, 12), (1, 1), (5, 5), (12, 12), (99, 12)])
async def test_top_n(client: httpx.AsyncClient, top_n: int | None, count: int) -> None:
    assert indexes(await post(client, top_n=top_n)) == ORDER[:count]
    ranks = await post(client, "/rerank", documents=None, texts=TEXTS, top_n=top_n)
    assert [rank["index"] for rank in ranks] == ORDER[:count]


@pytest.mark.parametrize("asked", [True, "true"])  # RAGFlow sends the latter
async def test_documents_come_back_as_they_were_sent(client: httpx.AsyncClient, asked: object) -> None:
    documents = ["plain", {"text": "an object", "url": "x"}]
    body = await post(client, documents=documents, return_documents=asked)
    returned = {result["index"]: result["document"] for result in body["results"]}
    assert returned == {0: {"text": "plain"}, 1: {"text": "an object", "url": "x"}}
    assert {result["relevance_score"] for result in body["results"]} == {
        score_of(QUERY, "plain"),
        score_of(QUERY, "an object"),
    }


async def test_infinity_s_documents_are_strings(client: httpx.AsyncClient) -> None:
    documents = ["plain", {"text": "an object"}]
    body = await post(client, "/infinity/rerank", documents=documents, return_documents=True)
    assert {result["index"]: result["document"] for result in body["results"]} == {0: "plain", 1: "an object"}


async def test_rank_fields(client: httpx.AsyncClient) -> None:
    documents = [{"title": "one", "text": "first", "year": 2001}, {"title": "two", "text": "second"}, "plain"]
    body = await post(client, documents=documents, rank_fields=["title", "year", "text"])
    read = ["one\n2001\nfirst", "two\nsecond", "plain"]
    assert {result["index"]: result["relevance_score"] for result in body["results"]} == {
        index: score_of(QUERY, text) for index, text in enumerate(read)
    }


async def test_values_that_are_no_text_are_read_as_json(client: httpx.AsyncClient) -> None:
    given = '{"text": 12345678901234567890123}, {"text": [1.5, "é", null]}, {"text": {"a": true}}'
    body = f'{{"query": "{QUERY}", "documents": [{given}]}}'.encode()
    results = answer(await client.post("/v1/rerank", content=body))["results"]
    read = ["12345678901234567890123", '[1.5,"é",null]', '{"a":true}']
    assert {result["index"]: result["relevance_score"] for result in results} == {
        index: score_of(QUERY, text) for index, text in enumerate(read)
    }


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
async def test_max_tokens_per_doc(client: httpx.AsyncClient, path: str) -> None:
    body = await post(client, path, documents=["abcdefghijkl", "xyz"], max_tokens_per_doc=2, return_documents=True)
    found = {result["document"]["text"]: result["relevance_score"] for result in body["results"]}
    assert found == {"abcdefghijkl": score_of(QUERY, "abcdefgh"), "xyz": score_of(QUERY, "xyz")}


async def test_fields_without_effect_are_told(client: httpx.AsyncClient) -> None:
    body = await post(client, "/v2/rerank", relevant_spans={"mode": "enabled"}, priority=3)
    warnings = body["meta"]["warnings"]
    assert warnings == body["boundarymorph"]["warnings"]
    assert [warning.partition(" ")[0] for warning in warnings] == ["relevant_spans"]


@pytest.mark.parametrize("field", [{"raw_scores": True}, {"use_activation": False}])
async def test_raw_scores_are_log_odds(client: httpx.AsyncClient, field: dict[str, Any]) -> None:
    body = await post(client, "/rerank", **field)
    assert indexes(body) == ORDER
    for result in body["results"]:
        assert 1 / (1 + math.exp(-result["relevance_score"])) == pytest.approx(SCORES[result["index"]])


async def test_texts_to_a_bare_array(client: httpx.AsyncClient) -> None:
    body = await post(client, "/rerank", documents=None, texts=TEXTS, truncate=None)
    assert body == [{"index": index, "score": SCORES[index]} for index in ORDER]
    body = await post(client, "/rerank", documents=None, texts=TEXTS, return_text=True, raw_scores=True)
    assert [rank["text"] for rank in body] == [TEXTS[index] for index in ORDER]
    assert body[0]["score"] == pytest.approx(math.log(SCORES[ORDER[0]] / (1 - SCORES[ORDER[0]])))


async def test_passages_to_rankings(client: httpx.AsyncClient) -> None:
    request = {"model": "nvidia/x", "query": {"text": QUERY}, "passages": [{"text": text} for text in TEXTS]}
    for path in ("/v1/ranking", "/reranking", "/v1/reranking"):
        body = (await client.post(path, json=request | {"truncate": "END"})).raise_for_status().json()
        assert [ranking["index"] for ranking in body["rankings"]] == ORDER
        sigmoids = [1 / (1 + math.exp(-ranking["logit"])) for ranking in body["rankings"]]
        assert sigmoids == pytest.approx([SCORES[index] for index in ORDER])
        assert body["usage"]["total_tokens"] > 0
        assert body["boundarymorph"]["status"] == "complete"


async def test_input_to_data(client: httpx.AsyncClient) -> None:
    for path in ("/v1/reranking", "/reranking"):
        body = await post(client, path, documents=None, input=TEXTS, top_k=3, return_input=True)
        assert [(rank["index"], rank["score"], rank["input"]) for rank in body["data"]] == [
            (index, SCORES[index], TEXTS[index]) for index in ORDER[:3]
        ]
        assert (body["top_k"], body["return_input"], body["object"]) == (3, True, "list")
    body = await post(client, "/v1/reranking", documents=None, input=[{"text": text} for text in TEXTS])
    assert [rank["index"] for rank in body["data"]] == ORDER and "input" not in body["data"][0]
    refused = await client.post("/v1/reranking", json={"query": QUERY, "input": [{"body": "x"}]})
    assert refused.status_code == 400 and "input.0" in refused.json()["message"]


@pytest.mark.parametrize("fields", [{"top_k": 3}, {"top_n": 3}, {"truncation": True, "top_k": 3}])
async def test_results_are_data_for_voyage(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    body = await post(client, "/voyage/v1/rerank", return_documents=True, **fields)
    assert [(result["index"], result["document"]) for result in body["data"]] == [
        (index, TEXTS[index]) for index in ORDER[:3]
    ]
    assert body["usage"]["total_tokens"] > 0


@pytest.mark.parametrize(
    "fields", [{"model": "rerank-2.5", "top_k": 3}, {"truncation": True}, {"raw_scores": False}, {"property": ""}]
)
@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_the_path_alone_says_whose_format_it_is(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any]
) -> None:
    """Neither the name of a model nor the fields of a vendor change the form of an answer."""
    body = await post(client, path, return_documents=True, **fields)
    plain = await post(client, path, return_documents=True)
    assert body.keys() == plain.keys() and "data" not in body
    assert body["results"] == plain["results"][: fields.get("top_k")]


async def test_models(client: httpx.AsyncClient) -> None:
    for path in ("/v1/models", "/models", "/p/default/v1/models"):
        body = answer(await client.get(path))
        assert [card["id"] for card in body["data"]] == ["seeded", "default"]
        assert {card["object"] for card in body["data"]} == {"model"}


async def test_duplicates_and_ties_keep_their_order(client: httpx.AsyncClient) -> None:
    body = await post(client, documents=["same", "other", "same", "same", "other"])
    places = [index for index in indexes(body) if index in (0, 2, 3)]
    assert places == [0, 2, 3]
    assert sorted(indexes(body)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("extra", [{}, {"k": 7}, {"top_n": 3}])
async def test_a_budget_scores_some_and_expects_of_the_others(client: httpx.AsyncClient, extra: dict[str, Any]) -> None:
    body = await post(client, budget=5, **extra)
    ours = body["boundarymorph"]
    assert (ours["budget"], ours["cross_encoder_calls"], ours["stop_reason"]) == (5, 5, "budget")
    assert not ours["warnings"]
    scores = [result["relevance_score"] for result in body["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    for result in body["results"]:
        by_model = result["relevance_score"] == SCORES[result["index"]]
        assert by_model == (result["index"] not in ours["inferred"])
    if "top_n" not in extra:
        assert sorted(indexes(body)) == list(range(12))
        assert len(ours["inferred"]) == 7
        tokens = math.ceil(sum(len(QUERY) + len(TEXTS[i]) for i in range(12) if i not in ours["inferred"]) / 4)
        assert body["usage"]["total_tokens"] == tokens


@pytest.mark.parametrize(
    ("budget", "calls"), [(None, 21), (5, 5), (0, 0), (30, 21), (0.2, 5), (0.001, 1), (0.999, 21), ("auto", 9)]
)
async def test_the_budget_of_the_service(tmp_path: Path, budget: Any, calls: int) -> None:
    texts = [f"text {number}" for number in range(21)]
    settings = Settings(data_directory=tmp_path, rerank=RerankSettings(budget=budget), auto_budget=9)
    async with serving(settings) as client:
        body = await post(client, documents=texts)
        asked = await post(client, documents=texts, budget=3, query="another")
    ours = body["boundarymorph"]
    assert ours["budget"] == calls and len(ours["inferred"]) == 21 - ours["cross_encoder_calls"] >= 21 - calls
    assert ours["cross_encoder_calls"] == calls or budget == "auto"
    assert sorted(indexes(body)) == list(range(21))
    if calls < 21:
        assert f"{calls} of the 21 documents were scored" in ours["warnings"][0]
    assert body["meta"].get("warnings", []) == ours["warnings"] and len(ours["warnings"]) == (calls < 21)
    assert (asked["boundarymorph"]["cross_encoder_calls"], asked["boundarymorph"]["warnings"]) == (3, [])


async def test_documents_are_counted_by_route(client: httpx.AsyncClient) -> None:
    def counted(outcome: str) -> float:
        labels = {"route": "/v2/rerank", "outcome": outcome}
        return metrics.counted("boundarymorph_rerank_documents_total", **labels)

    before = counted("scored"), counted("inferred")
    await post(client, "/v2/rerank", budget=5, top_n=2)
    assert (counted("scored") - before[0], counted("inferred") - before[1]) == (5, 7)


@pytest.mark.parametrize("on_failure", ["degrade", "error"])
async def test_degrading_gives_every_document_its_expected_score(tmp_path: Path, on_failure: str) -> None:
    parts = faked(SeededScorer(error=ScorerUnavailable("gone")))
    async with serving(Settings(data_directory=tmp_path), parts) as client:
        response = await client.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS, "on_failure": on_failure})
    if on_failure == "error":
        assert response.status_code == 503
        return
    body = response.json()
    assert (response.headers["x-boundarymorph-status"], body["boundarymorph"]["status"]) == ("retrieval_only",) * 2
    assert sorted(indexes(body)) == body["boundarymorph"]["inferred"] == list(range(12))
    assert body["meta"]["warnings"]


async def test_no_list_is_scored_beyond_the_limit(tmp_path: Path) -> None:
    settings = Settings(data_directory=tmp_path, limits=Limits(budget=3), budget=3)
    async with serving(settings) as client:
        assert (await post(client, documents=TEXTS[:3]))["boundarymorph"]["budget"] == 3
        body = await post(client)
    assert (body["boundarymorph"]["budget"], len(body["boundarymorph"]["inferred"])) == (3, 9)
    assert body["meta"]["warnings"]
