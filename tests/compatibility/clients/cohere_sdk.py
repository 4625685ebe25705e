"""Cohere's SDK, of both versions of its API."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import cohere

from tests.compatibility.check import DOCUMENTS, QUERY, TOO_MANY, Servers, check, main, raised, ranking, same

PACKAGE = "cohere"
MODEL = "rerank-v3.5"
ONCE: Any = {"max_retries": 0}
CLIENTS = {"/v1/rerank": cohere.Client, "/v2/rerank": cohere.ClientV2}


def results(answer: Any) -> list[tuple[int, float]]:
    return [(result.index, result.relevance_score) for result in answer.results]


def client(path: str, servers: Servers, url: str | None = None, key: str | None = None) -> Any:
    return CLIENTS[path](servers.key if key is None else key, base_url=url or servers.whole)


Case = Callable[[str, Servers], None]


def of_both(what: str) -> Callable[[Case], Case]:
    """Register a check for both versions, which it is given by their paths."""

    def register(run: Case) -> Case:
        for path in CLIENTS:
            check(PACKAGE, f"POST {path}", what)(partial(run, path))
        return run

    return register


@of_both("scores of all documents, best first; top_n; id, tokens and our diagnostics")
def rerank(path: str, servers: Servers) -> None:
    answer = client(path, servers).rerank(model=MODEL, query=QUERY, documents=DOCUMENTS)
    same(results(answer), ranking(servers))
    assert sorted(index for index, _ in results(answer)) == list(range(len(DOCUMENTS)))
    assert len(answer.id) == 32
    assert answer.meta.api_version.version == path[2]
    assert answer.meta.tokens.input_tokens > 100
    assert answer.boundarymorph["cross_encoder_calls"] + answer.boundarymorph["reused_scores"] == len(DOCUMENTS)
    same(
        results(client(path, servers).rerank(model=MODEL, query=QUERY, documents=DOCUMENTS, top_n=3)),
        ranking(servers)[:3],
    )


@of_both("`budget` as an additional field: expected scores for what was not scored")
def budget(path: str, servers: Servers) -> None:
    documents = [f"{document} ({path})" for document in DOCUMENTS]  # whose scores are not known yet
    extra: Any = {"additional_body_parameters": {"budget": 4}}
    answer = client(path, servers).rerank(model=MODEL, query=QUERY, documents=documents, request_options=extra)
    found = results(answer)
    assert sorted(index for index, _ in found) == list(range(len(DOCUMENTS)))
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert answer.boundarymorph["budget"] == answer.boundarymorph["cross_encoder_calls"] == 4
    exact = dict(ranking(servers, documents))
    inferred = set(answer.boundarymorph["inferred"])
    assert len(inferred) == len(DOCUMENTS) - 4
    same(
        [(i, score) for i, score in found if i not in inferred], [(i, exact[i]) for i, _ in found if i not in inferred]
    )


@of_both("errors")
def refusals(path: str, servers: Servers) -> None:
    def call(url: str | None = None, key: str | None = None, documents: Any = DOCUMENTS, **options: Any) -> Any:
        return lambda: client(path, servers, url, key).rerank(
            **{"model": MODEL, "query": QUERY, "documents": documents, "request_options": ONCE, **options}
        )

    raised(cohere.BadRequestError, call(documents=[]), "is empty")
    raised(cohere.BadRequestError, call(query=5), "query", "string")
    raised(cohere.BadRequestError, call(documents=[["a"]]), "documents.0")
    raised(cohere.BadRequestError, call(top_n="three"), "top_n")
    raised(cohere.BadRequestError, call(documents=TOO_MANY), "50 documents: 51")
    raised(cohere.UnauthorizedError, call(key="wrong"), "key")
    raised(cohere.ServiceUnavailableError, call(servers.away), "no scorer is able to work")
    raised(cohere.GatewayTimeoutError, call(servers.late), "deadline")


@check(PACKAGE, "POST /v1/rerank", "documents as objects, rank_fields, return_documents")
def objects(servers: Servers) -> None:
    documents: list[Any] = [{"title": document, "text": "nothing"} for document in DOCUMENTS]
    answer = client("/v1/rerank", servers).rerank(
        model=MODEL, query=QUERY, documents=documents, rank_fields=["title"], return_documents=True
    )
    same(results(answer), ranking(servers))
    assert [result.document.title for result in answer.results] == [DOCUMENTS[index] for index, _ in results(answer)]
    answer = client("/v1/rerank", servers).rerank(query=QUERY, documents=DOCUMENTS, return_documents=True)
    assert [result.document.text for result in answer.results] == [DOCUMENTS[index] for index, _ in results(answer)]


@check(PACKAGE, "POST /v2/rerank", "max_tokens_per_doc, relevant_spans")
def shortened(servers: Servers) -> None:
    answer = client("/v2/rerank", servers).rerank(
        model=MODEL, query=QUERY, documents=DOCUMENTS, max_tokens_per_doc=5, relevant_spans={"mode": "enabled"}
    )
    same(results(answer), ranking(servers, [document[:20] for document in DOCUMENTS]))
    assert any("relevant_spans" in warning for warning in answer.meta.warnings)


@check(PACKAGE, "POST /v2/rerank", "the asynchronous client")
def asynchronous(servers: Servers) -> None:
    async def call() -> Any:
        async with cohere.AsyncClientV2(servers.key, base_url=servers.whole) as client:
            return await client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS)

    same(results(asyncio.run(call())), ranking(servers))


if __name__ == "__main__":
    main()
