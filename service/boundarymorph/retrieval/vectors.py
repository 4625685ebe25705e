"""Operations on vectors and sequence numbers that all indexes share: validation, exact ranking, membership."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidEmbeddings, InvalidInput
from boundarymorph.retrieval.document import Document
from boundarymorph.selection.pool import unit_rows


def exact_scores(vectors: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return (n,) inner products of (n, d) rows with a (d,) query in float64, equal for equal rows."""
    scores: NDArray[np.float64] = np.einsum("nd,d->n", vectors, query, dtype=np.float64)
    return scores


def are_among(sequences: NDArray[np.int64], within: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return (n,) whether each of (n,) sequence numbers is among (m,) ascending ones."""
    if len(within) == 0:
        return np.zeros(len(sequences), np.bool_)
    found: NDArray[np.bool_] = within[np.minimum(np.searchsorted(within, sequences), len(within) - 1)] == sequences
    return found


def check_search(query: NDArray[np.float32], depth: int, dimension: int) -> None:
    """Raise InvalidEmbeddings or InvalidInput if no index of this dimension can answer the search."""
    if query.shape != (dimension,):
        raise InvalidEmbeddings(f"the index takes queries of {dimension} dimensions, not {query.size}")
    if depth < 1:
        raise InvalidInput(f"the depth must be at least 1, not {depth}")


def unit_embeddings(
    documents: Sequence[Document], embeddings: NDArray[np.floating], dimension: int
) -> NDArray[np.floating]:
    """Return (n, d) unit rows for n documents of an index of d dimensions. Raises InvalidEmbeddings if invalid."""
    vectors = unit_rows(embeddings, [document.id for document in documents]) if documents and dimension else embeddings
    if len(vectors) != len(documents) or (documents and vectors.shape[1] != dimension):
        raise InvalidEmbeddings(
            f"{len(documents)} documents of this index take embeddings of shape {(len(documents), dimension)}, not "
            f"{vectors.shape}"
        )
    return vectors
