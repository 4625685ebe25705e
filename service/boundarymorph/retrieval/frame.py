"""Encode pools and embeddings between retriever and gateway, in the safetensors format.

Indexes store float16 and normalize vectors when reading them, so a pool's float32 rows contain no more information than
float16. A frame therefore carries them as float16, and its reader normalizes them again, with the same result bit for
bit (`halves`). The writer verifies that. If one row would come out differently, it sends float32 rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, get_args

import numpy as np
import orjson
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from boundarymorph.errors import InvalidInput, MalformedFrame
from boundarymorph.notices import Notice, Slug
from boundarymorph.retrieval.artifacts import Artifacts
from boundarymorph.retrieval.document import Document, Retrieval, VectorSource
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.ranking import halves_from_floats, is_unit, unit_from_halves, unit_rows_of
from boundarymorph.selection.pool import Pool, row_lengths

POOL_TYPE = "application/vnd.boundarymorph.pool"
EMBEDDINGS_TYPE = "application/vnd.boundarymorph.embeddings"
VERSION = "6"
HEADER_BYTES = 2**20  # limit for names, shapes and warnings
_BLOCK = 2**18  # numbers normalized at a time, so that they stay in the CPU's cache
_FEATURE = "feature:"
_TYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "U32": "<u4", "U8": "|u1"}

Tensors = dict[str, NDArray[Any]]


def encode_pool(retrieved: Retrieval) -> bytes:
    """Encode a pool and its attachments for `decode_pool`.

    Raises:
        InvalidInput: If an id is not valid Unicode.
    """
    pool = retrieved.pool
    tensors = {
        "vectors": _rows(pool.embeddings) if retrieved.halves is None else retrieved.halves,
        "query": pool.query,
        "scores": pool.scores,
        "ids": _json(list(pool.ids)),
        "artifacts": _json(retrieved.artifacts),
        **{_FEATURE + name: signal for name, signal in pool.features.items()},
        **({} if pool.terms is None else {"terms": pool.terms.view(np.uint8)}),
    }
    if retrieved.documents:
        tensors["documents"] = _json(list(retrieved.documents.values()))
    warnings = orjson.dumps(list(retrieved.warnings)).decode()
    return _frame(tensors, POOL_TYPE, warnings=warnings, source=retrieved.vectors)


def decode_pool(frame: bytes) -> Retrieval:
    """Reverse `encode_pool`. Raises MalformedFrame."""
    tensors, metadata = _opened(frame, POOL_TYPE)
    vectors = _vectors(tensors)
    count, dimension = vectors.shape
    query = _taken(tensors, "query", vectors.dtype, (dimension,))
    _check_lengths(row_lengths(query[None]), "the query")
    scores = _column(tensors, "scores", count)
    if (scores[1:] > scores[:-1]).any():
        raise MalformedFrame("its scores are not in descending order")
    ids = _list(_bytes(tensors, "ids"), "ids", str)
    if len(ids) != count or len(set(ids)) < count:
        raise MalformedFrame(f"it has {len(set(ids))} different ids for {count} documents")
    of_features = [name for name in tensors if name.startswith(_FEATURE)]
    features = {name.removeprefix(_FEATURE): _column(tensors, name, count) for name in of_features}
    terms = None
    if "terms" in tensors:
        terms = _taken(tensors, "terms", np.dtype("u1"), None)
        if terms.ndim != 2 or terms.shape[1] != count or (terms > 1).any():
            raise MalformedFrame(f"its terms are of {terms.shape} for {count} documents, or not all 0 or 1")
        terms = terms.view(np.bool_)
    documents = documents_of(_list(_bytes(tensors, "documents"), "documents")) if "documents" in tensors else {}
    try:  # users' own retrievers need not send any
        artifacts = (
            Artifacts.from_json(orjson.loads(_bytes(tensors, "artifacts"))) if "artifacts" in tensors else Artifacts()
        )
    except (InvalidInput, orjson.JSONDecodeError) as error:
        raise MalformedFrame(f"its artifacts cannot be read: {error}") from error
    _check_used_up(tensors)
    source: Any = metadata.get("source")
    if source not in get_args(VectorSource):
        raise MalformedFrame(f"its vectors are from {source!r}")
    pool = Pool(ids, vectors, query, scores, features, terms)
    return Retrieval(pool, _warnings(metadata.get("warnings", "")), source, documents, artifacts)


def documents_of(records: Sequence[Any]) -> dict[str, Document]:
    """Read documents from JSON, by id. Raises MalformedFrame."""
    documents = {}
    for record in records:
        match record:
            case {"id": str(id), "text": str(text), "title": str() | None as title, "metadata": dict(metadata)}:
                documents[id] = Document(id, text, title, metadata)
            case _:
                raise MalformedFrame("one of its documents is malformed")
    return documents


def _warnings(encoded: str) -> list[Notice]:
    warnings = []
    for record in _list(encoded, "warnings"):
        match record:
            case {"slug": str() as slug, "message": str(message)}:
                warnings.append(Notice(cast(Slug, slug), message))
            case _:
                raise MalformedFrame("one of its warnings is malformed")
    return warnings


def encode_embeddings(embeddings: Embeddings) -> bytes:
    """Encode (n, d) vectors unchanged, the number of truncated texts, and any encoder's name."""
    named = {} if embeddings.encoder is None else {"encoder": embeddings.encoder}
    return _frame({"vectors": embeddings.vectors}, EMBEDDINGS_TYPE, truncated=str(embeddings.truncated), **named)


