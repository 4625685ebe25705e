"""Test the rerank routes with the requests that clients of other services send.

The exchanges are recorded from Cohere's SDK, hindsight, Infinity, LiteLLM, text-embeddings-inference, Elasticsearch
(inference plugin, Hugging Face), NVIDIA NIM, vLLM's and Baseten's `input`, Voyage, DashScope (also LightRAG) and
Weaviate (reranker-transformers), November 2026. `make compatibility` runs the clients that can be installed.
"""

import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from string import Template
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from boundarymorph.errors import ScorerUnavailable
from boundarymorph.settings import Limits, Settings
from boundarymorph.settings.sections import PolicySettings, RerankSettings
from tests.fakes.scorer import SeededScorer, failing, score_of
from tests.fakes.service import answer, faked, serving
from tests.retrieval.fakes import SeededEncoder

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUERY = "music of the sea"
TEXTS = [f"text {number}" for number in range(12)]
SCORES = [score_of(QUERY, text) for text in TEXTS]
ORDER = sorted(range(12), key=lambda index: -SCORES[index])
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
    folder = tmp_path_factory.mktemp("rerank")
    async with serving(Settings(data_directory=folder, limits=Limits(pool=40), depth=40, policies=POLICIES)) as client:
        yield client


async def post(client: httpx.AsyncClient, path: str = "/v1/rerank", **fields: Any) -> Any:
    return answer(await client.post(path, json={"query": QUERY, "documents": TEXTS, **fields}))


def indexes(body: dict[str, Any]) -> list[int]:
    return [result["index"] for result in body["results"]]


def scored(body: dict[str, Any]) -> dict[int, float]:
    return {result["index"]: result["relevance_score"] for result in body["results"]}


def logit(probability: float) -> Any:
    return pytest.approx(math.log(probability / (1 - probability)))


def ranked(
    score: str = "relevance_score",
    of: Callable[[float], Any] = float,
    order: Sequence[int] = ORDER,
    **more: Callable[[int], Any],
) -> list[dict[str, Any]]:
    """Return the results of a dialect: index, score and further fields of each document."""
    return [
        {"index": index, score: of(SCORES[index]), **{name: value(index) for name, value in more.items()}}
        for index in order
    ]


def text(index: int) -> str:
    return TEXTS[index]


def an_object(index: int) -> dict[str, str]:
    return {"text": TEXTS[index]}


COHERE = {"model": "rerank-v3.5", "query": QUERY, "documents": TEXTS}
PASSAGES = [{"text": text} for text in TEXTS]
INPUT = {"object": "list", "top_k": 3, "return_input": True}
PLACES = [{"document": text, "score": score} for text, score in zip([*TEXTS, ""], [*SCORES, 0.0], strict=True)]
# Path, request, and a part of the answer.
EXCHANGES: list[tuple[str, dict[str, Any], Any]] = [
    *(
        (path, COHERE, {"object": "rerank", "model": "seeded", "results": ranked()})
        for path in ("/v1/rerank", "/v2/rerank", "/rerank", "/infinity/rerank", "/reranking", "/v1/reranking")
    ),
    ("/v1/rerank", COHERE | {"return_documents": True}, {"results": ranked(document=an_object)}),
    ("/v2/rerank", COHERE | {"return_documents": "true"}, {"results": ranked(document=an_object)}),  # RAGFlow's request
    ("/v2/rerank", COHERE | {"top_n": 3, "max_chunks_per_doc": None}, {"results": ranked(order=ORDER[:3])}),
    ("/infinity/rerank", COHERE | {"return_documents": True}, {"results": ranked(document=text)}),
    ("/rerank", COHERE | {"raw_scores": True}, {"results": ranked(of=logit)}),
    ("/rerank", COHERE | {"use_activation": False}, {"results": ranked(of=logit)}),
    ("/rerank", {"query": QUERY, "texts": TEXTS, "truncate": None, "return_text": False}, ranked("score")),
    ("/rerank", {"query": QUERY, "texts": TEXTS, "raw_scores": True}, ranked("score", logit)),
    ("/rerank", {"query": QUERY, "texts": TEXTS, "top_n": 0}, ranked("score")),
    (
        "/rerank",
        {"texts": TEXTS, "query": QUERY, "return_text": True, "top_n": 8},
        ranked("score", order=ORDER[:8], text=text),
    ),
    *(
        (
            path,
            {"query": {"text": QUERY}, "passages": PASSAGES, "truncate": "END"},
            {"rankings": ranked("logit", logit)},
        )
        for path in ("/v1/ranking", "/reranking", "/v1/reranking")
    ),
    (
        "/v1/reranking",
        {"query": QUERY, "input": TEXTS, "top_k": 3, "return_input": True},
        INPUT | {"data": ranked("score", order=ORDER[:3], input=text)},
    ),
    ("/reranking", {"query": QUERY, "input": PASSAGES, "top_k": 0}, {"data": ranked("score")}),
    (
        "/voyage/v1/rerank",
        COHERE | {"truncation": True, "top_k": 3, "return_documents": True},
        {"data": ranked(order=ORDER[:3], document=text)},
    ),
    (
        ALIYUN,
        {"model": "m", "input": {"query": QUERY, "documents": TEXTS}, "parameters": {}},
        {"output": {"results": ranked()}},
    ),
    (
        ALIYUN,
        {"input": {"query": QUERY, "documents": TEXTS}, "parameters": {"top_n": 3, "return_documents": True}},
        {"output": {"results": ranked(order=ORDER[:3], document=an_object)}},
    ),
    (
        "/weaviate/rerank",
        {"query": QUERY, "documents": [*TEXTS, ""], "property": ""},
        {"query": QUERY, "scores": PLACES},
    ),
]


