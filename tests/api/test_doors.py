"""Requests as the clients of others send them, byte by byte, with a budget in the URL, and what they read of answers.

Their sources, November 2026: hindsight-api-slim 1.1 (engine/cross_encoder.py), dify_plugin 0.7
(openai_compatible/rerank.py), lightrag-hku 1.5 (rerank.py), Elasticsearch's inference plugin (services/huggingface,
services/custom), Weaviate's module reranker-cohere (clients/ranker.go), mem0ai 2.2 (reranker/cohere_reranker.py, by
cohere's SDK). Those on the package index run themselves in `make compatibility`.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from string import Template
from typing import Any

import cohere
import httpx
import pytest
import pytest_asyncio

from boundarymorph.errors import ScorerUnavailable
from boundarymorph.settings import Limits, Settings
from boundarymorph.settings.sections import PolicySettings
from tests.fakes.scorer import SeededScorer, failing, score_of
from tests.fakes.service import answer, application, listening, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUERY = "what is asked"
TEXTS = [f"text {number}" for number in range(30)]
SCORES = [score_of(QUERY, text) for text in TEXTS]
OBJECTS = [*TEXTS, ""]  # of an object without the property
OBJECT_SCORES = [*SCORES, 0.0]
ORDER = sorted(range(30), key=lambda index: -SCORES[index])
ALIYUN = "/api/v1/services/rerank/text-rerank/text-rerank"
POLICIES = {
    "strict": PolicySettings(min_relevance=0.5),
    "none": PolicySettings(min_relevance=1.0),
    "few": PolicySettings(budget=8),
    "once": PolicySettings(distinct=True),
    "groups": PolicySettings(distinct={"by": "doc", "at_most": 2, "k_counts": "groups"}),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(
        data_directory=tmp_path_factory.mktemp("doors"),
        limits=Limits(pool=40),
        depth=40,
        policies=POLICIES,
    )
    async with serving(settings) as client:
        yield client


def exact(pairs: list[tuple[int, float]]) -> int:
    """Check that they are ranked by scores in [0, 1], and count those of the scorer."""
    assert [score for _, score in pairs] == sorted((score for _, score in pairs), reverse=True)
    assert all(0 <= score <= 1 for _, score in pairs)
    return sum(score == SCORES[index] for index, score in pairs)


HINDSIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    "tei": ("/rerank", {"query": QUERY, "texts": TEXTS, "return_text": False}),
    "cohere": ("/v1/rerank", {"model": "m", "query": QUERY, "documents": TEXTS, "return_documents": False}),
    "litellm": ("/rerank", {"model": "cohere/m", "query": QUERY, "documents": TEXTS, "top_n": len(TEXTS)}),
}


@pytest.mark.parametrize("provider", HINDSIGHT)
@pytest.mark.parametrize(("policy", "scored"), [("", 30), ("/p/default@0.2", 6), ("/p/default@7", 7)])
async def test_hindsight(client: httpx.AsyncClient, provider: str, policy: str, scored: int) -> None:
    path, body = HINDSIGHT[provider]
    found: Any = answer(await client.post(f"{policy}{path}", json=body))
    if provider == "tei":
        assert answer(await client.get(f"{policy}/info"))["model_id"] == "seeded"
        pairs = [(result["index"], result["score"]) for result in found]
    else:
        pairs = [(result["index"], result["relevance_score"]) for result in found["results"]]
    assert sorted(index for index, _ in pairs) == list(range(30))
    assert exact(pairs) == scored


@pytest.mark.parametrize("top_n", [None, 4])
async def test_dify(client: httpx.AsyncClient, top_n: int | None) -> None:
    """Its endpoint ends with /v1; it stretches the scores between the least and the best, of which it needs one."""
    body = {"model": "m", "query": QUERY, "documents": TEXTS, "top_n": top_n, "return_documents": True}
    for policy in ("default@0.2", "none"):
        found = answer(await client.post(f"/p/{policy}/v1/rerank", content=json.dumps(body).encode()))
        results = found["results"]
        assert len(results) == (top_n or 30)
        assert all(result["document"]["text"] == TEXTS[result["index"]] for result in results)
    assert {result["relevance_score"] for result in results} == {0.0}


async def test_lightrag_and_dashscope(client: httpx.AsyncClient) -> None:
    body = {"model": "m", "input": {"query": QUERY, "documents": TEXTS}, "parameters": {}}
    found = answer(await client.post(ALIYUN, json=body))
    pairs = [(result["index"], result["relevance_score"]) for result in found["output"]["results"]]
    assert [index for index, _ in pairs] == ORDER and exact(pairs) == 30
    assert found["usage"]["total_tokens"] > 0 and len(found["request_id"]) == 32
    body["parameters"] = {"top_n": 3, "return_documents": True, "budget": 0.2}
    found = answer(await client.post(ALIYUN, json=body))
    assert [result["document"] for result in found["output"]["results"]] == [
        {"text": TEXTS[result["index"]]} for result in found["output"]["results"]
    ]
    assert (len(found["output"]["results"]), found["boundarymorph"]["budget"]) == (3, 6)
    body["parameters"] = {}
    for asked in ({"path": f"/p/default@5{ALIYUN}"}, {"model": "default@5"}):
        found = answer(await client.post(asked.pop("path", ALIYUN), json=body | asked))
        assert (len(found["output"]["results"]), found["boundarymorph"]["budget"]) == (30, 5)
    for wrong, said in (
        ({"input": {"query": QUERY, "documents": []}}, "documents: the list is empty"),
        ({"input": {"query": QUERY}}, "there is no 'documents'"),
        ({"input": "text"}, "there is no 'documents'"),
        ({"input": {"query": QUERY, "documents": [["a"]]}}, "documents.0"),
    ):
        refused = await client.post(ALIYUN, json={**body, **wrong})
        assert refused.status_code == 400 and refused.json()["message"].startswith(said)


async def test_elasticsearch_s_hugging_face(client: httpx.AsyncClient) -> None:
    """It knows an array of objects with index, score and text, and refuses every other field."""
    body = {"texts": TEXTS, "query": QUERY, "return_text": True, "top_n": 8}
    results: Any = answer(
        await client.post("/p/default@0.5/rerank", content=json.dumps(body, separators=(",", ":")).encode())
    )
    assert len(results) == 8 and all(result.keys() == {"index", "score", "text"} for result in results)
    del body["return_text"], body["top_n"]
    results = answer(await client.post("/rerank", json=body))
    assert len(results) == 30 and all(result.keys() == {"index", "score"} for result in results)
    assert [result["index"] for result in results] == ORDER


async def test_the_recipe_for_elasticsearch_s_custom(client: httpx.AsyncClient) -> None:
    """Its placeholders become JSON, and its paths read a field of each result."""
    page = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    settings = json.loads(page.split("PUT _inference/rerank/boundarymorph\n")[1].split("```")[0])["service_settings"]
    path = settings["url"].removeprefix("http://localhost:8080")
    given = {"query": json.dumps(QUERY), "input": json.dumps(TEXTS)}
    response = await client.post(path, content=Template(settings["request"]).substitute(given).encode())
    parser = settings["response"]["json_parser"]

    def read(path: str) -> list[Any]:
        listed, field = path.removeprefix("$.").split("[*].")
        return [result[field] for result in answer(response)[listed]]

    pairs = list(zip(read(parser["reranked_index"]), read(parser["relevance_score"]), strict=True))
    assert sorted(index for index, _ in pairs) == list(range(30)) and exact(pairs) == 6


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "few"])
async def test_what_a_policy_leaves_out_keeps_its_place(client: httpx.AsyncClient, policy: str) -> None:
    """Weaviate's reranker-cohere writes each score to its index in a list of as many as results."""
    documents = [{"text": text, "doc": number % 3} for number, text in enumerate([*TEXTS[:20], *TEXTS[:20]])]
    body = {"documents": documents, "query": QUERY, "model": "m", "return_documents": False}
    for count, fields in ((40, {}), (5, {"top_n": 5}), (40, {"budget": 10})):
        results = answer(await client.post(f"/p/{policy}/v2/rerank", json=body | fields))["results"]
        scores = [result["relevance_score"] for result in results]
        assert len({result["index"] for result in results}) == len(results) == count
        assert scores == sorted(scores, reverse=True)
    whole = answer(await client.post(f"/p/{policy}/v2/rerank", json=body))["results"]
    kept = [result for result in whole if result["relevance_score"] > 0]
    most = max(SCORES[:20])
    assert len(kept) == {"strict": 2 * sum(s >= 0.5 for s in SCORES[:20]), "none": 0, "once": 20, "groups": 6}[policy]
    assert [result["relevance_score"] for result in kept[:1]] == ([most] if kept else [])


