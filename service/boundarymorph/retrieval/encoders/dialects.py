"""The wire formats of embedding servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pybase64
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
    mapping,
    parsed,
    shown,
    vllm_description,
)

VECTOR_BYTES = 16_384 * 32  # of a vector in JSON, of more dimensions than models have


class TextEmbeddingsInference(wire.TextEmbeddingsInference):
    path = "/embed"
    model_type, called = "embedding", "dual encoder"
    answer_bytes = VECTOR_BYTES

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        return Request(self.path, {"inputs": list(texts), "truncate": True, "normalize": True})

    def read(self, body: bytes, count: int) -> Answer:
        vectors = parsed(body)
        if not isinstance(vectors, list):
            raise Unusable(f"the answer is {shown(vectors)}, not an array")
        return Answer(_rows(vectors, count))


class OpenAI(Dialect):
    """OpenAI's API and compatible ones. The server rejects a text that is too long for the model."""

    name, path, version_optional = "openai", "/v1/embeddings", True
    home: str | None = "https://api.openai.com"
    most_texts, most_bytes = 512, 1_000_000
    answer_bytes = VECTOR_BYTES

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        return Request(self.path, {"model": model, "input": list(texts), "encoding_format": "base64"})

    def read(self, body: bytes, count: int) -> Answer:
        items = [mapping(item) for item in array(mapping(parsed(body)), "data")]
        rows = by_index(((item.get("index"), item.get("embedding")) for item in items), count, "vector")
        return Answer(_rows([rows.get(index) for index in range(count)], count))


class VLLM(OpenAI):
    """vLLM's route of the same name. Texts that are too long for the model are truncated rather than rejected."""

    name, description_path = "vllm", "/v1/models"
    home = None

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        asked = super().request(model, context, texts, seconds)
        return Request(asked.path, asked.body | {"truncate_prompt_tokens": -1})

    def describe(self, body: bytes, model: str | None) -> Description:
        return vllm_description(body, model, self.most_texts)


DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (TextEmbeddingsInference(), OpenAI(), VLLM())}


def _rows(vectors: Sequence[object], count: int) -> NDArray[np.float32]:
    """Return (count, d) vectors, each given as an array of numbers or as base64 of little-endian float32."""
    if len(vectors) != count:
        raise Unusable(f"there are {len(vectors)} vectors for {count} texts")
    rows = [_row(vector, index) for index, vector in enumerate(vectors)]
    widths = sorted({len(row) for row in rows})
    if len(widths) > 1 or widths == [0]:
        raise Unusable(f"there are vectors of {' and '.join(map(str, widths))} dimensions")
    with np.errstate(over="ignore"):
        matrix = np.array(rows, dtype=np.float32)
    if not np.isfinite(matrix).all():
        raise Unusable("there are components that are not finite numbers")
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
