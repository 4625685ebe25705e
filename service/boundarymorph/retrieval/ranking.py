"""Store unit vectors as float16, read them with the same bits everywhere, rank, and fuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import DuplicateIds, InvalidEmbeddings, InvalidInput
from boundarymorph.retrieval.candidates import RANK_CONSTANT
from boundarymorph.retrieval.document import Document
from boundarymorph.selection.pool import Pool, unit_rows

TOLERANCE = 1e-3  # most difference from 1 of the length of a stored or sent vector


def is_unit(lengths: NDArray[np.float64]) -> bool:
    """Return whether all lengths of vectors are 1, as far as float16 can tell."""
    return bool((np.abs(lengths - 1) <= TOLERANCE).all())


def exact_scores(vectors: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return (n,) inner products of (n, d) rows with a (d,) query.

    They are in float64, and equal for equal rows.
    """
    return np.asarray(np.einsum("nd,d->n", vectors, query, dtype=np.float64))


def membership(sequences: NDArray[np.int64], within: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return (n,) whether each of (n,) sequence numbers is among (m,) ascending ones."""
    if len(within) == 0:
        return np.zeros(len(sequences), np.bool_)
    return np.asarray(within[np.minimum(np.searchsorted(within, sequences), len(within) - 1)] == sequences)


def check_search(query: NDArray[np.float32], depth: int, dimension: int) -> None:
    """Raise InvalidEmbeddings or InvalidInput if an index of this dimension cannot answer."""
    if query.shape != (dimension,):
        raise InvalidEmbeddings(f"the index takes queries of {dimension} dimensions, not {query.size}")
    if depth < 1:
        raise InvalidInput(f"the depth must be at least 1, not {depth}")


def unit_embeddings(
    documents: Sequence[Document], embeddings: NDArray[np.floating], dimension: int
) -> NDArray[np.floating]:
    """Return (n, d) unit rows for n documents of an index of d dimensions.

    Raises:
        InvalidEmbeddings: If a row has another dimension or no direction.
    """
    vectors = unit_rows(embeddings, [document.id for document in documents]) if documents and dimension else embeddings
    if len(vectors) != len(documents) or (documents and vectors.shape[1] != dimension):
        raise InvalidEmbeddings(
            f"{len(documents)} documents of this index take embeddings of shape {(len(documents), dimension)}, not "
            f"{vectors.shape}"
        )
    return vectors


class UnitRows(NamedTuple):
    """(n, d) float32 rows of unit length, and the (n,) float64 lengths that they had.

    Rows without length are NaN.
    """

    vectors: NDArray[np.float32]
    lengths: NDArray[np.float64]


def unit_rows_of(halves: NDArray[np.float16]) -> UnitRows:
    """Divide finite (n, d) rows by their lengths, with the same result on every machine.

    float64 adds squares of float16, multiples of 2**-48, exactly and in any order near unit length, and IEEE 754
    defines root and division.
    """
    return to_unit_length(floats_from_halves(halves))


def to_unit_length(floats: NDArray[np.float32]) -> UnitRows:
    """Divide (n, d) halves by their lengths, in place, after their conversion to float32."""
    lengths = np.sqrt(np.einsum("nd,nd->n", floats, floats, dtype=np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        floats /= lengths[:, None].astype(np.float32)
    return UnitRows(floats, lengths)


def unit_from_halves(halves: NDArray[np.float16]) -> NDArray[np.float32]:
    return unit_rows_of(halves).vectors


def floats_from_halves(halves: NDArray[np.float16]) -> NDArray[np.float32]:
    """Convert finite numbers to float32 in a seventh of NumPy's time.

    Exponent and fraction are moved to where float32 has them; the result is too small by 2^112, the difference of the
    exponents' biases.
    """
    words = halves.view(np.int16).astype(np.int32)
    words <<= 13
    words &= np.int32(-0x80000000 | 0x0FFFE000)
    floats = words.view(np.float32)
    floats *= np.float32(2.0**112)
    return floats


def halves_from_floats(floats: NDArray[np.float32]) -> NDArray[np.float16]:
    """Round numbers of magnitude at most 1 to float16 in half of NumPy's time.

    Ties become even numbers, except below 2**-14.
    """
    words = (floats * np.float32(2.0**-112)).view(np.int32)
    signs = (words >> 16) & np.int32(0x8000)
    words &= np.int32(0x7FFFFFFF)
    words += ((words >> 13) & np.int32(1)) + np.int32(0x0FFF)
    words >>= 13
    words |= signs
    return words.astype(np.uint16).view(np.float16)


class FusedRanking(NamedTuple):
    """n documents, best first. scores: (n,) float64, descending."""

    ids: list[str]
    scores: NDArray[np.float64]


def fuse(rankings: Sequence[Sequence[str]]) -> FusedRanking:
    """Fuse rankings of ids by the sum of 1 / (RANK_CONSTANT + rank), with ranks from 1.

    The method is reciprocal rank fusion (Cormack, Clarke and Büttcher 2009). Ties go by the first ranking that has one
    of the documents.

    Raises:
        DuplicateIds: If an id occurs twice in a ranking.
    """
    rows: dict[str, int] = {}
    for number, ranking in enumerate(rankings, start=1):
        if len(set(ranking)) < len(ranking):
            raise DuplicateIds(f"ranking {number} of {len(rankings)} repeats a document; leave out the later ones")
        for id in ranking:
            rows.setdefault(id, len(rows))
    ranks = np.full((len(rows), len(rankings)), np.inf)
    for column, ranking in enumerate(rankings):
        ranks[[rows[id] for id in ranking], column] = np.arange(1, len(ranking) + 1)
    # Summed from the smallest, so that sums of the same parts are equal whichever rankings these come from.
    scores = np.sort(1.0 / (RANK_CONSTANT + ranks), axis=1).sum(axis=1)
    order = np.argsort(-scores, kind="stable")
    ids = list(rows)
    return FusedRanking([ids[row] for row in order], scores[order])


def fuse_pool(
    near: Pool, best: Sequence[str], depth: int, vectors: Callable[[list[str]], Mapping[str, NDArray[np.floating]]]
) -> Pool:
    """Return a pool of the nearest and the best by words, fused.

    `vectors` returns (d,) unit vectors of further ids.
    """
    ranked = fuse([near.ids[:depth], best[:depth]])
    ids, scores = ranked.ids[:depth], ranked.scores[:depth]
    rows: dict[str, NDArray[np.floating]] = dict(zip(near.ids, near.embeddings, strict=True))
    rows |= vectors([id for id in ids if id not in rows])
    matrix = np.array([rows[id] for id in ids], dtype=np.float32)
    return Pool(ids, matrix, near.query, scores, {"similarity": exact_scores(matrix, near.query)})


def unit_vectors(states: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Normalize (n, d) rows in float64.

    Rows without length, or with values that are not finite, become NaN.
    """
    exact = states.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    usable = np.isfinite(lengths) & (lengths > 0)
    return np.asarray(np.divide(exact, lengths, out=np.full_like(exact, np.nan), where=usable), np.float32)
