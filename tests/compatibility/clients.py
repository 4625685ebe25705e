"""Call the rerank clients of other projects, one environment per project.

    python -m tests.compatibility.clients ENVIRONMENT SERVERS

Each function has the name of its environment, imports the packages that are installed there, and registers its checks.
"""

# mypy: ignore-errors
import asyncio
import json
import os
import sys
from functools import partial
from typing import Any

from tests.compatibility.check import (
    DOCUMENTS,
    QUERY,
    TOO_MANY,
    Call,
    Servers,
    calling,
    check,
    check_client,
    check_raises,
    check_same,
    main,
    ranking,
    sigmoids,
)

MODEL = "rerank-v3.5"


def results_of(answer: Any) -> list[tuple[int, float]]:
    return [(result.index, result.relevance_score) for result in answer.results]


def cohere() -> None:
    """Check Cohere's SDK, with both versions of its API."""
    import cohere

    kinds = cohere.BadRequestError, cohere.UnauthorizedError, cohere.ServiceUnavailableError, cohere.GatewayTimeoutError
    once: Any = {"max_retries": 0}

    def rank(path: str, call: Call, **fields: Any) -> Any:
        client = (cohere.Client if path == "/v1/rerank" else cohere.ClientV2)(call.key, base_url=call.url)
        given = {"query": QUERY, "documents": call.documents, "top_n": call.top, "request_options": once}
        return client.rerank(**{"model": MODEL, **given, **fields})

    def whole(path: str, servers: Servers) -> None:
        answer = rank(path, calling(servers))
        assert len(answer.id) == 32 and answer.meta.api_version.version == path[2]
        assert answer.meta.tokens.input_tokens > 100
        assert answer.boundarymorph["cross_encoder_calls"] + answer.boundarymorph["reused_scores"] == len(DOCUMENTS)

    def budget(path: str, servers: Servers) -> None:
        documents = [f"{document} ({path})" for document in DOCUMENTS]  # their scores are not cached yet
        extra = {"additional_body_parameters": {"budget": 4}}
        answer = rank(path, calling(servers, documents=documents), request_options=extra)
        found = results_of(answer)
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        assert answer.boundarymorph["budget"] == answer.boundarymorph["cross_encoder_calls"] == 4
        inferred, exact = set(answer.boundarymorph["inferred"]), dict(ranking(servers, documents))
        assert len(found) == len(DOCUMENTS) == len(inferred) + 4
        assert all(abs(score - exact[index]) < 1e-6 for index, score in found if index not in inferred)

    def passages(path: str, servers: Servers) -> None:
        pages = "".join(f"On day {day} the band played until midnight, and the mayor slept. " for day in range(9_000))
        answer = rank(path, calling(servers, documents=[pages, *DOCUMENTS]))
        assert sorted(index for index, _ in results_of(answer)) == list(range(len(DOCUMENTS) + 1))
        (found,) = (result.passage for result in answer.results if result.index == 0)
        assert pages[found["start"] : found["end"]] == found["text"] and 100 < len(found["text"]) < len(pages) / 100

    def refusals(path: str, servers: Servers) -> None:
        for fields, message in (
            ({"documents": []}, "is empty"),
            ({"query": 5}, "string"),
            ({"top_n": "three"}, "top_n"),
        ):
            check_raises(cohere.BadRequestError, partial(rank, path, calling(servers), **fields), message)

    for path in ("/v1/rerank", "/v2/rerank"):
        check_client("cohere", f"POST {path}", lambda call, path=path: results_of(rank(path, call)), kinds)
        check("cohere", f"POST {path}", "id, tokens and our diagnostics")(partial(whole, path))
        check("cohere", f"POST {path}", "`budget` as an additional field")(partial(budget, path))
        check("cohere", f"POST {path}", "the best passage of a book of 300 pages")(partial(passages, path))
        check("cohere", f"POST {path}", "errors in fields")(partial(refusals, path))

    @check("cohere", "POST /v1/rerank", "documents as objects, rank_fields, return_documents")
    def objects(servers: Servers) -> None:
        documents = [{"title": document, "text": "nothing"} for document in DOCUMENTS]
        call = calling(servers, documents=documents)
        answer = rank("/v1/rerank", call, rank_fields=["title"], return_documents=True)
        check_same(results_of(answer), ranking(servers))
        assert [each.document.title for each in answer.results] == [DOCUMENTS[each.index] for each in answer.results]

    @check("cohere", "POST /v1/rerank", "`boost` as an additional field")
    def boosted(servers: Servers) -> None:
        documents = [{"text": text, "place": str(place)} for place, text in enumerate(DOCUMENTS)]
        extra = {"additional_body_parameters": {"boost": [{"filter": {"place": "1"}, "weight": 1000}]}}
        answer = rank("/v1/rerank", calling(servers, documents=documents), request_options=extra)
        exact = dict(ranking(servers))
        for index, score in results_of(answer):
            assert abs(answer.boundarymorph["relevance"][str(index)] - exact[index]) < 1e-6
            assert abs(score - exact[index] * (1000 if index == 1 else 1)) < 1e-3

    @check("cohere", "POST /v2/rerank", "max_tokens_per_doc, relevant_spans; the asynchronous client")
    def shortened(servers: Servers) -> None:
        fields = {"max_tokens_per_doc": 5, "relevant_spans": {"mode": "enabled"}}
        answer = rank("/v2/rerank", calling(servers), **fields)
        check_same(results_of(answer), ranking(servers, [document[:20] for document in DOCUMENTS]))
        assert any("relevant_spans" in warning for warning in answer.meta.warnings)

        async def call() -> Any:
            async with cohere.AsyncClientV2(servers.key, base_url=servers.whole) as client:
                return await client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS)

        check_same(results_of(asyncio.run(call())), ranking(servers))


