"""The wire formats of rerank servers: what is asked, and how an answer is read and checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import numpy as np
import orjson
from numpy.typing import NDArray

TOLERANCE = 1e-6  # by which a score may leave [0, 1]: the rounding of a server


class Unusable(Exception):
    """An answer that is not what the wire format promises; the message says in what."""


@dataclass(frozen=True, slots=True)
class Request:
    """path: under the server's base URL; body: of the POST; cut: how many texts were shortened to be taken at all."""

    path: str
    body: dict[str, object]
    cut: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """values: (n,) float64 in [0, 1], in the order of the texts; truncated: how many the server says that it cut;
    served: the name that the server gives for what scored them, where it tells."""

    values: NDArray[np.float64]
    truncated: int = 0
    served: str | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """A server, as it describes itself.

    name: model and precision, as far as they are told; model: what requests call the model; texts: most a request;
    concurrent_texts: how many it takes at a time before it refuses any, None where that is not told.
    """

    name: str
    model: str
    texts: int
    concurrent_texts: int | None = None


class Dialect(Protocol):
    """One wire format. Reading raises Unusable."""

    @property
    def name(self) -> str:
        """As it is spelt in a URL."""

    @property
    def score_path(self) -> str:
        """Where scores are asked for."""

    @property
    def description_path(self) -> str | None:
        """Where the server describes itself; None for one that does not."""

    @property
    def home(self) -> str | None:
        """The base URL of a hosted service; None for what people run themselves."""

    @property
    def paid(self) -> bool:
        """Whether each request costs money, so that none may be repeated that may have been carried out."""

    @property
    def needs_model(self) -> bool:
        """Whether a request must name the model."""

    @property
    def honours_deadlines(self) -> bool:
        """Whether requests say for how long they are waited for, and a 504 that this time was over."""

    @property
    def most_texts(self) -> int:
        """Most texts a request, as long as the server has told nothing else."""

    @property
    def most_bytes(self) -> int | None:
        """Most bytes of query and texts together, as JSON; None for no limit of note."""

    def request(self, model: str, query: str, texts: Sequence[str], seconds: float) -> Request:
        """Ask for the scores of n texts. model: as the server's description calls it; seconds: for how long the answer
        will be waited for."""

    def read(self, body: bytes, count: int) -> Answer:
        """The scores of `count` texts."""

    def describe(self, body: bytes, model: str | None) -> Description:
        """The server's own description. model: the one that is wanted, where that is configured."""


class BoundaryMorph:
    """The scorer that comes with this service."""

    name, score_path, description_path = "boundarymorph", "/score", "/info"
    home, paid, needs_model, honours_deadlines = None, False, False, True
    most_texts, most_bytes = 512, None

    def request(self, model: str, query: str, texts: Sequence[str], seconds: float) -> Request:
        deadline = max(1, int(seconds * 1000))
        return Request(self.score_path, {"query": query, "texts": list(texts), "deadline_ms": deadline})

    def read(self, body: bytes, count: int) -> Answer:
        answer = _object(_parsed(body))
        scores = enumerate(_list(answer, "scores"))
        truncated = answer.get("truncated", 0)
        if not _is_count(truncated):
            raise Unusable(f"'truncated' is {_shown(truncated)}, not a count")
        return Answer(_ordered(scores, count, "apply the sigmoid in the scorer"), truncated, _text(answer, "model"))

    def describe(self, body: bytes, model: str | None) -> Description:
        info = _object(_parsed(body))
        name = _text(info, "model")
        family = name.partition("@")[0]
        if model not in (None, name, family):
            raise Unusable(f"it serves {name}, not {model}")
        return Description(name, family, _limit(info, "max_texts", self.most_texts))


