"""The wire formats of rerank servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.remote import wire
from boundarymorph.remote.wire import (
    Answer,
    Context,
    Description,
    Dialect,
    Request,
    Unusable,
    array,
    by_index,
    cards,
    chosen,
    full_name,
    is_count,
    limit,
    mapping,
    optional_word,
    parsed,
    shown,
    vllm_description,
    word,
)

TOLERANCE = 1e-6  # how far a score may be outside [0, 1], for the rounding of a server
DEADLINE_SHARE = 0.95  # fraction of our own time limit, so that the scorer's timeout comes first


class BoundaryMorph(Dialect):
    """The scorer that comes with this service."""

    name, path, description_path = "boundarymorph", "/score", "/info"
    most_texts, honours_deadlines = 512, True

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        deadline = max(1, int(DEADLINE_SHARE * seconds * 1000))
        body = {"query": context.query, "texts": list(texts), "deadline_ms": deadline}
        return Request(self.path, _instructed(body, context))

    def read(self, body: bytes, count: int) -> Answer:
        answer = mapping(parsed(body))
        scores = enumerate(array(answer, "scores"))
        truncated = answer.get("truncated", 0)
        if not is_count(truncated):
            raise Unusable(f"'truncated' is {shown(truncated)}, not a count")
        return Answer(_ordered(scores, count, "apply the sigmoid in the scorer"), truncated, word(answer, "model"))

    def describe(self, body: bytes, model: str | None) -> Description:
        info = mapping(parsed(body))
        name = word(info, "model")
        family, _, rest = name.partition("@")
        if model not in (None, name, family):
            raise Unusable(f"it serves {name}, not {model}")
        revision = rest.partition("/")[0] or name  # the name is complete either way
        length = limit(info, "max_length", 0) or None
        return Description(
            name,
            family,
            limit(info, "max_texts", self.most_texts),
            revision=revision,
            length=length,
            instructed=info.get("instructed") is True,
        )


class TextEmbeddingsInference(wire.TextEmbeddingsInference):
    path = "/rerank"
    model_type, called = "reranker", "reranker"

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        return Request(self.path, {"query": context.query, "texts": list(texts), "truncate": True, "raw_scores": False})

    def read(self, body: bytes, count: int) -> Answer:
        results = parsed(body)
        if not isinstance(results, list):
            raise Unusable(f"the answer is {shown(results)}, not an array")
        return Answer(_ordered(_indexed(results, "score"), count, "let it honour raw_scores: false"))


class VLLM(Dialect):
    """vLLM's rerank route. Texts that are too long for the model are truncated rather than rejected. An instruction is
    for the chat template, if the model has one, which the server does not say."""

    name, path, description_path = "vllm", "/v1/rerank", "/v1/models"
    most_texts = 512

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {"model": model, "query": context.query, "documents": list(texts)}
        return Request(self.path, _instructed(body, context) | {"truncate_prompt_tokens": -1, "use_activation": True})

    def read(self, body: bytes, count: int) -> Answer:
        advice = """serve the model without '"use_activation": false' in --pooler-config"""
        return Answer(_results(body, count, advice))

    def describe(self, body: bytes, model: str | None) -> Description:
        return replace(vllm_description(body, model, self.most_texts), instructed=True)


class Infinity(Dialect):
    """Infinity. It rejects texts over a number of characters that no model reads to the end, so we truncate them."""

    name, path, description_path = "infinity", "/rerank", "/models"
    most_texts, characters = 2048, 122_880

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {
            "model": model,
            "query": context.query[: self.characters],
            "documents": [text[: self.characters] for text in texts],
            "raw_scores": False,
            "return_documents": False,
        }
        return Request(self.path, body, sum(len(text) > self.characters for text in texts))

    def read(self, body: bytes, count: int) -> Answer:
        return Answer(_results(body, count, "update it to one that honours raw_scores: false"))

    def describe(self, body: bytes, model: str | None) -> Description:
        card = chosen([card for card in cards(body) if _reranks(card)], model)
        served = word(card, "id")
        revision = card.get("revision")
        return Description(
            full_name(served, revision, card.get("dtype"), None),
            served,
            self.most_texts,
            revision=optional_word(revision),
            weights=served,
        )


class Cohere(Dialect):
    """Cohere's v2 API and compatible ones. The server truncates long documents."""

    name, path, home, most_texts = "cohere", "/v2/rerank", "https://api.cohere.com", 1000

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {
            "model": model,
            "query": context.query,
            "documents": list(texts),
            "top_n": len(texts),
        }
        return Request(self.path, body)

    def read(self, body: bytes, count: int) -> Answer:
        return Answer(_results(body, count, "turn its normalisation of scores on"))


class Jina(Dialect):
    """Jina's API and compatible ones."""

    name, path, home, most_texts = "jina", "/v1/rerank", "https://api.jina.ai", 1000

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {
            "model": model,
            "query": context.query,
            "documents": list(texts),
            "top_n": len(texts),
        }
        return Request(self.path, body | {"return_documents": False})

    def read(self, body: bytes, count: int) -> Answer:
        return Answer(_results(body, count, "choose a model whose scores are relevances, not cosines"))


BOUNDARYMORPH: Dialect = BoundaryMorph()
FOREIGN: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (TextEmbeddingsInference(), VLLM(), Infinity(), Cohere(), Jina())
}


def _instructed(body: dict[str, object], context: Context) -> dict[str, object]:
    return body if context.instruction is None else body | {"instruction": context.instruction}


def _results(body: bytes, count: int, advice: str) -> NDArray[np.float64]:
    return _ordered(_indexed(array(mapping(parsed(body)), "results"), "relevance_score"), count, advice)


def _indexed(results: list[Any], key: str) -> Iterable[tuple[object, object]]:
    for result in results:
        item = mapping(result)
        yield item.get("index"), item.get(key)


def _ordered(scores: Iterable[tuple[object, object]], count: int, advice: str) -> NDArray[np.float64]:
    """Return (count,) scores by their index: each given once, a number, and a relevance."""
    values = np.full(count, np.nan)
    for index, score in by_index(scores, count, "score").items():
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise Unusable(f"the score of text {index} is {shown(score)}, not a number")
        if not -TOLERANCE <= score <= 1 + TOLERANCE:
            raise Unusable(f"the score {score:g} is not a relevance in [0, 1] but a raw logit or a cosine: {advice}")
        values[index] = score
    missing = np.flatnonzero(np.isnan(values))
    if len(missing):
        raise Unusable(f"there is no score for text {missing[0]}, and {len(missing)} of {count} are missing in all")
    relevances: NDArray[np.float64] = np.clip(values, 0.0, 1.0)
    return relevances


def _reranks(card: dict[str, Any]) -> bool:
    capabilities = card.get("capabilities")
    return not isinstance(capabilities, list) or "rerank" in capabilities
