"""Haystack's rankers for Cohere, Jina and NVIDIA."""

import asyncio
import math
from typing import Any

from cohere.errors import BadRequestError, GatewayTimeoutError, ServiceUnavailableError, UnauthorizedError
from haystack import Document, Pipeline
from haystack.utils import Secret
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.jina import JinaRanker
from haystack_integrations.components.rankers.nvidia import NvidiaRanker

from tests.compatibility.check import DOCUMENTS, QUERY, TOO_MANY, Servers, check, main, raised, ranking, same

COHERE, JINA, NVIDIA = "cohere-haystack", "jina-haystack", "nvidia-haystack"
GIVEN = [Document(content=text, meta={"number": number}) for number, text in enumerate(DOCUMENTS)]
MANY = [Document(content=text) for text in TOO_MANY]


def secret(servers: Servers, key: str | None) -> Secret:
    return Secret.from_token(key or servers.key)


def cohere(servers: Servers, url: str | None = None, key: str | None = None, top_k: int = 10) -> Any:
    return CohereRanker(api_key=secret(servers, key), api_base_url=url or servers.whole, top_k=top_k)


def jina(servers: Servers, url: str | None = None, key: str | None = None, top_k: int = 10) -> Any:
    return JinaRanker(api_key=secret(servers, key), base_url=f"{url or servers.whole}/v1/rerank", top_k=top_k)


def nvidia(servers: Servers, url: str | None = None, key: str | None = None, top_k: int = 10) -> Any:
    return NvidiaRanker(
        model="any", api_key=secret(servers, key), api_url=f"{url or servers.whole}/v1", top_k=top_k, truncate="END"
    )


def found(answer: Any) -> list[tuple[int, float]]:
    return [(document.meta["number"], document.score) for document in answer["documents"]]


def ranks(ranker: Any, servers: Servers, expected: list[tuple[int, float]]) -> None:
    pipeline = Pipeline()
    pipeline.add_component("ranker", ranker(servers))
    answer = pipeline.run({"ranker": {"query": QUERY, "documents": GIVEN}})
    same(found(answer["ranker"]), expected)
    same(found(ranker(servers, top_k=3).run(query=QUERY, documents=GIVEN)), expected[:3])


@check(COHERE, "POST /v2/rerank", "CohereRanker in a pipeline: all, and top_k; run_async")
def cohere_ranks(servers: Servers) -> None:
    ranks(cohere, servers, ranking(servers))
    same(found(asyncio.run(cohere(servers).run_async(query=QUERY, documents=GIVEN))), ranking(servers))


@check(COHERE, "POST /v2/rerank", "errors")
def cohere_refusals(servers: Servers) -> None:
    raised(BadRequestError, lambda: cohere(servers).run(query=QUERY, documents=[]), "is empty")
    raised(BadRequestError, lambda: cohere(servers).run(query=QUERY, documents=MANY), "50 documents: 51")
    raised(UnauthorizedError, lambda: cohere(servers, key="wrong").run(query=QUERY, documents=GIVEN), "key")
    raised(
        ServiceUnavailableError, lambda: cohere(servers, servers.away).run(query=QUERY, documents=GIVEN), "no scorer"
    )
    raised(GatewayTimeoutError, lambda: cohere(servers, servers.late).run(query=QUERY, documents=GIVEN), "deadline")


@check(JINA, "POST /v1/rerank", "JinaRanker in a pipeline: all, top_k, model and usage; score_threshold")
def jina_ranks(servers: Servers) -> None:
    expected = ranking(servers)
    ranks(jina, servers, expected)
    answer = jina(servers).run(query=QUERY, documents=GIVEN, score_threshold=expected[4][1])
    same(found(answer), [pair for pair in expected if pair[1] >= expected[4][1]])
    assert answer["meta"]["usage"]["total_tokens"] > 0 and answer["meta"]["model"]


@check(JINA, "POST /v1/rerank", "errors")
def jina_refusals(servers: Servers) -> None:
    raised(RuntimeError, lambda: jina(servers).run(query=QUERY, documents=MANY), "50 documents: 51")
    raised(RuntimeError, lambda: jina(servers, key="wrong").run(query=QUERY, documents=GIVEN), "key")
    raised(RuntimeError, lambda: jina(servers, servers.away).run(query=QUERY, documents=GIVEN), "no scorer")
    raised(RuntimeError, lambda: jina(servers, servers.late).run(query=QUERY, documents=GIVEN), "deadline")


@check(NVIDIA, "POST /v1/ranking", "NvidiaRanker in a pipeline: the sigmoid of each logit is the score; top_k")
def nvidia_ranks(servers: Servers) -> None:
    ranks(nvidia, servers, [(index, math.log(score / (1 - score))) for index, score in ranking(servers)])


@check(NVIDIA, "POST /v1/ranking", "errors")
def nvidia_refusals(servers: Servers) -> None:
    raised(ValueError, lambda: nvidia(servers).run(query=QUERY, documents=MANY), "unprocessable", "50 documents: 51")
    raised(ValueError, lambda: nvidia(servers, key="wrong").run(query=QUERY, documents=GIVEN), "unauthorized")
    raised(ValueError, lambda: nvidia(servers, servers.away).run(query=QUERY, documents=GIVEN), "no scorer")
    raised(ValueError, lambda: nvidia(servers, servers.late).run(query=QUERY, documents=GIVEN), "deadline")


if __name__ == "__main__":
    main()