def langchain() -> None:
    """Check LangChain's components for Cohere and NVIDIA."""
    from cohere.errors import BadRequestError, GatewayTimeoutError, ServiceUnavailableError, UnauthorizedError
    from langchain_cohere import CohereRerank
    from langchain_core.documents import Document
    from langchain_nvidia_ai_endpoints import NVIDIARerank

    def component(kind: str, call: Call, **options: Any) -> Any:
        if kind == "cohere":
            return CohereRerank(base_url=call.url, cohere_api_key=call.key, model="any", top_n=call.top)
        top = call.top or len(call.documents)
        return NVIDIARerank(base_url=f"{call.url}/v1", api_key=call.key, model="any", top_n=top, **options)

    def rank(kind: str, call: Call, *, later: bool = False, **options: Any) -> list[tuple[int, float]]:
        given = [Document(text, metadata={"number": number}) for number, text in enumerate(call.documents)]
        made = component(kind, call, **options)
        found = asyncio.run(made.acompress_documents(given, QUERY)) if later else made.compress_documents(given, QUERY)
        pairs = [(document.metadata["number"], document.metadata["relevance_score"]) for document in found]
        return pairs if kind == "cohere" else sigmoids(pairs)

    kinds = (BadRequestError, UnauthorizedError, ServiceUnavailableError, GatewayTimeoutError)
    check_client("langchain-cohere", "POST /v2/rerank", partial(rank, "cohere"), kinds)
    nvidia = "langchain-nvidia-ai-endpoints"
    messages = ("422", "401", "503", "504")
    check_client(nvidia, "POST /v1/ranking", partial(rank, "nvidia", max_batch_size=60), Exception, messages)

    @check("langchain-cohere", "POST /v2/rerank", "acompress_documents; rerank with max_tokens_per_doc")
    def more_of_cohere(servers: Servers) -> None:
        check_same(rank("cohere", calling(servers), later=True), ranking(servers))
        answer = component("cohere", calling(servers)).rerank(DOCUMENTS, QUERY, max_tokens_per_doc=5)
        shortened = ranking(servers, [document[:20] for document in DOCUMENTS])
        check_same([(result["index"], result["relevance_score"]) for result in answer], shortened)

    @check(nvidia, "POST /v1/ranking", "in batches; async; texts that are too long")
    def more_of_nvidia(servers: Servers) -> None:
        check_same(rank("nvidia", calling(servers), max_batch_size=4), ranking(servers))
        check_same(rank("nvidia", calling(servers), later=True), ranking(servers))
        long = calling(servers, documents=["coral " * 2_000])
        check_raises(Exception, lambda: rank("nvidia", long, truncate="NONE"), "422", "longer than")