@pytest.mark.parametrize(("path", "request_", "expected"), EXCHANGES)
async def test_rerank_answers_recorded_client_requests(
    client: httpx.AsyncClient, path: str, request_: dict[str, Any], expected: Any
) -> None:
    """The bytes are from Go's and Python's encoders, without a content type."""
    body: Any = answer(await client.post(path, content=json.dumps(request_, separators=(",", ":")).encode()))
    assert body == expected if isinstance(expected, list) else expected.items() <= body.items(), body


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
async def test_rerank_answer_reports_usage(client: httpx.AsyncClient, path: str) -> None:
    body = await post(client, path)
    assert len(body["id"]) == 32 and body["created"] > 1_700_000_000
    assert body["meta"]["api_version"] == {"version": path[2]}
    assert body["meta"]["billed_units"] == {"search_units": 1}
    tokens = math.ceil(sum(len(QUERY) + len(text) for text in TEXTS) / 4)
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert body["meta"]["tokens"] == {"input_tokens": tokens, "output_tokens": 0}
    ours = body["boundarymorph"]
    assert (ours["status"], ours["stop_reason"]) == ("complete", "pool_exhausted")
    assert (ours["documents"], ours["budget"], ours["cross_encoder_calls"]) == (12, 12, 12)
    assert (ours["inferred"], ours["warnings"], ours["expected_loss"]) == ([], [], 0)


async def test_rerank_without_a_budget_scores_in_one_round_without_encoding(tmp_path: Path) -> None:
    class Noting(SeededEncoder):
        async def encode_query(self, text: str, caller: str = "") -> NDArray[np.float32]:
            self.encoded.append(text)
            return await super().encode_query(text)

    scorer, encoder = SeededScorer(), Noting()
    async with serving(Settings(data_directory=tmp_path), faked(scorer, encoder)) as client:
        encoder.encoded.clear()
        await post(client)
        assert (scorer.rounds, encoder.encoded) == ([TEXTS], [])


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
@pytest.mark.parametrize(
    ("fields", "count"),
    [({"top_n": None}, 12), ({"top_n": 0}, 12), ({"top_n": 99}, 12), *(({name: n}, 2) for name in ("top_n", "top_k")
     for n in (2, 2.0, "2"))],
)  # fmt: skip
async def test_top_n_bounds_the_results(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any], count: int
) -> None:
    assert indexes(await post(client, path, **fields)) == ORDER[:count]


async def test_rank_fields_are_joined_in_the_order_given(client: httpx.AsyncClient) -> None:
    documents = [{"title": "one", "text": "first", "year": 2001}, {"title": "two", "text": "second"}, "plain"]
    body = await post(client, documents=documents, rank_fields=["title", "year", "text"])
    read = ["one\n2001\nfirst", "two\nsecond", "plain"]
    assert scored(body) == {index: score_of(QUERY, text) for index, text in enumerate(read)}


async def test_text_values_other_than_strings_are_read_as_json(client: httpx.AsyncClient) -> None:
    given = '{"text": 12345678901234567890123}, {"text": [1.5, "é", null]}, {"text": {"a": true}}'
    body = f'{{"query": "{QUERY}", "documents": [{given}]}}'.encode()
    read = ["12345678901234567890123", '[1.5,"é",null]', '{"a":true}']
    assert scored(answer(await client.post("/v1/rerank", content=body))) == {
        index: score_of(QUERY, text) for index, text in enumerate(read)
    }


async def test_max_tokens_per_doc_truncates_the_scored_text(client: httpx.AsyncClient) -> None:
    body = await post(client, documents=["abcdefghijkl", "xyz"], max_tokens_per_doc=2, return_documents=True)
    found = {result["document"]["text"]: result["relevance_score"] for result in body["results"]}
    assert found == {"abcdefghijkl": score_of(QUERY, "abcdefgh"), "xyz": score_of(QUERY, "xyz")}


