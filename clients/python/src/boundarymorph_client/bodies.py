"""Bodies of requests: a selection with its vectors, and documents as NDJSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from boundarymorph_client.models import Array, Query, SelectOptions, UploadedDocument, Vector

Uploaded = UploadedDocument | Mapping[str, object]
PIECE_BYTES = 2**16


def encoded(body: Mapping[str, Any]) -> bytes:
    """As JSON. Arrays and numbers of numpy become lists and numbers. Raises ValueError for NaN and infinity."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode()


def selection(query: Query, options: SelectOptions) -> dict[str, Any]:
    """The body of POST /select. Raises ValueError if there are not as many embeddings as documents."""
    asked = {"query": query} if isinstance(query, str) else {"queries": list(query)}
    body: dict[str, Any] = asked | {name: given for name, given in options.items() if given is not None}
    if "query_embedding" in body:
        body["query_embedding"] = _vector(body["query_embedding"])
    if "pool" in body:
        documents = [{"text": given} if isinstance(given, str) else given for given in body["pool"]]
        body["pool"] = _pool(documents, body.pop("embeddings", None))
        if "features" in body:
            body["pool"]["features"] = {name: _signal(values) for name, values in body.pop("features").items()}
    return body


def _pool(documents: list[Any], embeddings: Any) -> dict[str, Any]:
    if embeddings is None:
        return {"documents": documents}
    if len(embeddings) != len(documents):
        raise ValueError(f"there are {len(embeddings)} embeddings for {len(documents)} documents")
    if isinstance(embeddings, Sequence):
        pairs = zip(documents, embeddings, strict=True)
        return {"documents": [{**document, "embedding": vector} for document, vector in pairs]}
    return {"documents": documents, "embeddings": block(embeddings)}


def _signal(values: Sequence[float | None] | Array) -> list[float | None]:
    numbers: Any = values
    if not isinstance(values, Sequence):
        numbers = values.__array__().tolist()
    return [None if value is None or math.isnan(value) else value for value in numbers]


def _vector(vector: Vector) -> Any:
    return vector if isinstance(vector, Sequence) else block(vector)


def block(vectors: Array) -> dict[str, Any]:
    """Vectors in one piece, [N, d] or [d]: float16 as it is, every other type as float32."""
    import numpy as np

    array = np.asarray(vectors)
    dtype, little = ("float16", "<f2") if array.dtype == np.float16 else ("float32", "<f4")
    data = base64.b64encode(array.astype(little).tobytes()).decode()
    return {"data": data, "shape": list(array.shape), "dtype": dtype}


def _plain(value: object) -> object:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


class _Documents:
    """Documents of an upload. A collection can be sent again, an iterator cannot once it has begun."""

    def __init__(self, documents: Iterable[Uploaded] | AsyncIterable[Uploaded]) -> None:
        self._documents = documents
        self._begun = False

    @property
    def repeatable(self) -> bool:
        return not self._begun or isinstance(self._documents, Collection)


class Lines(_Documents):
    """Documents as NDJSON in pieces, read as they are sent."""

    def __iter__(self) -> Iterator[bytes]:
        self._begun = True
        assert isinstance(self._documents, Iterable)
        return _pieces(self._documents)


class AsyncLines(_Documents):
    """The same for an `AsyncClient`, of documents of either kind of iterable."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._begun = True
        if isinstance(self._documents, AsyncIterable):
            async for document in self._documents:
                yield _line(document)
        else:
            for piece in _pieces(self._documents):
                yield piece


def _pieces(documents: Iterable[Uploaded]) -> Iterator[bytes]:
    piece = bytearray()
    for document in documents:
        piece += _line(document)
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def _line(document: Uploaded) -> bytes:
    return encoded(document) + b"\n"
