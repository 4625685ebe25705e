"""Infinity's client."""

from typing import Any

from infinity_client import AuthenticatedClient
from infinity_client.api.default import rerank
from infinity_client.errors import UnexpectedStatus
from infinity_client.models import RerankInput

from tests.compatibility.check import DOCUMENTS, QUERY, TOO_MANY, Servers, check, main, raised, ranking, same

PACKAGE = "infinity-client"


def call(servers: Servers, url: str | None = None, key: str | None = None, **fields: Any) -> Any:
    body = RerankInput(**{"query": QUERY, "documents": DOCUMENTS, **fields})
    with AuthenticatedClient(url or servers.whole, token=key or servers.key, raise_on_unexpected_status=True) as client:
        return rerank.sync(client=client, body=body)


@check(PACKAGE, "POST /rerank", "scores of all documents; top_n, raw_scores; documents as strings; model and usage")
def ranks(servers: Servers) -> None:
    expected = ranking(servers)
    answer = call(servers)
    same([(result.index, result.relevance_score) for result in answer.results], expected)
    assert answer.usage.total_tokens > 0 and answer.model and answer.id
    answer = call(servers, top_n=3, raw_scores=True, return_documents=True)
    assert [result.index for result in answer.results] == [index for index, _ in expected[:3]]
    assert [result.document for result in answer.results] == [DOCUMENTS[index] for index, _ in expected[:3]]
    logits = [result.relevance_score for result in answer.results]
    assert logits == sorted(logits, reverse=True)


@check(PACKAGE, "POST /rerank", "errors")
def refusals(servers: Servers) -> None:
    raised(UnexpectedStatus, lambda: call(servers, query=5), "400", "query")
    raised(UnexpectedStatus, lambda: call(servers, documents=TOO_MANY), "400", "50 documents: 51")
    raised(UnexpectedStatus, lambda: call(servers, key="wrong"), "401")
    raised(UnexpectedStatus, lambda: call(servers, servers.away), "503", "no scorer")
    raised(UnexpectedStatus, lambda: call(servers, servers.late), "504", "deadline")


if __name__ == "__main__":
    main()
