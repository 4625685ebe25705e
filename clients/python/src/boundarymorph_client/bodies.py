"""Encode the bodies of requests: a selection with its vectors, and documents as NDJSON."""

from __future__ import annotations

import base64
import math
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from boundarymorph_client.encoding import encoded, id_phrase
from boundarymorph_client.errors import InvalidArgument
from boundarymorph_client.models import Array, PoolDocument, Query, SelectOptions, UploadedDocument, Vector

Uploaded = UploadedDocument | Mapping[str, object]
PIECE_BYTES = 2**16


def selection(query: Query, options: SelectOptions) -> dict[str, Any]:
    """Return the body of POST /select.

    Raises:
        InvalidArgument: If the number of embeddings is not the number of documents.
    """
    if not isinstance(query, str):
        check_items(query, "query")
    asked = {"query": query} if isinstance(query, str) else {"queries": list(query)}
    body: dict[str, Any] = asked | {name: given for name, given in options.items() if given is not None}
    if "query_embedding" in body:
        body["query_embedding"] = _vector(body["query_embedding"])
    if "pool" in body:
        pool = as_list(body["pool"], "pool")
        documents = [{"text": given} if isinstance(given, str) else given for given in pool]
        body["pool"] = _pool(documents, body.pop("embeddings", None))
        if "features" in body:
            body["pool"]["features"] = {name: _signal(values) for name, values in body.pop("features").items()}
    return body


def documents_with_scores(
    documents: Sequence[str | PoolDocument | Mapping[str, object]], scores: Sequence[float] | Mapping[int, float]
) -> list[Mapping[str, object]]:
    """Return documents for a pool with the known scores of the first, or at these positions.

    Raises:
        ValueError: For a score without a document.
    """
    documents = as_list(documents, "documents")
    known = dict(scores) if isinstance(scores, Mapping) else dict(enumerate(scores))
    if outside := [position for position in known if not 0 <= position < len(documents)]:
        raise ValueError(f"there is a score for position {outside[0]}, and {len(documents)} documents")
    pool: list[Mapping[str, object]] = []
    for position, given in enumerate(documents):
        document: Mapping[str, object] = {"text": given} if isinstance(given, str) else {**given}
        pool.append({**document, "cross_encoder_score": known[position]} if position in known else document)
    return pool


def as_list(given: Any, name: str, kind: type | None = None) -> list[Any]:
    """Return documents as a list. Raises InvalidArgument for anything else.

    Args:
        given: The value of the argument.
        name: The name of the argument.
        kind: The type of the documents, None for texts and mappings.
    """
    check_items(given, name)
    items = list(given)
    for place, item in enumerate(items):
        if not isinstance(item, (str, Mapping) if kind is None else kind):
            wanted = "a text, or a mapping with a 'text'" if kind is None else f"a {kind.__name__}"
            raise InvalidArgument(f"{name}[{place}] is of the type {type(item).__name__}; give {wanted}")
    return items


def check_items(given: Any, name: str, of_table: str = 'df["text"].tolist()') -> None:
    """Raise InvalidArgument for a text, table, or mapping in place of a list of items.

    The iterator of a table or mapping yields names instead of items.

    Args:
        given: The value of the argument.
        name: The name of the argument.
        of_table: The expression with which a data frame gives a list of items.
    """
    kind = type(given).__name__
    if isinstance(given, str | bytes):
        raise InvalidArgument(f"{name}: give a list of {name}, not a single text")
    if isinstance(given, Mapping):
        raise InvalidArgument(f"{name}: a {kind} is read by its keys; give a list, such as list(mapping.values())")
    if hasattr(given, "columns"):
        raise InvalidArgument(f"{name}: a {kind} is read by the names of its columns; give {of_table}")
    if not isinstance(given, Iterable | AsyncIterable):
        raise InvalidArgument(f"{name}: give a list of {name}, not a {kind}")


def _pool(documents: list[Any], embeddings: Any) -> dict[str, Any]:
    if embeddings is None:
        return {"documents": documents}
    if len(embeddings) != len(documents):
        raise InvalidArgument(f"there are {len(embeddings)} embeddings for {len(documents)} documents")
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
    """Return vectors in one piece, [N, d] or [d]: float16 as it is, every other type as float32."""
    import numpy as np

    array = np.asarray(vectors)
    dtype, little = ("float16", "<f2") if array.dtype == np.float16 else ("float32", "<f4")
    data = base64.b64encode(array.astype(little).tobytes()).decode()
    return {"data": data, "shape": list(array.shape), "dtype": dtype}


class _Documents:
    """Documents of an upload.

    A collection can be sent again; an iterator cannot once it has begun.

    Attributes:
        whole: Whether a document that JSON cannot express aborts the upload, so that nothing is written; otherwise it
            ends it.
        good: Number of documents before the first such document.
        fault: Why JSON cannot express that document.
    """

    def __init__(self, documents: Iterable[Uploaded] | AsyncIterable[Uploaded], *, whole: bool = False) -> None:
        check_items(documents, "documents", 'df.to_dict("records")')
        self._documents = documents
        self._whole = whole
        self._begun = False
        self.good = 0
        self.fault: InvalidArgument | None = None

    @property
    def repeatable(self) -> bool:
        return not self._begun or isinstance(self._documents, Collection)

    def _begin(self) -> None:
        self._begun, self.good, self.fault = True, 0, None

    def _pieces(self, documents: Iterable[Uploaded]) -> Iterator[bytes]:
        piece = bytearray()
        for document in documents:
            piece += self._line(document)
            if self.fault is not None:
                break
            if len(piece) >= PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
        yield bytes(piece)

    def _line(self, document: Uploaded) -> bytes:
        """Return a document's line, which is empty if JSON cannot express it.

        Raises:
            InvalidArgument: If then nothing is written.
        """
        try:
            line = encoded(document) + b"\n"
        except InvalidArgument as error:
            fault = f"document {self.good + 1}{id_phrase(document)} cannot be uploaded: {error}"
            if self._whole or not self.good:
                raise InvalidArgument(f"{fault}; nothing was written") from error
            self.fault = InvalidArgument(fault)
            return b""
        self.good += 1
        return line


class Lines(_Documents):
    """Documents as NDJSON in pieces, read as they are sent."""

    def __iter__(self) -> Iterator[bytes]:
        self._begin()
        assert isinstance(self._documents, Iterable)
        return self._pieces(self._documents)


class AsyncLines(_Documents):
    """The same for an `AsyncClient`, from either kind of iterable."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._begin()
        if isinstance(self._documents, AsyncIterable):
            async for document in self._documents:
                yield self._line(document)
                if self.fault is not None:
                    break
        else:
            for piece in self._pieces(self._documents):
                yield piece
