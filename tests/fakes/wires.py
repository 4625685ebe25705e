"""Stand-in rerank servers, which answer as each kind of server does, within its limits."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from boundarymorph.remote.urls import Endpoint
from boundarymorph.scoring.remote import RemoteScorer, parse
from tests.fakes.scorer import score_of
from tests.fakes.upstream import Behaviour, Reply, Request, Upstream, listening, well

MODEL = "stand-in"


class Wire:
    """The requests and replies of a kind of server.

    Attributes:
        scheme: The scheme of its URLs.
        most: The largest number of texts in a request.
        score_path: The path that scores texts.
        description_path: The path that describes the server, if any.
        description: The body at that path.
        models: The names of its models.
    """

    scheme: str
    most: int
    score_path: str
    description_path: str | None = None
    description: Any = None
    models: tuple[str, ...] = (MODEL,)

    def texts(self, body: dict[str, Any]) -> list[str]:
        return list(body["texts"])

    def reply(self, body: dict[str, Any]) -> Reply:
        raise NotImplementedError


class Ours(Wire):
    scheme, score_path, description_path = "http", "/score", "/info"

    def __init__(self, model: str = MODEL, most: int = 512) -> None:
        self.model, self.most = model, most
        self.description = {"model": model, "max_texts": most}

    def reply(self, body: dict[str, Any]) -> Reply:
        texts = self.texts(body)
        assert len(texts) <= self.most and body["deadline_ms"] > 0
        scores = [score_of(body["query"], text) for text in texts]
        return Reply({"model": self.model, "scores": scores, "truncated": sum(len(text) > 100 for text in texts)})


class Tei(Wire):
    scheme, score_path, description_path = "tei", "/rerank", "/info"

    def __init__(self, most: int = 32) -> None:
        self.most = most
        self.description = {
            "model_id": MODEL,
            "model_sha": "0123456789abcdef0123456789abcdef01234567",
            "model_dtype": "float16",
            "model_type": {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}},
            "max_concurrent_requests": 512,
            "max_input_length": 512,
            "max_client_batch_size": most,
        }

    def reply(self, body: dict[str, Any]) -> Reply:
        texts = self.texts(body)
        assert len(texts) <= self.most and len(orjson.dumps(body)) <= 2_000_000
        return Reply(_by_score([{"index": n, "score": score_of(body["query"], t)} for n, t in enumerate(texts)]))


class Cohere(Wire):
    scheme, most, score_path = "cohere+http", 1000, "/v2/rerank"

    def texts(self, body: dict[str, Any]) -> list[str]:
        return list(body["documents"])

    def reply(self, body: dict[str, Any]) -> Reply:
        texts = self.texts(body)
        assert body["model"] in self.models and len(texts) <= self.most
        results = [{"index": n, "relevance_score": score_of(body["query"], text)} for n, text in enumerate(texts)]
        return Reply({"id": "1", "model": body["model"], "results": _by_score(results)})


class Vllm(Cohere):
    scheme, most, score_path, description_path = "vllm", 512, "/v1/rerank", "/v1/models"
    description: Any = {"data": [{"id": MODEL, "object": "model", "max_model_len": 8192, "parent": None}]}  # noqa: RUF012


class Jina(Cohere):
    scheme, score_path = "jina+http", "/v1/rerank"


class ListwiseJina(Jina):
    """The model jina-reranker-v3, whose scores are cosines and whose requests are one pass each."""

    most, models = 64, ("jina-reranker-v3",)

    def reply(self, body: dict[str, Any]) -> Reply:
        reply = super().reply(body)
        for result in reply.body["results"]:
            result["relevance_score"] = 2 * result["relevance_score"] - 1
        return reply


class SystemOne(Wire):
    """A decision model, with the query as the state and a question for each document."""

    scheme, most, score_path = "systemone+http", 30, "/v1/systemone"

    def texts(self, body: dict[str, Any]) -> list[str]:
        return [question["instructions"].partition("\n\n")[2] for question in body["questions"].values()]

    def reply(self, body: dict[str, Any]) -> Reply:
        assert len(orjson.dumps(body)) <= 65_536 and len(body["questions"]) <= self.most
        query, pairs = body["state"]["query"], zip(body["questions"], self.texts(body), strict=True)
        answers = {name: {"type": "noul", "noul": score_of(query, text)} for name, text in pairs}
        return Reply({"model": f"{body['model']}.0", "answers": answers})


class Decisions(SystemOne):
    scheme, score_path = "decisions+http", "/v1/decisions"


class Server(Upstream):
    """A wire behind a port.

    Attributes:
        key: The key that requests must have, if any.
        asked: The bodies of requests for scores.
        described: The number of requests for the description.
        description: The behaviour of these requests.
    """

    def __init__(self, wire: Wire, *, key: str | None = None) -> None:
        super().__init__()
        self.wire, self.key = wire, key
        self.description: Behaviour = well
        self.asked: list[dict[str, Any]] = []
        self.described = 0

    def endpoint(self, *, model: str | None = None, activation: str = "") -> Endpoint:
        wanted = self.wire.models[0] if model is None and self.wire.description_path is None else model
        options = ([f"model={wanted}"] if wanted else []) + ([f"activation={activation}"] if activation else [])
        query = "?" + "&".join(options) if options else ""
        return parse(f"{self.wire.scheme}://127.0.0.1:{self.port}{query}")

    @property
    def batches(self) -> list[int]:
        """Return the number of texts in each request for scores."""
        return [len(self.wire.texts(body)) for body in self.asked]

    async def respond(self, request: Request) -> Reply:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return Reply({"error": f"no such key: {request.headers.get('authorization')}"}, 401)
        if request.path == self.wire.description_path:
            self.described += 1
            return await self.description(Reply(self.wire.description))
        if request.path != self.wire.score_path:
            return Reply({"detail": "Not Found"}, 404)
        self.asked.append(request.json())
        return await super().respond(request)

    async def _replied(self, request: Request) -> Reply:
        return self.wire.reply(request.json())


@asynccontextmanager
async def running(*wires: Wire, key: str | None = None) -> AsyncIterator[list[Server]]:
    """Run servers with these wires while the block runs."""
    async with listening(*(Server(wire, key=key) for wire in wires)) as servers:
        yield servers


@asynccontextmanager
async def scoring(
    *servers: Server, model: str | None = None, activation: str = "", **options: Any
) -> AsyncIterator[RemoteScorer]:
    """Yield a scorer that calls the servers, and close it.

    `model` and `activation` are those of the URLs.
    """
    endpoints = [server.endpoint(model=model, activation=activation) for server in servers]
    scorer = RemoteScorer(endpoints, **options)
    try:
        yield scorer
    finally:
        await scorer.close()


def _by_score(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return results by score as servers do it, with equal scores in a random order."""
    random.Random(len(results)).shuffle(results)
    return sorted(results, key=lambda result: -result.get("score", result.get("relevance_score", 0.0)))
