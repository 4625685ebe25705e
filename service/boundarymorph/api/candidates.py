"""Converts the candidates of requests: an index, or a pool with its vectors and signals."""

from __future__ import annotations

import binascii
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pybase64
from numpy.typing import ArrayLike, NDArray

from boundarymorph.access.bodies import bound
from boundarymorph.api.select_schemas import PoolBody, SelectRequest, VectorBlock
from boundarymorph.errors import InvalidEmbeddings, InvalidInput
from boundarymorph.retrieval.candidates import Candidates, GivenCandidates, IndexedCandidates
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.retriever import Retriever, Search
from boundarymorph.selection import methods
from boundarymorph.selection.pool import COMPLETE
from boundarymorph.settings import Limits, Settings

ITEM_BYTES = {"float16": 2, "float32": 4}
FEW_CALLS = 50  # up to which the main directions of vectors are enough (docs/evaluation.md)
READ_AHEAD = 200  # documents that come with a pool; most of those that are asked for are among the first


def budget_of(request: SelectRequest, settings: Settings) -> int:
    """Return the calls that a request allows."""
    match request.budget:
        case None:
            return settings.budget
        case "auto":
            return min(settings.auto_budget, settings.limits.budget)
        case budget:
            return int(budget)


def _read_ahead(request: SelectRequest, settings: Settings) -> int:
    if budget_of(request, settings):
        return READ_AHEAD
    return (request.k or settings.k) if request.return_documents else 0


def _directions(request: SelectRequest, settings: Settings) -> bool:
    """Whether a selection is as good with the vectors' main directions."""
    few = budget_of(request, settings) <= FEW_CALLS and not (request.queries or request.diversity)
    return few and (request.method or settings.method) == methods.DEFAULT


def candidates_of(request: SelectRequest, query: str, settings: Settings) -> Callable[[Retriever], Candidates]:
    """Return what makes the candidates of one query. Raises LimitExceeded, InvalidEmbeddings or InvalidInput."""
    limits = settings.limits
    vector = _query_embedding(request.query_embedding, limits)
    if request.index is not None:
        depth = settings.depth if request.depth is None else request.depth
        bound("depth", depth, limits.pool, "candidates")
        depth = min(depth + len(request.exclude_ids or ()), limits.pool)  # in place of those
        search = Search(
            query,
            depth,
            vector,
            request.filter,
            request.hybrid,
            documents=_read_ahead(request, settings),
            directions=_directions(request, settings),
        )
        return partial(IndexedCandidates, index=request.index, search=search)
    assert request.pool is not None
    pool = request.pool
    documents = documents_of(pool, limits)
    known = {
        document.id: given.cross_encoder_score
        for document, given in zip(documents, pool.documents, strict=True)
        if given.cross_encoder_score is not None
    }
    bound("pool.documents", len(known), limits.known_scores, "known scores")
    bm25 = _complete([given.bm25 for given in pool.documents], "bm25")
    scores = _complete([given.score for given in pool.documents], "score")
    features = _features(pool, limits) | ({} if bm25 is None else {"bm25": np.array(bm25)})
    return partial(
        GivenCandidates,
        query=query,
        given=documents,
        embeddings=_embeddings(pool, limits),
        query_embedding=vector,
        scores=scores,
        features=features,
        tokens=[given.tokens for given in pool.documents],
        known=known,
        words=(request.method or settings.method) in methods.BY_WORDS,
        vectors=request.vectors or settings.vectors,
        ranked=request.ranked,
    )


def documents_of(pool: PoolBody, limits: Limits) -> list[Document]:
    """Return the documents of a pool. Raises LimitExceeded."""
    bound("pool", len(pool.documents), limits.pool, "documents")
    documents = []
    for position, given in enumerate(pool.documents):
        characters = len(given.text) + len(given.title or "")
        bound(f"pool.documents.{position}.text", characters, limits.text_characters, "characters")
        identifier = str(position) if given.id is None else given.id
        documents.append(Document(identifier, given.text, given.title, given.metadata))
    return documents


def _query_embedding(given: list[float] | VectorBlock | None, limits: Limits) -> ArrayLike | None:
    if isinstance(given, VectorBlock):
        vectors = _decode(given, "query_embedding", limits)
        if vectors.ndim != 1:
            raise InvalidEmbeddings(f"query_embedding: the shape {given.shape} is not that of one vector, [d]")
        return vectors
    if given is not None:
        bound("query_embedding", len(given), limits.dimension, "numbers")
    return given


def _embeddings(pool: PoolBody, limits: Limits) -> NDArray[np.floating] | Sequence[ArrayLike | None] | None:
    single = [document.embedding for document in pool.documents]
    if pool.embeddings is None:
        bound("embedding", max((len(vector) for vector in single if vector), default=0), limits.dimension, "numbers")
        return None if all(vector is None for vector in single) else single
    if any(vector is not None for vector in single):
        raise InvalidEmbeddings("give embeddings with the documents or as one block, not both")
    vectors = _decode(pool.embeddings, "pool.embeddings", limits)
    if vectors.ndim != 2 or len(vectors) != len(pool.documents):
        raise InvalidEmbeddings(
            f"pool.embeddings: the shape {pool.embeddings.shape} does not fit {len(pool.documents)} documents"
        )
    return vectors


def _features(pool: PoolBody, limits: Limits) -> dict[str, NDArray[np.float64]]:
    """Return arrays of shape (N,), with NaN for missing values."""
    bound("pool.features", len(pool.features), limits.features, "signals")
    for name, values in pool.features.items():
        if name in COMPLETE:
            raise InvalidInput(
                f"pool.features.{name}: the name is taken; call it otherwise, and send 'bm25' with documents"
            )
        if len(values) != len(pool.documents):
            raise InvalidInput(
                f"pool.features.{name}: {len(values)} values for {len(pool.documents)} documents; give one for each, "
                "null where there is none"
            )
    return {name: np.array(values, dtype=np.float64) for name, values in pool.features.items()}


def _complete(values: Sequence[float | None], what: str) -> list[float] | None:
    given = [value for value in values if value is not None]
    if not given:
        return None
    if len(given) < len(values):
        raise InvalidInput(f"pool.documents: {len(given)} of {len(values)} have a {what}; give all of them or none")
    return given


def _decode(block: VectorBlock, field: str, limits: Limits) -> NDArray[np.floating]:
    bound(f"{field}.shape", block.shape[-1], limits.dimension, "numbers a vector")
    bound(f"{field}.shape", math.prod(block.shape[:-1]), limits.pool, "vectors")
    try:
        raw = pybase64.b64decode(block.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidEmbeddings(f"{field}.data is not base64: {error}") from None
    expected = ITEM_BYTES[block.dtype] * math.prod(block.shape)
    if len(raw) != expected:
        raise InvalidEmbeddings(
            f"{field}.data has {len(raw):,} bytes where {block.dtype} of shape {block.shape} take {expected:,}; "
            f"is {field}.dtype right? It is float16 unless it says float32"
        )
    return np.frombuffer(raw, dtype=np.dtype(block.dtype).newbyteorder("<")).reshape(block.shape)