async def test_who_asks_for_fewer_gets_fewer(client: httpx.AsyncClient) -> None:
    body = {"query": QUERY, "documents": TEXTS, "min_relevance": 0.5}
    for policy in ("", "/p/none"):
        results = answer(await client.post(f"{policy}/v1/rerank", json=body))["results"]
        assert len(results) == sum(score >= 0.5 for score in SCORES)


async def test_mem0_by_cohere_s_client(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"query": QUERY, "documents": TEXTS, "return_documents": False, "max_chunks_per_doc": None}
    app = application("whole", Settings(data_directory=tmp_path))
    async with listening(app) as (url, _), cohere.AsyncClient("key", base_url=f"{url}/p/default@0.2") as sdk:
        found = await sdk.rerank(model="rerank-english-v3.0", top_n=5, **asked)
    assert len(found.results) == 5
    assert found.boundarymorph["cross_encoder_calls"] == 6


async def weaviate(client: httpx.AsyncClient, path: str = "/weaviate/rerank", **fields: Any) -> httpx.Response:
    """What the module reranker-transformers sends: the bytes of Go's encoder, without a content type or a key."""
    sent = {"query": QUERY, "documents": OBJECTS, "property": "", **fields}
    content = json.dumps(sent, separators=(",", ":"), ensure_ascii=False).encode()
    return await client.post(path, content=content)