async def test_rerank_warns_of_fields_without_effect(client: httpx.AsyncClient) -> None:
    body = await post(client, "/v2/rerank", relevant_spans={"mode": "enabled"}, priority=3)
    warnings = body["meta"]["warnings"]
    assert [{"slug": "no-effect", "message": said} for said in warnings] == body["boundarymorph"]["warnings"]
    assert [said.partition(" ")[0] for said in warnings] == ["relevant_spans"]
    response = await client.post("/weaviate/rerank", json={"query": QUERY, "documents": ["a"], "unheard_of": 1})
    [warning] = json.loads(response.headers["x-boundarymorph-warnings"])
    assert warning["slug"] == "no-effect" and "'unheard_of'" in warning["message"]


@pytest.mark.parametrize("fields", [{"model": "rerank-2.5", "top_k": 3}, {"truncation": True}, {"property": ""}])
@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_rerank_path_alone_decides_the_answer_format(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any]
) -> None:
    body = await post(client, path, return_documents=True, **fields)
    plain = await post(client, path, return_documents=True)
    assert body.keys() == plain.keys() and "data" not in body
    assert body["results"] == plain["results"][: fields.get("top_k")]


async def test_models_and_info_routes_name_the_model(client: httpx.AsyncClient) -> None:
    for path in ("/v1/models", "/models", "/p/few/v1/models"):
        cards = answer(await client.get(path))["data"]
        assert cards[0]["id"] == "seeded" and {card["object"] for card in cards} == {"model"}
    for prefix in ("", "/p/few"):
        assert answer(await client.get(f"{prefix}/info"))["model_id"] == "seeded"
        assert answer(await client.get(f"{prefix}/weaviate/meta"))["model_id"] == "seeded"
        assert answer(await client.get(f"{prefix}/weaviate/.well-known/ready"))["status"] == "ok"


async def test_rerank_keeps_the_order_of_equal_documents(client: httpx.AsyncClient) -> None:
    found = indexes(await post(client, documents=["same", "other", "same", "same", "other"]))
    assert [index for index in found if index in (0, 2, 3)] == [0, 2, 3]
    assert sorted(found) == [0, 1, 2, 3, 4]


@pytest.mark.strangers
@pytest.mark.parametrize(("direction", "status"), [("Left", 422), ("Right", 200)])
async def test_truncation_from_the_left_is_refused_for_long_texts(
    client: httpx.AsyncClient, direction: str, status: int
) -> None:
    for length, expected in ((100, 200), (101, status)):
        given = {"query": "sea", "texts": ["a" * length], "truncate": True, "truncation_direction": direction}
        assert (await client.post("/rerank", json=given)).status_code == expected


@pytest.mark.parametrize("extra", [{}, {"k": 7}, {"top_n": 3}])
async def test_rerank_budget_scores_some_documents_and_infers_others(
    client: httpx.AsyncClient, extra: dict[str, Any]
) -> None:
    body = await post(client, budget=5, **extra)
    ours = body["boundarymorph"]
    assert (ours["budget"], ours["cross_encoder_calls"], ours["stop_reason"]) == (5, 5, "budget")
    assert not ours["warnings"]
    scores = [result["relevance_score"] for result in body["results"]]
    assert scores == sorted(scores, reverse=True) and all(0 <= score <= 1 for score in scores)
    for index, score in scored(body).items():
        assert (score == SCORES[index]) == (index not in ours["inferred"])
    if "top_n" not in extra:
        assert sorted(indexes(body)) == list(range(12))
        assert len(ours["inferred"]) == 7
        tokens = math.ceil(sum(len(QUERY) + len(TEXTS[i]) for i in range(12) if i not in ours["inferred"]) / 4)
        assert body["usage"]["total_tokens"] == tokens


@pytest.mark.parametrize(
    ("budget", "calls"), [(None, 21), (5, 5), (0, 0), (30, 21), (0.2, 5), (0.001, 1), (0.999, 21), ("auto", 9)]
)
async def test_rerank_budget_defaults_to_the_setting(tmp_path: Path, budget: Any, calls: int) -> None:
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
        assert f"{calls} of the 21 documents were scored" in ours["warnings"][0]["message"]
    assert [warning["slug"] for warning in ours["warnings"]] == ["budget-by-settings"] * (calls < 21)
    assert body["meta"].get("warnings", []) == [warning["message"] for warning in ours["warnings"]]
    assert (asked["boundarymorph"]["cross_encoder_calls"], asked["boundarymorph"]["warnings"]) == (3, [])


@pytest.mark.parametrize("on_failure", ["degrade", "error"])
async def test_rerank_degrades_on_scorer_failure_if_allowed(tmp_path: Path, on_failure: str) -> None:
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