def llamaindex() -> None:
    """Check LlamaIndex's components for Cohere, Jina and text-embeddings-inference."""
    from cohere.errors import BadRequestError, GatewayTimeoutError, ServiceUnavailableError, UnauthorizedError
    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.postprocessor.cohere_rerank import CohereRerank
    from llama_index.postprocessor.jinaai_rerank import JinaRerank
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    def rank(kind: str, call: Call) -> list[tuple[int, float]]:
        top, key = call.top or len(call.documents), call.key
        if kind == "cohere":
            made = CohereRerank(top_n=top, api_key=key, base_url=call.url, max_retries=1)
        elif kind == "jina":
            made = JinaRerank(top_n=top, api_key=key, base_url=f"{call.url}/v1")
        else:
            made = TextEmbeddingInference(top_n=top, base_url=call.url, auth_token=f"Bearer {key}")
        nodes = [
            NodeWithScore(node=TextNode(text=text, id_=str(number)), score=0.0)
            for number, text in enumerate(call.documents)
        ]
        found = made.postprocess_nodes(nodes, query_str=QUERY)
        return [(int(node.node.node_id), node.score) for node in found]

    package = "llama-index-postprocessor-{}-rerank".format
    kinds = (BadRequestError, UnauthorizedError, ServiceUnavailableError, GatewayTimeoutError)
    check_client(package("cohere"), "POST /v2/rerank", partial(rank, "cohere"), kinds)
    check_client(package("jinaai"), "POST /v1/rerank", partial(rank, "jina"), RuntimeError)
    # This client ignores the status: it reads the error's body as scores, and finds too few.
    check_client(package("tei"), "POST /rerank", partial(rank, "tei"), AssertionError, ("",) * 4)


def haystack() -> None:
    """Check Haystack's components for Cohere, Jina and NVIDIA."""
    from cohere.errors import BadRequestError, GatewayTimeoutError, ServiceUnavailableError, UnauthorizedError
    from haystack import Document, Pipeline
    from haystack.utils import Secret
    from haystack_integrations.components.rankers.cohere import CohereRanker
    from haystack_integrations.components.rankers.jina import JinaRanker
    from haystack_integrations.components.rankers.nvidia import NvidiaRanker

    def given(call: Call) -> list[Any]:
        return [Document(content=text, meta={"number": number}) for number, text in enumerate(call.documents)]

    def made(kind: str, call: Call) -> Any:
        common = {"api_key": Secret.from_token(call.key), "top_k": call.top or len(call.documents)}
        if kind == "cohere":
            return CohereRanker(api_base_url=call.url, **common)
        if kind == "jina":
            return JinaRanker(base_url=f"{call.url}/v1/rerank", **common)
        return NvidiaRanker(model="any", api_url=f"{call.url}/v1", truncate="END", **common)

    def rank(kind: str, call: Call) -> list[tuple[int, float]]:
        pipeline = Pipeline()
        ranker = made(kind, call)
        pipeline.add_component("ranker", ranker)  # a pipeline accepts the component
        answer = ranker.run(query=QUERY, documents=given(call))
        pairs = [(document.meta["number"], document.score) for document in answer["documents"]]
        return sigmoids(pairs) if kind == "nvidia" else pairs

    kinds = (BadRequestError, UnauthorizedError, ServiceUnavailableError, GatewayTimeoutError)
    check_client("cohere-haystack", "POST /v2/rerank", partial(rank, "cohere"), kinds)
    check_client("jina-haystack", "POST /v1/rerank", partial(rank, "jina"), RuntimeError)
    messages = ("unprocessable", "unauthorized", "no scorer", "deadline")
    check_client("nvidia-haystack", "POST /v1/ranking", partial(rank, "nvidia"), ValueError, messages)

    @check("jina-haystack", "POST /v1/rerank", "model and usage; score_threshold")
    def threshold(servers: Servers) -> None:
        expected = ranking(servers)
        ranker = made("jina", calling(servers))
        answer = ranker.run(query=QUERY, documents=given(calling(servers)), score_threshold=expected[4][1])
        assert len(answer["documents"]) == sum(score >= expected[4][1] for _, score in expected)
        assert answer["meta"]["usage"]["total_tokens"] > 0 and answer["meta"]["model"]


