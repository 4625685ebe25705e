"""LlamaIndex's postprocessors for Cohere, Jina and text-embeddings-inference."""

from typing import Any

from cohere.errors import BadRequestError, GatewayTimeoutError, ServiceUnavailableError, UnauthorizedError
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank
from llama_index.postprocessor.jinaai_rerank import JinaRerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

from tests.compatibility.check import DOCUMENTS, QUERY, TOO_MANY, Servers, check, main, raised, ranking, same

COHERE = "llama-index-postprocessor-cohere-rerank"
JINA = "llama-index-postprocessor-jinaai-rerank"
TEI = "llama-index-postprocessor-tei-rerank"


def nodes(documents: list[str] = DOCUMENTS) -> list[NodeWithScore]:
    return [
        NodeWithScore(node=TextNode(text=text, id_=str(number)), score=0.0) for number, text in enumerate(documents)
    ]


def run(postprocessor: Any, documents: list[str] = DOCUMENTS, query: Any = QUERY) -> list[tuple[int, float]]:
    found = postprocessor.postprocess_nodes(nodes(documents), query_str=query)
    return [(int(node.node.node_id), node.score) for node in found]


def cohere(servers: Servers, url: str | None = None, key: str | None = None, top_n: int = 10) -> CohereRerank:
    return CohereRerank(top_n=top_n, api_key=key or servers.key, base_url=url or servers.whole, max_retries=1)


def jina(servers: Servers, url: str | None = None, key: str | None = None, top_n: int = 10) -> JinaRerank:
    return JinaRerank(top_n=top_n, api_key=key or servers.key, base_url=f"{url or servers.whole}/v1")


def tei(servers: Servers, url: str | None = None, key: str | None = None, top_n: int = 10) -> TextEmbeddingInference:
    token = f"Bearer {key or servers.key}"
    return TextEmbeddingInference(top_n=top_n, base_url=url or servers.whole, auth_token=token)


def ranks(postprocessor: Any, servers: Servers) -> None:
    expected = ranking(servers)
    same(run(postprocessor(servers)), expected)
    same(run(postprocessor(servers, top_n=3)), expected[:3])


@check(COHERE, "POST /v2/rerank", "postprocess_nodes: all, and top_n")
def cohere_ranks(servers: Servers) -> None:
    ranks(cohere, servers)


@check(COHERE, "POST /v2/rerank", "errors")
def cohere_refusals(servers: Servers) -> None:
    raised(BadRequestError, lambda: run(cohere(servers), TOO_MANY), "50 documents: 51")
    raised(UnauthorizedError, lambda: run(cohere(servers, key="wrong")), "key")
    raised(ServiceUnavailableError, lambda: run(cohere(servers, servers.away)), "no scorer")
    raised(GatewayTimeoutError, lambda: run(cohere(servers, servers.late)), "deadline")


@check(JINA, "POST /v1/rerank", "postprocess_nodes: all, and top_n; at /rerank too")
def jina_ranks(servers: Servers) -> None:
    ranks(jina, servers)
    same(run(JinaRerank(top_n=10, api_key=servers.key, base_url=servers.whole)), ranking(servers))


@check(JINA, "POST /v1/rerank", "errors")
def jina_refusals(servers: Servers) -> None:
    raised(RuntimeError, lambda: run(jina(servers), TOO_MANY), "50 documents: 51")
    raised(RuntimeError, lambda: run(jina(servers, key="wrong")), "key")
    raised(RuntimeError, lambda: run(jina(servers, servers.away)), "no scorer")
    raised(RuntimeError, lambda: run(jina(servers, servers.late)), "deadline")


@check(TEI, "POST /rerank", "postprocess_nodes: as many scores as nodes, and top_n")
def tei_ranks(servers: Servers) -> None:
    ranks(tei, servers)


@check(TEI, "POST /rerank", "errors, and another dialect's path")
def tei_refusals(servers: Servers) -> None:
    # This client does not look at the status: it takes the error's body for scores, of which there are too few.
    raised(AssertionError, lambda: run(tei(servers), TOO_MANY))
    raised(AssertionError, lambda: run(tei(servers, key="wrong")))
    raised(AssertionError, lambda: run(tei(servers, servers.away)))
    raised(AssertionError, lambda: run(tei(servers, servers.late)))
    raised(AssertionError, lambda: run(tei(servers, f"{servers.whole}/v1")))


if __name__ == "__main__":
    main()