async def test_every_document_has_its_score_at_its_place(client: httpx.AsyncClient) -> None:
    pairs = [{"document": text, "score": score} for text, score in zip(OBJECTS, OBJECT_SCORES, strict=True)]
    assert answer(await weaviate(client)) == {"query": QUERY, "scores": pairs}


async def test_a_list_of_documents_at_another_path_is_answered_in_its_format(client: httpx.AsyncClient) -> None:
    body = answer(await client.post("/rerank", json={"query": QUERY, "documents": OBJECTS, "property": ""}))
    assert "scores" not in body and len(body["results"]) == len(OBJECTS)
    texts = answer(await client.post("/rerank", json={"query": QUERY, "texts": OBJECTS, "property": ""}))
    assert len(texts) == len(OBJECTS)


async def test_policies_leave_no_place_out(client: httpx.AsyncClient) -> None:
    strict = answer(await weaviate(client, "/p/strict/weaviate/rerank"))["scores"]
    assert [pair["score"] for pair in strict] == [score if score >= 0.5 else 0 for score in OBJECT_SCORES]
    few = answer(await weaviate(client, "/p/few/weaviate/rerank", query="another question"))["scores"]
    assert [pair["document"] for pair in few] == OBJECTS
    assert sum(pair["score"] == score_of("another question", pair["document"]) for pair in few) == 8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"documents": [*OBJECTS, *OBJECTS]}, "documents: over this service's limit of 40"),
        ({"query": ""}, "query: "),
    ],
)
async def test_an_error_is_a_text(client: httpx.AsyncClient, fields: dict[str, Any], message: str) -> None:
    refused = await weaviate(client, **fields)
    assert refused.status_code == 422
    assert message in refused.json()["error"]


async def test_a_scorer_that_is_away(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeededScorer, "score", failing(ScorerUnavailable("away")))
    refused = await weaviate(client, query="nobody knows this")
    assert refused.status_code == 503
    assert isinstance(refused.json()["error"], str)


async def test_warnings_are_in_a_header(client: httpx.AsyncClient) -> None:
    response = await weaviate(client, documents=OBJECTS[:3], unheard_of=1)
    [warning] = json.loads(response.headers["x-boundarymorph-warnings"])
    assert "'unheard_of'" in warning


@pytest.mark.parametrize("prefix", ["", "/p/few"])
async def test_what_it_asks_for_before_and_besides(client: httpx.AsyncClient, prefix: str) -> None:
    assert answer(await client.get(f"{prefix}/weaviate/.well-known/ready"))["status"] == "ok"
    assert answer(await client.get(f"{prefix}/weaviate/meta"))["model_id"] == "seeded"
