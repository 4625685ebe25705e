"""Voyage's client."""

import asyncio
from typing import Any

import voyageai
from voyageai import error

from tests.compatibility.check import DOCUMENTS, QUERY, TOO_MANY, Servers, check, main, raised, ranking, same

PACKAGE = "voyageai"
MODEL = "rerank-2.5"


def rerank(servers: Servers, url: str | None = None, key: str | None = None, **fields: Any) -> Any:
    client = voyageai.Client(api_key=key or servers.key, base_url=f"{url or servers.whole}/v1")
    return client.rerank(**{"query": QUERY, "documents": DOCUMENTS, "model": MODEL, **fields})


def results(answer: Any) -> list[tuple[int, float]]:
    return [(result.index, result.relevance_score) for result in answer.results]


@check(PACKAGE, "POST /v1/rerank", "scores of all documents, best first; top_k; tokens; a policy as the model; async")
def ranks(servers: Servers) -> None:
    expected = ranking(servers)
    answer = rerank(servers)
    same(results(answer), expected)
    assert answer.total_tokens > 0
    assert [result.document for result in answer.results] == [DOCUMENTS[index] for index, _ in expected]
    same(results(rerank(servers, top_k=3)), expected[:3])
    same(results(rerank(servers, model="default@50%")), ranking(servers, budget=5))

    async def call() -> Any:
        client = voyageai.AsyncClient(api_key=servers.key, base_url=f"{servers.whole}/v1")
        return await client.rerank(query=QUERY, documents=DOCUMENTS, model=MODEL, top_k=3)

    same(results(asyncio.run(call())), expected[:3])


@check(PACKAGE, "POST /v1/rerank", "errors")
def refusals(servers: Servers) -> None:
    long = ["coral " * 2_000]
    raised(error.InvalidRequestError, lambda: rerank(servers, documents=long, truncation=False), "longer")
    assert len(rerank(servers, documents=long).results) == 1
    raised(error.InvalidRequestError, lambda: rerank(servers, documents=TOO_MANY), "50 documents: 51")
    raised(error.AuthenticationError, lambda: rerank(servers, key="wrong"))
    raised(error.ServiceUnavailableError, lambda: rerank(servers, servers.away))
    raised(error.ServiceUnavailableError, lambda: rerank(servers, servers.late))


if __name__ == "__main__":
    main()
