"""What Open WebUI, Dify and RAGFlow send and how they read the answer, rewritten from their sources' behaviour.

They are applications, not libraries, so that their own code cannot be installed and called. Read were Open WebUI 0.12.4
(`retrieval/models/external.py`), Dify's official model plugins (August 2026) and RAGFlow's `rag/llm/rerank_model.py`
(August 2026).
"""

import math
from typing import Any

import requests

from tests.compatibility.check import DOCUMENTS, QUERY, TOO_MANY, Servers, check, main, raised, ranking, same

PACKAGE = "requests"
OPEN_WEBUI, DIFY, RAGFLOW = "Open WebUI: ", "Dify: ", "RAGFlow: "


def post(url: str, servers: Servers, body: dict[str, Any], key: str | None = None) -> Any:
    response = requests.post(url, json=body, headers={"Authorization": f"Bearer {key or servers.key}"}, timeout=30)
    response.raise_for_status()
    return response.json()


def open_webui(servers: Servers, url: str, documents: list[str] = DOCUMENTS, key: str | None = None) -> list[float]:
    """A bare list of scores: it is matched with the documents by its order, so that none may be missing."""
    body = {"model": "reranker", "query": QUERY, "documents": documents, "top_n": len(documents)}
    results = post(url, servers, body, key)["results"]
    return [result["relevance_score"] for result in sorted(results, key=lambda result: result["index"])]


@check(PACKAGE, "POST /v1/rerank", OPEN_WEBUI + "the engine 'external': one score for each document, in their order")
def open_webui_ranks(servers: Servers) -> None:
    scores = open_webui(servers, f"{servers.whole}/v1/rerank")
    assert len(scores) == len(DOCUMENTS)
    same(enumerate(scores), sorted(ranking(servers)))


@check(PACKAGE, "POST /v1/rerank", OPEN_WEBUI + "errors, each a status that it logs")
def open_webui_refusals(servers: Servers) -> None:
    url = f"{servers.whole}/v1/rerank"
    raised(requests.HTTPError, lambda: open_webui(servers, url, TOO_MANY), "400")
    raised(requests.HTTPError, lambda: open_webui(servers, url, key="wrong"), "401")
    raised(requests.HTTPError, lambda: open_webui(servers, f"{servers.away}/v1/rerank"), "503")
    raised(requests.HTTPError, lambda: open_webui(servers, f"{servers.late}/v1/rerank"), "504")


def dify(
    results: list[dict[str, Any]], score: str, top_n: int | None = None, threshold: float | None = None
) -> list[tuple[int, float]]:
    """Best first, at most top_n, none below the threshold."""
    found = sorted(((result["index"], result[score]) for result in results), key=lambda pair: -pair[1])
    return [pair for pair in found[: top_n or None] if threshold is None or pair[1] >= threshold]


@check(PACKAGE, "POST /rerank", DIFY + "the provider OpenAI-API-compatible: top_n, score_threshold")
def dify_openai(servers: Servers) -> None:
    expected = ranking(servers)
    for top_n, threshold in ((None, None), (3, None), (5, expected[2][1])):
        sent = len(DOCUMENTS) if top_n is None else top_n
        body = {"model": "any", "query": QUERY, "documents": DOCUMENTS, "top_n": sent}
        results = post(f"{servers.whole}/rerank", servers, body)["results"]
        wanted = [pair for pair in expected[:top_n] if threshold is None or pair[1] >= threshold]
        same(dify(results, "relevance_score", top_n, threshold), wanted)


@check(PACKAGE, "POST /rerank, /v1/rerank", DIFY + "Jina, LocalAI, GPUStack and Xinference: top_n null, texts returned")
def dify_others(servers: Servers) -> None:
    expected = ranking(servers)
    body = {"model": "any", "query": QUERY, "documents": DOCUMENTS, "top_n": None}
    jina = post(f"{servers.whole}/v1/rerank", servers, body | {"return_documents": False})["results"]
    same(dify(jina, "relevance_score"), expected)
    for path in ("rerank", "v1/rerank"):
        results = post(f"{servers.whole}/{path}", servers, body | {"return_documents": True})["results"]
        same(dify(results, "relevance_score"), expected)
        assert all(result["document"]["text"] == DOCUMENTS[result["index"]] for result in results)


