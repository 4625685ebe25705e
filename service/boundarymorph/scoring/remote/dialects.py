"""The wire formats of rerank servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.remote.wire import (
    Answer,
    Description,
    Dialect,
    Request,
    Unusable,
    array,
    full_name,
    is_count,
    limit,
    mapping,
    parsed,
    rooted,
    shown,
    told,
    word,
)

TOLERANCE = 1e-6  # by which a score may leave [0, 1]: the rounding of a server
TOLD = 0.95  # of the time that is waited: the scorer's own word that it is late shall come before that is over


class BoundaryMorph:
    """The scorer that comes with this service."""

    name, path, description_path = "boundarymorph", "/score", "/info"
    home, paid, needs_model, honours_deadlines = None, False, False, True
    most_texts, most_bytes = 512, None

    def request(self, model: str, context: str, texts: Sequence[str], seconds: float) -> Request:
        deadline = max(1, int(TOLD * seconds * 1000))
        return Request(self.path, {"query": context, "texts": list(texts), "deadline_ms": deadline})

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
        revision = rest.partition("/")[0] or name  # which is full in any case
        return Description(name, family, limit(info, "max_texts", self.most_texts), revision=revision)


class TextEmbeddingsInference:
    """Text Embeddings Inference of Hugging Face. A request takes one permit for each text and is refused whole when
    there are too few; the server takes bodies of 2 MB."""

    name, path, description_path = "tei", "/rerank", "/info"
    home, paid, needs_model, honours_deadlines = None, False, False, False
    most_texts, most_bytes = 32, 1_900_000

    def request(self, model: str, context: str, texts: Sequence[str], seconds: float) -> Request:
        return Request(self.path, {"query": context, "texts": list(texts), "truncate": True, "raw_scores": False})

    def read(self, body: bytes, count: int) -> Answer:
        results = parsed(body)
        if not isinstance(results, list):
            raise Unusable(f"the answer is {shown(results)}, not an array")
        return Answer(_ordered(_indexed(results, "score"), count, "let it honour raw_scores: false"))

    def describe(self, body: bytes, model: str | None) -> Description:
        info = mapping(parsed(body))
        served = word(info, "model_id")
        if model not in (None, served):
            raise Unusable(f"it serves {served}, not {model}")
        kind = info.get("model_type")
        if isinstance(kind, dict) and kind and "reranker" not in kind:
            raise Unusable(f"{served} is no reranker but a model of type {', '.join(map(str, kind))}")
        revision, precision, length = info.get("model_sha"), info.get("model_dtype"), info.get("max_input_length")
        concurrent = limit(info, "max_concurrent_requests", 0) or None
        return Description(
            full_name(served, revision, precision, length),
            served,
            limit(info, "max_client_batch_size", self.most_texts),
            concurrent,
            told(revision),
            served,
        )


class VLLM:
    """vLLM's rerank route. Texts that are too long for the model are cut to its length rather than refused."""

    name, path, description_path = "vllm", "/v1/rerank", "/v1/models"
    home, paid, needs_model, honours_deadlines = None, False, False, False
    most_texts, most_bytes = 512, None

    def request(self, model: str, context: str, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {"model": model, "query": context, "documents": list(texts)}
        return Request(self.path, body | {"truncate_prompt_tokens": -1, "use_activation": True})

    def read(self, body: bytes, count: int) -> Answer:
        advice = """serve the model without '"use_activation": false' in --pooler-config"""
        return Answer(_results(body, count, advice))

    def describe(self, body: bytes, model: str | None) -> Description:
        cards = [card for card in _cards(body) if not card.get("parent")]
        card = _chosen(cards, model)
        served = word(card, "id")
        return Description(
            full_name(rooted(card), None, None, card.get("max_model_len")),
            served,
            self.most_texts,
            weights=told(card.get("root")) or served,
        )


class Infinity:
    """Infinity. It refuses texts over a number of characters that no model reads to the end, so they are cut here."""

    name, path, description_path = "infinity", "/rerank", "/models"
    home, paid, needs_model, honours_deadlines = None, False, False, False
    most_texts, most_bytes = 2048, None
    characters = 122_880

    def request(self, model: str, context: str, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {
            "model": model,
            "query": context[: self.characters],
            "documents": [text[: self.characters] for text in texts],
            "raw_scores": False,
            "return_documents": False,
        }
        return Request(self.path, body, sum(len(text) > self.characters for text in texts))

    def read(self, body: bytes, count: int) -> Answer:
        return Answer(_results(body, count, "update it to one that honours raw_scores: false"))

    def describe(self, body: bytes, model: str | None) -> Description:
        card = _chosen([card for card in _cards(body) if _reranks(card)], model)
        served = word(card, "id")
        revision = card.get("revision")
        return Description(
            full_name(served, revision, card.get("dtype"), None),
            served,
            self.most_texts,
            revision=told(revision),
            weights=served,
        )


class Cohere:
    """Cohere's v2 API and what is compatible with it. It cuts long documents by itself."""

    name, path, description_path = "cohere", "/v2/rerank", None
    home, paid, needs_model, honours_deadlines = "https://api.cohere.com", True, True, False
    most_texts, most_bytes = 1000, None

    def request(self, model: str, context: str, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {"model": model, "query": context, "documents": list(texts), "top_n": len(texts)}
        return Request(self.path, body)

    def read(self, body: bytes, count: int) -> Answer:
        return Answer(_results(body, count, "turn its normalisation of scores on"))

    def describe(self, body: bytes, model: str | None) -> Description:
        raise Unusable("it does not describe itself")


class Jina:
    """Jina's API and what is compatible with it."""

    name, path, description_path = "jina", "/v1/rerank", None
    home, paid, needs_model, honours_deadlines = "https://api.jina.ai", True, True, False
    most_texts, most_bytes = 1000, None

    def request(self, model: str, context: str, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {"model": model, "query": context, "documents": list(texts), "top_n": len(texts)}
        return Request(self.path, body | {"return_documents": False})

    def read(self, body: bytes, count: int) -> Answer:
        return Answer(_results(body, count, "choose a model whose scores are relevances, not cosines"))

    def describe(self, body: bytes, model: str | None) -> Description:
        raise Unusable("it does not describe itself")


BOUNDARYMORPH: Dialect = BoundaryMorph()
FOREIGN: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (TextEmbeddingsInference(), VLLM(), Infinity(), Cohere(), Jina())
}


def _results(body: bytes, count: int, advice: str) -> NDArray[np.float64]:
    return _ordered(_indexed(array(mapping(parsed(body)), "results"), "relevance_score"), count, advice)


def _indexed(results: list[Any], key: str) -> Iterable[tuple[object, object]]:
    for result in results:
        item = mapping(result)
        yield item.get("index"), item.get(key)


def _ordered(scores: Iterable[tuple[object, object]], count: int, advice: str) -> NDArray[np.float64]:
    """(count,) scores by their index: each given once, a number, and a relevance."""
    values = np.full(count, np.nan)
    for index, score in scores:
        if not is_count(index) or index >= count:
            raise Unusable(f"there is a score for text {shown(index)}; the texts asked for are 0 to {count - 1}")
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise Unusable(f"the score of text {index} is {shown(score)}, not a number")
        if not np.isnan(values[index]):
            raise Unusable(f"there are two scores for text {index}")
        if not -TOLERANCE <= score <= 1 + TOLERANCE:
            raise Unusable(f"the score {score:g} is not a relevance in [0, 1] but a raw logit or a cosine: {advice}")
        values[index] = score
    missing = np.flatnonzero(np.isnan(values))
    if len(missing):
        raise Unusable(f"there is no score for text {missing[0]}, and {len(missing)} of {count} are missing in all")
    relevances: NDArray[np.float64] = np.clip(values, 0.0, 1.0)
    return relevances


def _cards(body: bytes) -> list[dict[str, Any]]:
    return [mapping(card) for card in array(mapping(parsed(body)), "data")]


def _reranks(card: dict[str, Any]) -> bool:
    capabilities = card.get("capabilities")
    return not isinstance(capabilities, list) or "rerank" in capabilities


def _chosen(cards: list[dict[str, Any]], model: str | None) -> dict[str, Any]:
    """The card of the wanted model, or of the only one."""
    served = [word(card, "id") for card in cards]
    if not served:
        raise Unusable("it serves no model that reranks")
    if model is not None and model not in served:
        raise Unusable(f"it serves {', '.join(served)}, not {model}")
    if model is None and len(served) > 1:
        raise Unusable(f"it serves several models, {', '.join(served)}: say which by ?model=NAME in its URL")
    return cards[0 if model is None else served.index(model)]
