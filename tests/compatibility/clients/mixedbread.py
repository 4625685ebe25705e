"""Mixedbread's clients, the present one and the one before it, which sends its key as it is given."""

from typing import Any

import mixedbread
from mixedbread_ai.client import MixedbreadAI
from mixedbread_ai.core import ApiError

from tests.compatibility.check import DOCUMENTS, QUERY, TOO_MANY, Servers, check, main, raised, ranking, same

PACKAGE, BEFORE = "mixedbread", "mixedbread-ai"
ENDPOINT = "POST /v1/reranking"


def rerank(servers: Servers, url: str | None = None, key: str | None = None, **fields: Any) -> Any:
    with mixedbread.Mixedbread(api_key=key or servers.key, base_url=url or servers.whole, max_retries=0) as client:
        return client.rerank(**{"query": QUERY, "input": DOCUMENTS, "model": "any", **fields})


def before(servers: Servers, url: str | None = None, key: str | None = None, **fields: Any) -> Any:
    client = MixedbreadAI(api_key=f"Bearer {key or servers.key}", base_url=url or servers.whole)
    options = {"max_retries": 0}
    return client.reranking(**{"query": QUERY, "input": DOCUMENTS, "request_options": options, **fields})


def results(answer: Any) -> list[tuple[int, float]]:
    return [(result.index, result.score) for result in answer.data]


@check(PACKAGE, ENDPOINT, "scores of all documents, best first; top_k, return_input; objects with rank_fields; usage")
def ranks(servers: Servers) -> None:
    expected = ranking(servers)
    answer = rerank(servers)
    same(results(answer), expected)
    assert answer.usage.total_tokens > 0 and answer.model and answer.top_k == len(DOCUMENTS)
    answer = rerank(servers, top_k=3, return_input=True)
    same(results(answer), expected[:3])
    assert [result.input for result in answer.data] == [DOCUMENTS[index] for index, _ in expected[:3]]
    objects = [{"id": number, "body": document} for number, document in enumerate(DOCUMENTS)]
    same(results(rerank(servers, input=objects, rank_fields=["body"])), expected)


@check(PACKAGE, ENDPOINT, "errors")
def refusals(servers: Servers) -> None:
    raised(mixedbread.BadRequestError, lambda: rerank(servers, query=5), "query")
    raised(mixedbread.BadRequestError, lambda: rerank(servers, input=TOO_MANY), "50 documents: 51")
    raised(mixedbread.AuthenticationError, lambda: rerank(servers, key="wrong"))
    raised(mixedbread.InternalServerError, lambda: rerank(servers, servers.away), "no scorer")
    raised(mixedbread.InternalServerError, lambda: rerank(servers, servers.late), "deadline")


@check(BEFORE, ENDPOINT, "scores of all documents; top_k, return_input; error: scorer away")
def ranks_before(servers: Servers) -> None:
    expected = ranking(servers)
    same(results(before(servers)), expected)
    answer = before(servers, top_k=3, return_input=True)
    same(results(answer), expected[:3])
    assert [result.input for result in answer.data] == [DOCUMENTS[index] for index, _ in expected[:3]]
    raised(ApiError, lambda: before(servers, servers.away), "503")


if __name__ == "__main__":
    main()
