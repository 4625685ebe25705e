"""LangChain's components for Cohere and NVIDIA."""

import asyncio
import math
from typing import Any

from cohere.errors import BadRequestError, GatewayTimeoutError, ServiceUnavailableError, UnauthorizedError
from langchain_cohere import CohereRerank
from langchain_core.documents import Document
from langchain_nvidia_ai_endpoints import NVIDIARerank

from tests.compatibility.check import DOCUMENTS, QUERY, TOO_MANY, Servers, check, main, raised, ranking, same

COHERE, NVIDIA = "langchain-cohere", "langchain-nvidia-ai-endpoints"
GIVEN = [Document(text, metadata={"number": number}) for number, text in enumerate(DOCUMENTS)]


def found(documents: Any) -> list[tuple[int, float]]:
    return [(document.metadata["number"], document.metadata["relevance_score"]) for document in documents]


def logits(expected: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(index, math.log(score / (1 - score))) for index, score in expected]


def cohere(servers: Servers, url: str | None = None, key: str | None = None, top_n: int | None = None) -> CohereRerank:
    return CohereRerank(base_url=url or servers.whole, cohere_api_key=key or servers.key, model="any", top_n=top_n)


@check(COHERE, "POST /v2/rerank", "compress_documents: all, and top_n; acompress_documents")
def compress(servers: Servers) -> None:
    same(found(cohere(servers).compress_documents(GIVEN, QUERY)), ranking(servers))
    same(found(cohere(servers, top_n=3).compress_documents(GIVEN, QUERY)), ranking(servers)[:3])
    same(found(asyncio.run(cohere(servers).acompress_documents(GIVEN, QUERY))), ranking(servers))


@check(COHERE, "POST /v2/rerank", "rerank with max_tokens_per_doc, and of objects with rank_fields")
def rerank(servers: Servers) -> None:
    answer = cohere(servers).rerank(DOCUMENTS, QUERY, max_tokens_per_doc=5)
    shortened = ranking(servers, [document[:20] for document in DOCUMENTS])
    same([(result["index"], result["relevance_score"]) for result in answer], shortened)
    objects = [{"title": text, "url": "x"} for text in DOCUMENTS]
    answer = cohere(servers).rerank(objects, QUERY, rank_fields=["title"])
    assert sorted(result["index"] for result in answer) == list(range(len(DOCUMENTS)))


@check(COHERE, "POST /v2/rerank", "errors")
def refusals(servers: Servers) -> None:
    raised(BadRequestError, lambda: cohere(servers).rerank(DOCUMENTS, 5), "query", "string")
    raised(BadRequestError, lambda: cohere(servers).rerank(TOO_MANY, QUERY), "50 documents: 51")
    raised(UnauthorizedError, lambda: cohere(servers, key="wrong").rerank(DOCUMENTS, QUERY), "key")
    raised(ServiceUnavailableError, lambda: cohere(servers, servers.away).rerank(DOCUMENTS, QUERY), "no scorer")
    raised(GatewayTimeoutError, lambda: cohere(servers, servers.late).rerank(DOCUMENTS, QUERY), "deadline")


def nvidia(servers: Servers, url: str | None = None, key: str | None = None, **options: Any) -> NVIDIARerank:
    base = f"{url or servers.whole}/v1"
    return NVIDIARerank(base_url=base, api_key=key or servers.key, model="any", **options)


@check(NVIDIA, "POST /v1/ranking", "compress_documents: the sigmoid of each logit is the score; in batches; async")
def rank(servers: Servers) -> None:
    expected = logits(ranking(servers))
    same(found(nvidia(servers, top_n=10).compress_documents(GIVEN, QUERY)), expected)
    same(found(nvidia(servers, top_n=3, truncate="END").compress_documents(GIVEN, QUERY)), expected[:3])
    same(found(nvidia(servers, top_n=10, max_batch_size=4).compress_documents(GIVEN, QUERY)), expected)
    same(found(asyncio.run(nvidia(servers, top_n=10).acompress_documents(GIVEN, QUERY))), expected)


@check(NVIDIA, "POST /v1/ranking", "errors")
def nvidia_refusals(servers: Servers) -> None:
    long = [Document("coral " * 2_000)]
    raised(Exception, lambda: nvidia(servers, truncate="NONE").compress_documents(long, QUERY), "422", "longer than")
    many = [Document(text) for text in TOO_MANY]
    raised(
        Exception, lambda: nvidia(servers, max_batch_size=60).compress_documents(many, QUERY), "422", "50 documents: 51"
    )
    raised(Exception, lambda: nvidia(servers, key="wrong").compress_documents(GIVEN, QUERY), "401")
    raised(Exception, lambda: nvidia(servers, servers.away).compress_documents(GIVEN, QUERY), "503", "no scorer")
    raised(Exception, lambda: nvidia(servers, servers.late).compress_documents(GIVEN, QUERY), "504", "deadline")


if __name__ == "__main__":
    main()