def litellm() -> None:
    """Check LiteLLM with each of its providers whose wire format is served."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # LiteLLM downloads nothing
    import litellm
    from litellm import exceptions

    providers = {  # the path of the API below the service's URL, and its route
        "cohere": ("", "/v1/rerank"),
        "jina_ai": ("", "/v1/rerank"),
        "hosted_vllm": ("", "/rerank"),
        "huggingface": ("", "/rerank"),
        "infinity": ("/infinity", "/infinity/rerank"),
        "nvidia_nim/ranking": ("", "/v1/ranking"),
        "voyage": ("/voyage/v1/rerank", "/voyage/v1/rerank"),
    }

    def call_client(provider: str, call: Call, **options: Any) -> Any:
        base = call.url + providers[provider][0]
        given = {"query": QUERY, "documents": call.documents, "api_base": base, "api_key": call.key, "num_retries": 0}
        top = {} if call.top is None else {"top_n": call.top, "return_documents": True}
        dropped = provider == "jina_ai" and call.url.partition("/p/")[2]  # the part after the service's URL
        return litellm.rerank(model=f"{provider}/{dropped or 'any'}", **given, **top, **options)

    def rank(provider: str, call: Call) -> list[tuple[int, float]]:
        results = call_client(provider, call).results
        if call.top is not None:
            assert all(result["document"]["text"] == DOCUMENTS[result["index"]] for result in results)
        pairs = [(result["index"], result["relevance_score"]) for result in results]
        return sigmoids(pairs) if "nim" in provider else pairs

    for provider, (_, path) in providers.items():
        check_client("litellm", f"POST {path}", partial(rank, provider), Exception, what=f"{provider}/: ")

    @check("litellm", "POST /v2/rerank", "cohere/ with max_tokens_per_doc; exceptions by status; its accounting")
    def more(servers: Servers) -> None:
        answer = call_client("cohere", calling(servers), max_tokens_per_doc=5)
        shortened = ranking(servers, [document[:20] for document in DOCUMENTS])
        check_same([(result["index"], result["relevance_score"]) for result in answer.results], shortened)
        many, wrong = calling(servers, documents=TOO_MANY), calling(servers, key="wrong")
        check_raises(exceptions.BadRequestError, lambda: rank("cohere", many), "50 documents")
        check_raises(exceptions.AuthenticationError, lambda: rank("cohere", wrong))
        for provider, price in (("cohere", "input_cost_per_query"), ("voyage", "input_cost_per_token")):
            model = f"{provider}/any"
            litellm.register_model({model: {"mode": "rerank", "litellm_provider": provider, price: 1e-6}})
            answer = call_client(provider, calling(servers))
            assert litellm.completion_cost(answer, model=model, call_type="rerank") > 0, provider


def infinity() -> None:
    """Check Infinity's client."""
    from infinity_client import AuthenticatedClient
    from infinity_client.api.default import rerank
    from infinity_client.errors import UnexpectedStatus
    from infinity_client.models import RerankInput

    def call_client(call: Call, **fields: Any) -> Any:
        top = {} if call.top is None else {"top_n": call.top}
        body = RerankInput(query=QUERY, documents=call.documents, **top, **fields)
        with AuthenticatedClient(f"{call.url}/infinity", token=call.key, raise_on_unexpected_status=True) as client:
            return rerank.sync(client=client, body=body)

    messages = ("50 documents: 51", "401", "no scorer", "deadline")
    check_client(
        "infinity-client",
        "POST /infinity/rerank",
        lambda call: results_of(call_client(call)),
        UnexpectedStatus,
        messages,
    )

    @check("infinity-client", "POST /infinity/rerank", "raw_scores; documents as strings; model and usage")
    def more(servers: Servers) -> None:
        answer = call_client(calling(servers, top=3), raw_scores=True, return_documents=True)
        assert answer.usage.total_tokens > 0 and answer.model and answer.id
        assert [each.document for each in answer.results] == [DOCUMENTS[index] for index, _ in ranking(servers)[:3]]
        check_same(sigmoids(results_of(answer)), ranking(servers)[:3])