def decode_embeddings(frame: bytes, count: int) -> Embeddings:
    """Reverse `encode_embeddings`.

    Raises:
        MalformedFrame: If the frame is malformed or has not `count` vectors.
    """
    tensors, metadata = _opened(frame, EMBEDDINGS_TYPE)
    vectors = _taken(tensors, "vectors", np.dtype("<f4"), None)
    _check_used_up(tensors)
    if vectors.ndim != 2 or len(vectors) != count or (count and not vectors.shape[1]):
        raise MalformedFrame(f"its vectors have the shape {vectors.shape}, for {count} texts")
    _check_lengths(row_lengths(vectors), "one of its vectors")
    truncated = metadata.get("truncated", "")
    if not (truncated.isascii() and truncated.isdecimal() and len(truncated) < 10 and int(truncated) <= count):
        raise MalformedFrame("it does not say how many texts were truncated")
    return Embeddings(vectors, int(truncated), metadata.get("encoder"))


def _frame(tensors: Mapping[str, NDArray[Any]], kind: str, **metadata: str) -> bytes:
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    return save(contiguous, {"type": kind, "version": VERSION, **metadata})


def _rows(vectors: NDArray[np.floating]) -> NDArray[np.floating]:
    if vectors.dtype != np.float32:
        return vectors
    vectors = np.ascontiguousarray(vectors)
    halves = np.empty(vectors.shape, dtype="<f2")
    for rows in _blocks(vectors):
        halves[rows] = halves_from_floats(vectors[rows])
        if (unit_from_halves(halves[rows]).view(np.uint32) != vectors[rows].view(np.uint32)).any():
            return vectors
    return halves


def _vectors(tensors: Tensors) -> NDArray[Any]:
    sent = _taken(tensors, "vectors", None, None)
    if sent.ndim != 2 or not sent.shape[1] or sent.dtype.kind != "f":
        raise MalformedFrame(f"its vectors are {sent.dtype} of {sent.shape}")
    if sent.dtype != np.float16:
        _check_lengths(row_lengths(sent), "one of its vectors")
        return sent
    vectors = np.empty(sent.shape, dtype=np.float32)
    for rows in _blocks(vectors):
        vectors[rows], lengths = unit_rows_of(sent[rows])
        _check_lengths(lengths, "one of its vectors")
    return vectors