@pytest.mark.parametrize("policy", ["strict", "none", "once", "groups"])
async def test_rerank_keeps_list_positions_of_documents_a_policy_omits(client: httpx.AsyncClient, policy: str) -> None:
    """Weaviate's reranker-cohere stores scores by index in a list as long as the results."""
    documents = [{"text": text, "doc": number % 3} for number, text in enumerate([*TEXTS, *TEXTS])]
    for count, fields in ((24, {}), (5, {"top_n": 5}), (24, {"budget": 10})):
        results = (await post(client, f"/p/{policy}/v2/rerank", documents=documents, **fields))["results"]
        scores = [result["relevance_score"] for result in results]
        assert len({result["index"] for result in results}) == len(results) == count
        assert scores == sorted(scores, reverse=True)
    whole = (await post(client, f"/p/{policy}/v2/rerank", documents=documents))["results"]
    kept = [result["relevance_score"] for result in whole if result["relevance_score"] > 0]
    assert len(kept) == {"strict": 2 * sum(s >= 0.5 for s in SCORES), "none": 0, "once": 12, "groups": 6}[policy]
    assert kept[:1] == ([max(SCORES)] if kept else [])


async def test_min_relevance_of_a_request_shortens_the_rerank_results(client: httpx.AsyncClient) -> None:
    for policy in ("", "/p/none"):
        results = (await post(client, f"{policy}/v1/rerank", min_relevance=0.5))["results"]
        assert len(results) == sum(score >= 0.5 for score in SCORES)


async def test_weaviate_route_scores_every_document_under_any_policy(client: httpx.AsyncClient) -> None:
    strict = (await post(client, "/p/strict/weaviate/rerank"))["scores"]
    assert [pair["score"] for pair in strict] == [score if score >= 0.5 else 0 for score in SCORES]
    few = (await post(client, "/p/few/weaviate/rerank", query="another question"))["scores"]
    assert [pair["document"] for pair in few] == TEXTS
    assert sum(pair["score"] == score_of("another question", pair["document"]) for pair in few) == 8


async def test_weaviate_route_returns_errors_as_text(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fields, said in (
        ({"documents": ["a"] * 41}, "documents: over this service's limit of 40"),
        ({"query": ""}, ""),
    ):
        refused = await client.post("/weaviate/rerank", json={"query": QUERY, "documents": TEXTS, **fields})
        assert refused.status_code == 422 and said in refused.json()["error"]
    monkeypatch.setattr(SeededScorer, "score", failing(ScorerUnavailable("away")))
    refused = await client.post("/weaviate/rerank", json={"query": "nobody knows this", "documents": TEXTS})
    assert refused.status_code == 503 and isinstance(refused.json()["error"], str)


async def test_dashscope_route_takes_a_budget_and_has_its_own_error_form(client: httpx.AsyncClient) -> None:
    body: dict[str, Any] = {"input": {"query": QUERY, "documents": TEXTS}}
    for path, fields in (
        (ALIYUN, {"parameters": {"budget": 5}}),
        (f"/p/few@5{ALIYUN}", {}),
        (ALIYUN, {"model": "few@5", "parameters": {}}),
    ):
        found = answer(await client.post(path, json=body | fields))
        assert (len(found["output"]["results"]), found["boundarymorph"]["budget"]) == (12, 5)
        assert found["usage"]["total_tokens"] > 0 and len(found["request_id"]) == 32
    for wrong, said in (
        ({"query": QUERY, "documents": []}, "documents: the list is empty"),
        ({"query": QUERY}, "there is no 'documents'"),
        ("text", "there is no 'documents'"),
        ({"query": QUERY, "documents": [["a"]]}, "documents.0"),
    ):
        refused = await client.post(ALIYUN, json={"input": wrong})
        assert refused.status_code == 400 and refused.json()["message"].startswith(said)


async def test_documented_elasticsearch_recipe_works(client: httpx.AsyncClient) -> None:
    """The test fills in the placeholders as JSON, and reads the results by the recipe's paths."""
    page = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    settings = json.loads(page.split("PUT _inference/rerank/boundarymorph\n")[1].split("```")[0])["service_settings"]
    path = settings["url"].removeprefix("http://localhost:8080")
    given = {"query": json.dumps(QUERY), "input": json.dumps(TEXTS)}
    response = await client.post(path, content=Template(settings["request"]).substitute(given).encode())
    parser = settings["response"]["json_parser"]

    def read(path: str) -> list[Any]:
        listed, field = path.removeprefix("$.").split("[*].")
        return [result[field] for result in answer(response)[listed]]

    pairs = dict(zip(read(parser["reranked_index"]), read(parser["relevance_score"]), strict=True))
    assert sorted(pairs) == list(range(12))
    assert sum(score == SCORES[index] for index, score in pairs.items()) == 3  # a fifth of them