def voyage() -> None:
    """Check Voyage's client."""
    import voyageai
    from voyageai import error

    def call_client(call: Call, **fields: Any) -> Any:
        client = voyageai.Client(api_key=call.key, base_url=f"{call.url}/voyage/v1")
        given = {"query": QUERY, "documents": call.documents, "model": "rerank-2.5", "top_k": call.top}
        return client.rerank(**{**given, **fields})

    kinds = (
        error.InvalidRequestError, error.AuthenticationError, error.ServiceUnavailableError,
        error.ServiceUnavailableError,
    )  # fmt: skip
    messages = ("50 documents: 51", "", "", "")
    check_client("voyageai", "POST /voyage/v1/rerank", lambda call: results_of(call_client(call)), kinds, messages)

    @check("voyageai", "POST /voyage/v1/rerank", "tokens; a policy as the model; texts that are too long; async")
    def more(servers: Servers) -> None:
        answer = call_client(calling(servers))
        assert answer.total_tokens > 0
        assert [each.document for each in answer.results] == [DOCUMENTS[index] for index, _ in ranking(servers)]
        check_same(results_of(call_client(calling(servers), model="default@0.5")), ranking(servers, budget=5))
        long = calling(servers, documents=["coral " * 2_000])
        check_raises(error.InvalidRequestError, lambda: call_client(long, truncation=False), "longer")
        assert len(call_client(long).results) == 1

        async def call() -> Any:
            client = voyageai.AsyncClient(api_key=servers.key, base_url=f"{servers.whole}/voyage/v1")
            return await client.rerank(query=QUERY, documents=DOCUMENTS, model="rerank-2.5", top_k=3)

        check_same(results_of(asyncio.run(call())), ranking(servers)[:3])


def mixedbread() -> None:
    """Check Mixedbread's client."""
    import mixedbread

    def call_client(call: Call, **fields: Any) -> Any:
        with mixedbread.Mixedbread(api_key=call.key, base_url=call.url, max_retries=0) as client:
            given = {"query": QUERY, "input": call.documents, "model": "any", "top_k": call.top, "return_input": True}
            return client.rerank(**{**given, **fields})

    def pairs(answer: Any) -> list[tuple[int, float]]:
        return [(result.index, result.score) for result in answer.data]

    server_error = mixedbread.InternalServerError
    kinds = (mixedbread.BadRequestError, mixedbread.AuthenticationError, server_error, server_error)
    messages = ("50 documents: 51", "", "no scorer", "deadline")
    check_client("mixedbread", "POST /v1/reranking", lambda call: pairs(call_client(call)), kinds, messages)

    @check("mixedbread", "POST /v1/reranking", "return_input; objects with rank_fields; usage")
    def more(servers: Servers) -> None:
        answer = call_client(calling(servers))
        assert answer.usage.total_tokens > 0 and answer.model and answer.top_k == len(DOCUMENTS)
        assert [each.input for each in answer.data] == [DOCUMENTS[each.index] for each in answer.data]
        objects = [{"id": number, "body": document} for number, document in enumerate(DOCUMENTS)]
        check_same(pairs(call_client(calling(servers, documents=objects), rank_fields=["body"])), ranking(servers))


def aliyun() -> None:
    """Check DashScope's SDK, and LightRAG's reranker `aliyun`.

    The SDK returns errors as answers. LightRAG tries three times, within 12 s.
    """
    import dashscope
    from lightrag.rerank import ali_rerank

    path = "/api/v1/services/rerank/text-rerank/text-rerank"

    def rank(call: Call) -> list[tuple[int, float]]:
        given = {"query": QUERY, "documents": call.documents, "top_n": call.top, "return_documents": True}
        answer = dashscope.TextReRank.call("any", api_key=call.key, base_address=f"{call.url}/api/v1", **given)
        if answer.status_code != 200:
            raise RuntimeError(answer.message)
        assert answer.usage.total_tokens > 0
        assert all(each["document"]["text"] == call.documents[each.index] for each in answer.output.results)
        return [(each.index, each.relevance_score) for each in answer.output.results]

    check_client("dashscope", f"POST {path}", rank, RuntimeError)

    def of_lightrag(call: Call) -> list[tuple[int, float]]:
        results = asyncio.run(ali_rerank(QUERY, call.documents, call.top, call.key, base_url=f"{call.url}{path}"))
        return [(result["index"], result["relevance_score"]) for result in results]

    check_client("lightrag-hku", f"POST {path}", of_lightrag, None)