def _blocks(vectors: NDArray[Any]) -> Iterator[slice]:
    step = max(1, _BLOCK // vectors.shape[1])
    yield from (slice(start, start + step) for start in range(0, len(vectors), step))


def _opened(frame: bytes, kind: str) -> tuple[Tensors, dict[str, str]]:
    header = int.from_bytes(frame[:8], "little")
    if header > HEADER_BYTES:
        raise MalformedFrame(f"its header is over {HEADER_BYTES:,} bytes")
    try:
        described: list[tuple[str, dict[str, Any]]] = deserialize(frame)  # type: ignore[no-untyped-call]
        metadata: dict[str, str] = orjson.loads(frame[8 : 8 + header]).get("__metadata__") or {}
    except (SafetensorError, orjson.JSONDecodeError) as error:
        raise MalformedFrame(f"it is not in the safetensors format, or truncated: {error}") from error
    if (metadata.get("type"), metadata.get("version")) != (kind, VERSION):
        raise MalformedFrame(
            f"it is {metadata.get('type')!r} in version {metadata.get('version')!r}, not {kind} in version {VERSION}; "
            "run gateway and retriever in the same release"
        )
    tensors = {}
    for name, tensor in described:
        if tensor["dtype"] not in _TYPES:
            raise MalformedFrame(f"{name!r} is {tensor['dtype']}")
        try:
            tensors[name] = np.frombuffer(tensor["data"], dtype=_TYPES[tensor["dtype"]]).reshape(tensor["shape"])
        except (ValueError, OverflowError) as error:
            raise MalformedFrame(f"{name!r} is of {tensor['shape']}") from error
    return tensors, metadata


def _taken(tensors: Tensors, name: str, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> NDArray[Any]:
    """Remove and return a tensor of this type and shape; None accepts any."""
    if name not in tensors:
        raise MalformedFrame(f"it has no {name!r}")
    tensor = tensors.pop(name)
    if dtype not in (None, tensor.dtype) or shape not in (None, tensor.shape):
        raise MalformedFrame(f"{name!r} is {tensor.dtype} of {tensor.shape}, not {dtype or 'any'} of {shape or 'any'}")
    return tensor


def _check_used_up(tensors: Tensors) -> None:
    if tensors:
        raise MalformedFrame(f"it contains {next(iter(tensors))!r}, which is unknown")


def _column(tensors: Tensors, name: str, count: int) -> NDArray[np.float64]:
    """Remove and return (count,) finite numbers."""
    column = _taken(tensors, name, np.dtype("<f8"), (count,))
    if not np.isfinite(column).all():
        raise MalformedFrame(f"its {name} are not all finite")
    return column


def _check_lengths(lengths: NDArray[np.float64], what: str) -> None:
    if not is_unit(lengths):
        raise MalformedFrame(f"{what} is not of unit length")


def _list(array: str | bytes, what: str, kind: type = dict) -> list[Any]:
    try:
        values = orjson.loads(array)
    except orjson.JSONDecodeError as error:
        raise MalformedFrame(f"its {what} are not JSON: {error}") from error
    if not isinstance(values, list) or not set(map(type, values)) <= {kind}:
        raise MalformedFrame(f"its {what} are not a list of {'texts' if kind is str else 'objects'}")
    return values


def _bytes(tensors: Tensors, name: str) -> bytes:
    found = _taken(tensors, name, np.dtype("u1"), None)
    if found.ndim != 1:
        raise MalformedFrame(f"its {name} are of {found.shape}")
    return found.tobytes()


def _json(value: object) -> NDArray[np.uint8]:
    try:
        return np.frombuffer(orjson.dumps(value), dtype=np.uint8)
    except TypeError as error:
        raise InvalidInput("an id or a text is not valid Unicode: it contains half a surrogate pair") from error