class TextEmbeddingsInference:
    """Text Embeddings Inference of Hugging Face. A request takes one permit for each text and is refused whole when
    there are too few; the server takes bodies of 2 MB."""

    name, score_path, description_path = "tei", "/rerank", "/info"
    home, paid, needs_model, honours_deadlines = None, False, False, False
    most_texts, most_bytes = 32, 1_900_000

    def request(self, model: str, query: str, texts: Sequence[str], seconds: float) -> Request:
        return Request(self.score_path, {"query": query, "texts": list(texts), "truncate": True, "raw_scores": False})

    def read(self, body: bytes, count: int) -> Answer:
        results = _parsed(body)
        if not isinstance(results, list):
            raise Unusable(f"the answer is {_shown(results)}, not an array")
        return Answer(_ordered(_indexed(results, "score"), count, "let it honour raw_scores: false"))

    def describe(self, body: bytes, model: str | None) -> Description:
        info = _object(_parsed(body))
        served = _text(info, "model_id")
        if model not in (None, served):
            raise Unusable(f"it serves {served}, not {model}")
        kind = info.get("model_type")
        if isinstance(kind, dict) and kind and "reranker" not in kind:
            raise Unusable(f"{served} is no reranker but a model of type {', '.join(map(str, kind))}")
        revision, precision, length = info.get("model_sha"), info.get("model_dtype"), info.get("max_input_length")
        concurrent = _limit(info, "max_concurrent_requests", 0) or None
        return Description(
            _full_name(served, revision, precision, length),
            served,
            _limit(info, "max_client_batch_size", self.most_texts),
            concurrent,
        )