def dify() -> None:
    """Check the reranker of Dify's plugins, which stretches the scores over [0, 1]."""
    from dify_plugin.errors.model import InvokeServerUnavailableError
    from dify_plugin.interfaces.model.openai_compatible.rerank import OAICompatRerankModel

    def rank(call: Call, **options: Any) -> list[tuple[int, float]]:
        credentials = {"endpoint_url": f"{call.url}/v1", "api_key": call.key}
        model = OAICompatRerankModel([])
        return [(d.index, d.score) for d in model._invoke("any", credentials, QUERY, call.documents, **options).docs]

    @check("dify_plugin", "POST /v1/rerank", "OAICompatRerankModel: all, top_n; a budget by the URL; errors")
    def ranks(servers: Servers) -> None:
        def stretched(pairs: list[tuple[int, float]]) -> list[tuple[int, float]]:
            (_, most), (_, least) = pairs[0], pairs[-1]
            return [(index, (score - least) / (most - least)) for index, score in pairs]

        check_same(rank(calling(servers)), stretched(ranking(servers)))
        check_same(rank(calling(servers), top_n=3), stretched(ranking(servers)[:3]))
        documents = [f"{document} (dify)" for document in DOCUMENTS]
        thrifty = calling(servers, f"{servers.whole}/p/default@0.2", documents=documents)
        check_same(rank(thrifty), stretched(ranking(servers, thrifty.documents, budget=0.2)))
        for call, status in ((calling(servers, documents=TOO_MANY), "400"), (calling(servers, servers.away), "503")):
            check_raises(InvokeServerUnavailableError, lambda call=call: rank(call), status)


def applications() -> None:
    """Check the requests of Open WebUI 0.12.4, Dify's model plugins and RAGFlow (August 2026).

    They are applications, not libraries, so their code cannot be installed and called.
    """
    import requests

    def post(call: Call, path: str, **body: Any) -> Any:
        headers = {"Authorization": f"Bearer {call.key}"}
        response = requests.post(f"{call.url}{path}", json={"model": "any", **body}, headers=headers, timeout=30)
        response.raise_for_status()
        return response.json()

    def documents(path: str, call: Call, **fields: Any) -> list[tuple[int, float]]:
        body = {"query": QUERY, "documents": call.documents, "top_n": call.top, **fields}
        answer = post(call, path, **body)
        assert answer["usage"]["total_tokens"] > 0
        return [(result["index"], result["relevance_score"]) for result in answer["results"]]

    def texts(call: Call) -> list[tuple[int, float]]:
        results = post(call, "/rerank", query=QUERY, texts=call.documents, return_text=True)
        assert all(result["text"] == call.documents[result["index"]] for result in results)
        return [(result["index"], result["score"]) for result in results][: call.top]

    def passages(call: Call) -> list[tuple[int, float]]:
        given = [{"text": text} for text in call.documents]
        top = call.top or len(given)
        answer = post(call, "/reranking", query={"text": QUERY}, passages=given, truncate="END", top_n=top)
        return sigmoids([(ranked["index"], ranked["logit"]) for ranked in answer["rankings"]])

    errors = requests.HTTPError
    every = ("400", "401", "503", "504")
    check_client(
        "requests", "POST /v1/rerank", partial(documents, "/v1/rerank"), errors, every, "Open WebUI and Dify: "
    )
    check_client("requests", "POST /rerank", partial(documents, "/rerank"), errors, every, "Dify and RAGFlow: ")
    check_client("requests", "POST /rerank", texts, errors, ("422", "401", "503", "424"), "Dify as TEI: ")
    check_client("requests", "POST /reranking", passages, errors, ("422", "401", "503", "504"), "RAGFlow as NVIDIA: ")

    @check("requests", "GET /info, POST /v1/rerank", "Dify: a reranker, as TEI; RAGFlow: booleans as strings")
    def more(servers: Servers) -> None:
        headers = {"Authorization": f"Bearer {servers.key}"}
        info = requests.get(f"{servers.whole}/info", headers=headers, timeout=10).json()
        assert list(info["model_type"]) == ["reranker"]
        assert info["max_input_length"] == 512 and info["max_client_batch_size"] == 50
        lax = {"return_documents": "true", "return_len": "true"}
        check_same(documents("/v1/rerank", calling(servers), **lax), ranking(servers))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    main(Servers(**json.loads(sys.argv[2])))
