"""The wire formats of embedding servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pybase64
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


class TextEmbeddingsInference:
    """Text Embeddings Inference of Hugging Face. A request takes one permit for each text and is refused whole when
    there are too few; the server takes bodies of 2 MB."""

    name, path, description_path = "tei", "/embed", "/info"
    home, paid, needs_model, honours_deadlines = None, False, False, False
    most_texts, most_bytes = 32, 1_900_000

    def request(self, model: str, context: str, texts: Sequence[str], seconds: float) -> Request:
        return Request(self.path, {"inputs": list(texts), "truncate": True, "normalize": True})

    def read(self, body: bytes, count: int) -> Answer:
        vectors = parsed(body)
        if not isinstance(vectors, list):
            raise Unusable(f"the answer is {shown(vectors)}, not an array")
        return Answer(_rows(vectors, count))

    def describe(self, body: bytes, model: str | None) -> Description:
        info = mapping(parsed(body))
        served = word(info, "model_id")
        if model not in (None, served):
            raise Unusable(f"it serves {served}, not {model}")
        kind = info.get("model_type")
        if isinstance(kind, dict) and kind and "embedding" not in kind:
            raise Unusable(f"{served} is no dual encoder but a model of type {', '.join(map(str, kind))}")
        revision = info.get("model_sha")
        name = full_name(served, revision, info.get("model_dtype"), info.get("max_input_length"))
        return Description(
            "/".join([name, *_pooling(kind)]),
            served,
            limit(info, "max_client_batch_size", self.most_texts),
            limit(info, "max_concurrent_requests", 0) or None,
            told(revision),
            served,
        )


class OpenAI:
    """OpenAI's API and what is compatible with it. A text that is too long for the model is refused by the server."""

    name, path = "openai", "/v1/embeddings"
    description_path: str | None = None
    home: str | None = "https://api.openai.com"
    paid, needs_model, honours_deadlines = True, True, False
    most_texts, most_bytes = 512, 1_000_000

    def request(self, model: str, context: str, texts: Sequence[str], seconds: float) -> Request:
        return Request(self.path, {"model": model, "input": list(texts), "encoding_format": "base64"})

    def read(self, body: bytes, count: int) -> Answer:
        rows: list[object] = [None] * count
        for item in map(mapping, array(mapping(parsed(body)), "data")):
            index = item.get("index")
            if not is_count(index) or index >= count:
                raise Unusable(f"there is a vector for text {shown(index)}; the texts asked for are 0 to {count - 1}")
            if rows[index] is not None:
                raise Unusable(f"there are two vectors for text {index}")
            rows[index] = item.get("embedding")
        return Answer(_rows(rows, count))

    def describe(self, body: bytes, model: str | None) -> Description:
        raise Unusable("it does not describe itself")


class VLLM(OpenAI):
    """vLLM's route of the same name. Texts that are too long are cut to the model's length rather than refused."""

    name, description_path = "vllm", "/v1/models"
    home = None
    paid, needs_model = False, False

    def request(self, model: str, context: str, texts: Sequence[str], seconds: float) -> Request:
        asked = super().request(model, context, texts, seconds)
        return Request(asked.path, asked.body | {"truncate_prompt_tokens": -1})

    def describe(self, body: bytes, model: str | None) -> Description:
        cards = [mapping(card) for card in array(mapping(parsed(body)), "data")]
        served = {word(card, "id"): card for card in cards if not card.get("parent")}
        if model is None and len(served) == 1:
            model = next(iter(served))
        if model is None or model not in served:
            wanted = "say which by ?model=NAME in its URL" if model is None else f"not {model}"
            raise Unusable(f"it serves {', '.join(served) or 'no model'}: {wanted}")
        card = served[model]
        return Description(
            full_name(rooted(card), None, None, card.get("max_model_len")),
            model,
            self.most_texts,
            weights=told(card.get("root")) or model,
        )


DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (TextEmbeddingsInference(), OpenAI(), VLLM())}


def _pooling(kind: object) -> list[str]:
    """How vectors are pooled, where TEI's model type tells it."""
    embedding = kind.get("embedding") if isinstance(kind, dict) else None
    pooling = told(embedding.get("pooling")) if isinstance(embedding, dict) else None
    return [] if pooling is None else [pooling]


def _rows(vectors: Sequence[object], count: int) -> NDArray[np.float32]:
    """(count, d) vectors, each an array of numbers or the base64 of float32 in little-endian order."""
    if len(vectors) != count:
        raise Unusable(f"there are {len(vectors)} vectors for {count} texts")
    rows = [_row(vector, index) for index, vector in enumerate(vectors)]
    widths = sorted({len(row) for row in rows})
    if len(widths) > 1 or widths == [0]:
        raise Unusable(f"there are vectors of {' and '.join(map(str, widths))} dimensions")
    with np.errstate(over="ignore"):
        matrix = np.array(rows, dtype=np.float32)
    if not np.isfinite(matrix).all():
        raise Unusable("there are components that are no finite numbers")
    return matrix


def _row(vector: object, index: int) -> NDArray[Any]:
    try:
        if isinstance(vector, str):
            return np.frombuffer(pybase64.b64decode(vector, validate=True), dtype="<f4")
        if isinstance(vector, list) and not any(isinstance(component, str | bool) for component in vector):
            row = np.array(vector, dtype=np.float64)
            if row.ndim == 1:
                return row
    except (ValueError, TypeError):
        pass
    raise Unusable(f"the vector of text {index} is {shown(vector)}, neither numbers nor base64")