class VLLM:
    """vLLM's rerank route. Texts that are too long for the model are cut to its length rather than refused."""

    name, score_path, description_path = "vllm", "/v1/rerank", "/v1/models"
    home, paid, needs_model, honours_deadlines = None, False, False, False
    most_texts, most_bytes = 512, None

    def request(self, model: str, query: str, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {"model": model, "query": query, "documents": list(texts)}
        return Request(self.score_path, body | {"truncate_prompt_tokens": -1, "use_activation": True})

    def read(self, body: bytes, count: int) -> Answer:
        advice = """serve the model without '"use_activation": false' in --pooler-config"""
        return Answer(_results(body, count, advice))

    def describe(self, body: bytes, model: str | None) -> Description:
        cards = [card for card in _cards(body) if not card.get("parent")]
        card = _chosen(cards, model)
        served = _text(card, "id")
        return Description(_full_name(served, None, None, card.get("max_model_len")), served, self.most_texts)


class Infinity:
    """Infinity. It refuses texts over a number of characters that no model reads to the end, so they are cut here."""

    name, score_path, description_path = "infinity", "/rerank", "/models"
    home, paid, needs_model, honours_deadlines = None, False, False, False
    most_texts, most_bytes = 2048, None
    characters = 122_880

    def request(self, model: str, query: str, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {
            "model": model,
            "query": query[: self.characters],
            "documents": [text[: self.characters] for text in texts],
            "raw_scores": False,
            "return_documents": False,
        }
        return Request(self.score_path, body, sum(len(text) > self.characters for text in texts))

    def read(self, body: bytes, count: int) -> Answer:
        return Answer(_results(body, count, "update it to one that honours raw_scores: false"))

    def describe(self, body: bytes, model: str | None) -> Description:
        card = _chosen([card for card in _cards(body) if _reranks(card)], model)
        served = _text(card, "id")
        return Description(_full_name(served, card.get("revision"), card.get("dtype"), None), served, self.most_texts)


class Cohere:
    """Cohere's v2 API and what is compatible with it. It cuts long documents by itself."""

    name, score_path, description_path = "cohere", "/v2/rerank", None
    home, paid, needs_model, honours_deadlines = "https://api.cohere.com", True, True, False
    most_texts, most_bytes = 1000, None

    def request(self, model: str, query: str, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {"model": model, "query": query, "documents": list(texts), "top_n": len(texts)}
        return Request(self.score_path, body)

    def read(self, body: bytes, count: int) -> Answer:
        return Answer(_results(body, count, "turn its normalisation of scores on"))

    def describe(self, body: bytes, model: str | None) -> Description:
        raise Unusable("it does not describe itself")


class Jina:
    """Jina's API and what is compatible with it."""

    name, score_path, description_path = "jina", "/v1/rerank", None
    home, paid, needs_model, honours_deadlines = "https://api.jina.ai", True, True, False
    most_texts, most_bytes = 1000, None

    def request(self, model: str, query: str, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {"model": model, "query": query, "documents": list(texts), "top_n": len(texts)}
        return Request(self.score_path, body | {"return_documents": False})

    def read(self, body: bytes, count: int) -> Answer:
        return Answer(_results(body, count, "choose a model whose scores are relevances, not cosines"))

    def describe(self, body: bytes, model: str | None) -> Description:
        raise Unusable("it does not describe itself")


BOUNDARYMORPH: Dialect = BoundaryMorph()
FOREIGN: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (TextEmbeddingsInference(), VLLM(), Infinity(), Cohere(), Jina())
}


def _full_name(model: str, revision: object, precision: object, length: object) -> str:
    """model@revision/precision/length, of which the latter three are left out where they are not told."""
    name = f"{model}@{revision[:12]}" if isinstance(revision, str) and revision else model
    return "/".join([name, *(str(part) for part in (precision, length) if part)])


def _results(body: bytes, count: int, advice: str) -> NDArray[np.float64]:
    return _ordered(_indexed(_list(_object(_parsed(body)), "results"), "relevance_score"), count, advice)


def _indexed(results: list[Any], key: str) -> Iterable[tuple[object, object]]:
    for result in results:
        item = _object(result)
        yield item.get("index"), item.get(key)


def _ordered(scores: Iterable[tuple[object, object]], count: int, advice: str) -> NDArray[np.float64]:
    """(count,) scores by their index: each given once, a number, and a relevance."""
    values = np.full(count, np.nan)
    for index, score in scores:
        if not _is_count(index) or index >= count:
            raise Unusable(f"there is a score for text {_shown(index)}; the texts asked for are 0 to {count - 1}")
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise Unusable(f"the score of text {index} is {_shown(score)}, not a number")
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
    return [_object(card) for card in _list(_object(_parsed(body)), "data")]


def _reranks(card: dict[str, Any]) -> bool:
    capabilities = card.get("capabilities")
    return not isinstance(capabilities, list) or "rerank" in capabilities


def _chosen(cards: list[dict[str, Any]], model: str | None) -> dict[str, Any]:
    """The card of the wanted model, or of the only one."""
    served = [_text(card, "id") for card in cards]
    if not served:
        raise Unusable("it serves no model that reranks")
    if model is not None and model not in served:
        raise Unusable(f"it serves {', '.join(served)}, not {model}")
    if model is None and len(served) > 1:
        raise Unusable(f"it serves several models, {', '.join(served)}: say which by ?model=NAME in its URL")
    return cards[0 if model is None else served.index(model)]


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Unusable(f"the answer is not JSON ({error})") from error


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unusable(f"there is {_shown(value)} where an object should be")
    return value


def _list(value: dict[str, Any], key: str) -> list[Any]:
    if not isinstance(value.get(key), list):
        raise Unusable(f"'{key}' is {_shown(value.get(key))}, not an array")
    return list(value[key])


def _text(value: dict[str, Any], key: str) -> str:
    if not isinstance(value.get(key), str) or not value[key]:
        raise Unusable(f"'{key}' is {_shown(value.get(key))}, not a name")
    return str(value[key])


def _limit(value: dict[str, Any], key: str, default: int) -> int:
    limit = value.get(key)
    return limit if _is_count(limit) and limit > 0 else default


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _shown(value: object) -> str:
    """A value, briefly, for a message."""
    return "missing" if value is None else repr(value)[:60]
