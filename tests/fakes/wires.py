"""Stand-in rerank servers: what each kind of server answers, within the limits of its wire."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from boundarymorph.scoring.remote import Endpoint, RemoteScorer, parse
from tests.fakes.scorer import score_of
from tests.fakes.upstream import Behaviour, Reply, Request, Upstream, listening, well

MODEL = "stand-in"


class Wire:
    """What a kind of server answers. most: texts a request; description: the body at its path, where it has one."""

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
        assert body.keys() - {"instruction"} == {"query", "texts", "deadline_ms"}
        assert isinstance(body["deadline_ms"], int) and body["deadline_ms"] > 0
        if len(self.texts(body)) > self.most:
            return Reply({"title": "limit exceeded", "detail": f"at most {self.most} texts"}, 422)
        scores = [score_of(body["query"], text) for text in self.texts(body)]
        return Reply(
            {"model": self.model, "scores": scores, "truncated": sum(len(text) > 100 for text in self.texts(body))}
        )


class Tei(Wire):
    scheme, score_path, description_path = "tei", "/rerank", "/info"

    def __init__(self, model: str = MODEL, most: int = 32, concurrent: int = 512) -> None:
        self.most, self.concurrent = most, concurrent
        self.description = {
            "model_id": model,
            "model_sha": "0123456789abcdef0123456789abcdef01234567",
            "model_dtype": "float16",
            "model_type": {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}},
            "max_concurrent_requests": concurrent,
            "max_input_length": 512,
            "max_client_batch_size": most,
            "version": "1.9.0",
        }

    def reply(self, body: dict[str, Any]) -> Reply:
        assert body["truncate"] is True and body["raw_scores"] is False
        texts = self.texts(body)
        if len(orjson.dumps(body)) > 2_000_000:
            return Reply(b"length limit exceeded", 413)
        if len(texts) > self.most:
            message = f"batch size {len(texts)} > maximum allowed batch size {self.most}"
            return Reply({"error": message, "error_type": "Validation"}, 422)
        ranks = [{"index": index, "score": score_of(body["query"], text)} for index, text in enumerate(texts)]
        return Reply(_by_score(ranks, "score"))


class _Results(Wire):
    """The wires whose answer is an object with `results`."""

    def texts(self, body: dict[str, Any]) -> list[str]:
        return list(body["documents"])

    def reply(self, body: dict[str, Any]) -> Reply:
        texts = self.texts(body)
        if body["model"] not in self.models:
            return Reply({"error": {"message": f"The model {body['model']} does not exist."}}, 404)
        if len(texts) > self.most:
            return Reply({"message": f"too many documents: {len(texts)}"}, 400)
        results = [{"index": index, "relevance_score": score_of(body["query"], t)} for index, t in enumerate(texts)]
        return Reply({"id": "1", "model": body["model"], "results": _by_score(results, "relevance_score")})


class Vllm(_Results):
    scheme, most, score_path, description_path = "vllm", 512, "/v1/rerank", "/v1/models"

    def __init__(self, *models: str) -> None:
        self.models = models or (MODEL,)
        cards = [{"id": name, "object": "model", "max_model_len": 8192, "parent": None} for name in self.models]
        self.description = {"object": "list", "data": cards}

    def reply(self, body: dict[str, Any]) -> Reply:
        assert body["truncate_prompt_tokens"] == -1 and body["use_activation"] is True
        return super().reply(body)


class Infinity(_Results):
    scheme, most, score_path, description_path = "infinity", 2048, "/rerank", "/models"

    def __init__(self, *models: str) -> None:
        self.models = models or (MODEL,)
        cards: list[dict[str, Any]] = [{"id": "an-encoder", "capabilities": ["embed"]}]
        cards += [{"id": name, "capabilities": ["rerank"], "revision": None, "dtype": "auto"} for name in self.models]
        self.description = {"data": cards}

    def reply(self, body: dict[str, Any]) -> Reply:
        assert body["raw_scores"] is False and body["return_documents"] is False
        if any(len(text) > 122_880 for text in [body["query"], *self.texts(body)]):
            return Reply({"detail": [{"type": "string_too_long", "msg": "at most 122880 characters"}]}, 422)
        return super().reply(body)


class Cohere(_Results):
    scheme, most, score_path = "cohere+http", 1000, "/v2/rerank"

    def reply(self, body: dict[str, Any]) -> Reply:
        assert body["top_n"] == len(self.texts(body))
        return super().reply(body)


class LlamaCpp(_Results):
    """Its scores are logits."""

    scheme, most, score_path, description_path = "llamacpp", 256, "/v1/rerank", "/v1/models"

    def __init__(self) -> None:
        card = {"id": MODEL, "object": "model", "owned_by": "llamacpp", "meta": {"n_ctx_train": 512}}
        self.description = {"object": "list", "data": [card]}

    def reply(self, body: dict[str, Any]) -> Reply:
        reply = super().reply(body)
        for result in reply.body.get("results", ()):
            result["relevance_score"] = math.log(result["relevance_score"] / (1 - result["relevance_score"]))
        return reply


class Jina(_Results):
    scheme, most, score_path = "jina+http", 1000, "/v1/rerank"

    def reply(self, body: dict[str, Any]) -> Reply:
        assert body["return_documents"] is False
        return super().reply(body)


class Voyage(Jina):
    scheme = "voyage+http"

    def reply(self, body: dict[str, Any]) -> Reply:
        assert "top_n" not in body
        reply = super().reply(body)
        if results := reply.body.pop("results", None):
            reply.body |= {"object": "list", "data": results}
        return reply


class ListwiseJina(Jina):
    """jina-reranker-v3: its scores are cosines, and one of its requests is one pass."""

    most, models = 64, ("jina-reranker-v3",)

    def reply(self, body: dict[str, Any]) -> Reply:
        reply = super().reply(body)
        for result in reply.body.get("results", ()):
            result["relevance_score"] = 2 * result["relevance_score"] - 1
        return reply


class SystemOne(Wire):
    """A decision model: a query as the state, and a question with each document."""

    scheme, most, score_path = "systemone+http", 30, "/v1/systemone"

    def texts(self, body: dict[str, Any]) -> list[str]:
        return [question["instructions"].partition("\n\n")[2] for question in body["questions"].values()]

    def reply(self, body: dict[str, Any]) -> Reply:
        assert body.keys() == {"model", "state", "questions"}
        assert all(question.keys() == {"type", "instructions"} for question in body["questions"].values())
        assert {question["type"] for question in body["questions"].values()} == {"noul"}
        if len(orjson.dumps(body)) > 65_536 or len(body["questions"]) > self.most:
            return Reply({"error": {"message": "too many questions"}}, 422)
        query, texts = body["state"]["query"], self.texts(body)
        scores = {name: score_of(query, text) for name, text in zip(body["questions"], texts, strict=True)}
        in_some_order = {
            name: {"type": "noul", "noul": scores[name]} for name in sorted(scores, key=scores.__getitem__)
        }
        usage = {"input_tokens": len(orjson.dumps(body)) // 4, "output_tokens": 0}
        return Reply({"model": f"{body['model']}.0", "answers": in_some_order, "usage": usage})


class Decisions(SystemOne):
    scheme, score_path = "decisions+http", "/v1/decisions"


class Server(Upstream):
    """A wire behind a port. key: what requests must have; others are refused.

    asked: bodies of requests for scores; described: how often it told of itself; description: its behaviour then.
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
        """How many texts each request for scores had."""
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
    """Servers for as long as the block runs."""
    async with listening(*(Server(wire, key=key) for wire in wires)) as servers:
        yield servers


@asynccontextmanager
async def scoring(
    *servers: Server, model: str | None = None, activation: str = "", **options: Any
) -> AsyncIterator[RemoteScorer]:
    """A scorer that calls servers, closed in the end. model, activation: of their URLs."""
    endpoints = [server.endpoint(model=model, activation=activation) for server in servers]
    scorer = RemoteScorer(endpoints, **options)
    try:
        yield scorer
    finally:
        await scorer.close()


def _by_score(results: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Sorted as servers do it, which is not the order of the texts; ties are thrown together."""
    random.Random(len(results)).shuffle(results)
    return sorted(results, key=lambda result: -float(result[key]))
