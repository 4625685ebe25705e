"""The wire formats of rerank servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.logistic import sigmoid
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

Activation = Literal["sigmoid", "none"]
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


class RerankServer(Dialect):
    """A rerank server of others. activation: what the operator says of its results; without it they must be in [0, 1].

    advice: how to make such a server give relevances.
    """

    activation: Activation | None = None
    advice: str

    def activated(self, activation: Activation) -> Self:
        """Return this dialect for a server whose results are logits, or are not."""
        activated = copy(self)
        activated.activation = activation
        return activated

    def read(self, body: bytes, count: int) -> Answer:
        return Answer(self._relevances(_indexed(array(mapping(parsed(body)), "results"), "relevance_score"), count))

    def _relevances(self, scores: Iterable[tuple[object, object]], count: int) -> NDArray[np.float64]:
        if self.activation == "sigmoid":
            return sigmoid(_numbers(scores, count))
        hint = f"{self.advice}, or add ?activation=sigmoid to its URL if its scores are logits"
        return _ordered(scores, count, hint if self.activation is None else self.advice)


class TextEmbeddingsInference(RerankServer, wire.TextEmbeddingsInference):
    path = "/rerank"
    model_type, called = "reranker", "reranker"
    advice = "let it honour raw_scores: false"

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        return Request(self.path, {"query": context.query, "texts": list(texts), "truncate": True, "raw_scores": False})

    def read(self, body: bytes, count: int) -> Answer:
        results = parsed(body)
        if not isinstance(results, list):
            raise Unusable(f"the answer is {shown(results)}, not an array")
        return Answer(self._relevances(_indexed(results, "score"), count))


class VLLM(RerankServer):
    """vLLM's rerank route. Texts that are too long for the model are truncated rather than rejected. An instruction is
    for the chat template, if the model has one, which the server does not say."""

    name, path, description_path = "vllm", "/v1/rerank", "/v1/models"
    most_texts = 512
    advice = """serve the model without '"use_activation": false' in --pooler-config"""

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {"model": model, "query": context.query, "documents": list(texts)}
        return Request(self.path, _instructed(body, context) | {"truncate_prompt_tokens": -1, "use_activation": True})

    def describe(self, body: bytes, model: str | None) -> Description:
        return replace(vllm_description(body, model, self.most_texts), instructed=True)


class Infinity(RerankServer):
    """Infinity. It rejects texts over a number of characters that no model reads to the end, so we truncate them."""

    name, path, description_path = "infinity", "/rerank", "/models"
    most_texts, characters = 2048, 122_880
    advice = "update it to one that honours raw_scores: false"

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {
            "model": model,
            "query": context.query[: self.characters],
            "documents": [text[: self.characters] for text in texts],
            "raw_scores": False,
            "return_documents": False,
        }
        return Request(self.path, body, sum(len(text) > self.characters for text in texts))

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


class Cohere(RerankServer):
    """Cohere's v2 API and compatible ones. The server truncates long documents."""

    name, path, home, most_texts = "cohere", "/v2/rerank", "https://api.cohere.com", 1000
    advice = "turn its normalisation of scores on"

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        return Request(self.path, _all_of(model, context, texts))


class Jina(RerankServer):
    """Jina's API and compatible ones."""

    name, path, most_texts = "jina", "/v1/rerank", 1000
    home: str | None = "https://api.jina.ai"
    advice = "choose a model whose scores are relevances, not cosines"

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        return Request(self.path, _all_of(model, context, texts) | {"return_documents": False})


class LlamaCpp(Jina):
    """llama.cpp's server, which gives logits for most models and does not say so. It refuses a text that is longer than
    its physical batch."""

    name, description_path, most_texts, home = "llamacpp", "/v1/models", 256, None
    advice = "choose a model that gives probabilities"

    def describe(self, body: bytes, model: str | None) -> Description:
        return vllm_description(body, model, self.most_texts)


BOUNDARYMORPH: Dialect = BoundaryMorph()
SERVERS = (TextEmbeddingsInference(), VLLM(), Infinity(), LlamaCpp(), Cohere(), Jina())
FOREIGN: dict[str, Dialect] = {server.name: server for server in SERVERS}


def _all_of(model: str, context: Context, texts: Sequence[str]) -> dict[str, object]:
    """Return the body of a request for the scores of all texts."""
    return {"model": model, "query": context.query, "documents": list(texts), "top_n": len(texts)}


def _instructed(body: dict[str, object], context: Context) -> dict[str, object]:
    return body if context.instruction is None else body | {"instruction": context.instruction}


def _indexed(results: list[Any], key: str) -> Iterable[tuple[object, object]]:
    for result in results:
        item = mapping(result)
        yield item.get("index"), item.get(key)


def _ordered(scores: Iterable[tuple[object, object]], count: int, advice: str) -> NDArray[np.float64]:
    """Return (count,) scores by their index: each given once, a number, and a relevance."""
    values = _numbers(scores, count)
    outside = values[~((values >= -TOLERANCE) & (values <= 1 + TOLERANCE))]
    if len(outside):
        raise Unusable(f"the score {outside[0]:g} is not a relevance in [0, 1] but a raw logit or a cosine: {advice}")
    relevances: NDArray[np.float64] = np.clip(values, 0.0, 1.0)
    return relevances


def _numbers(scores: Iterable[tuple[object, object]], count: int) -> NDArray[np.float64]:
    """Return (count,) numbers by their index, each given once."""
    values = np.full(count, np.nan)
    for index, score in by_index(scores, count, "score").items():
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise Unusable(f"the score of text {index} is {shown(score)}, not a number")
        values[index] = score
    missing = np.flatnonzero(np.isnan(values))
    if len(missing):
        raise Unusable(f"there is no score for text {missing[0]}, and {len(missing)} of {count} are missing in all")
    return values


def _reranks(card: dict[str, Any]) -> bool:
    capabilities = card.get("capabilities")
    return not isinstance(capabilities, list) or "rerank" in capabilities