@check(PACKAGE, "GET /info, POST /rerank", DIFY + "text-embeddings-inference: it is a reranker; scores with texts")
def dify_tei(servers: Servers) -> None:
    headers = {"Authorization": f"Bearer {servers.key}"}
    info = requests.get(f"{servers.whole}/info", headers=headers, timeout=10).json()
    assert list(info["model_type"]) == ["reranker"]
    assert info["max_input_length"] == 512 and info["max_client_batch_size"] == 50
    results = post(f"{servers.whole}/rerank", servers, {"query": QUERY, "texts": DOCUMENTS, "return_text": True})
    same(dify(results, "score"), ranking(servers))
    assert all(result["text"] == DOCUMENTS[result["index"]] for result in results)


@check(PACKAGE, "POST /rerank", DIFY + "errors, each a status; TEI's own too")
def dify_refusals(servers: Servers) -> None:
    def call(url: str, field: str, documents: list[str] = DOCUMENTS) -> Any:
        return lambda: post(f"{url}/rerank", servers, {"model": "any", "query": QUERY, field: documents})

    for field, wrong, late in (("documents", "400", "504"), ("texts", "422", "424")):
        raised(requests.HTTPError, call(servers.whole, field, TOO_MANY), wrong)
        raised(requests.HTTPError, call(servers.away, field), "503")
        raised(requests.HTTPError, call(servers.late, field), late)
    body = {"query": QUERY, "texts": DOCUMENTS}
    response = requests.post(
        f"{servers.away}/rerank", json=body, headers={"Authorization": f"Bearer {servers.key}"}, timeout=9
    )
    assert response.json()["error_type"] == "Unhealthy"


def ragflow(results: list[dict[str, Any]], score: str) -> list[float]:
    """An array by index, where what is missing is 0; scores outside [0, 1] are stretched over it."""
    scores = [0.0] * len(DOCUMENTS)
    for result in results:
        scores[result["index"]] = result[score]
    least, most = min(scores), max(scores)
    if least >= 0 and most <= 1:
        return scores
    return [(value - least) / (most - least) for value in scores]


@check(PACKAGE, "POST /rerank, /v1/rerank", RAGFLOW + "OpenAI-API-compatible, Jina and Xinference: scores are kept")
def ragflow_ranks(servers: Servers) -> None:
    body = {"model": "any", "query": QUERY, "documents": DOCUMENTS}
    expected = sorted(ranking(servers))
    for path, fields in (
        ("rerank", {"top_n": len(DOCUMENTS)}),
        ("v1/rerank", {"top_n": len(DOCUMENTS)}),
        ("v1/rerank", {"return_documents": "true", "return_len": "true"}),
    ):
        answer = post(f"{servers.whole}/{path}", servers, body | fields)
        same(enumerate(ragflow(answer["results"], "relevance_score")), expected)
        assert answer["usage"]["total_tokens"] > 0


@check(PACKAGE, "POST /reranking", RAGFLOW + "NVIDIA: logits are stretched over [0, 1], in the same order")
def ragflow_nvidia(servers: Servers) -> None:
    passages = [{"text": text} for text in DOCUMENTS]
    body = {"model": "any", "query": {"text": QUERY}, "passages": passages, "truncate": "END", "top_n": len(DOCUMENTS)}
    rankings = post(f"{servers.whole}/reranking", servers, body)["rankings"]
    sigmoids = [(ranking["index"], 1 / (1 + math.exp(-ranking["logit"]))) for ranking in rankings]
    same(sigmoids, ranking(servers))
    scores = ragflow(rankings, "logit")
    assert sorted(range(len(scores)), key=lambda index: -scores[index]) == [index for index, _ in ranking(servers)]


if __name__ == "__main__":
    main()
