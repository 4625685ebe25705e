"""Vectors of texts without an encoder: latent semantic analysis (Deerwester et al. 1990) of one pool.

TF-IDF of the pool's own words, and its truncated singular value decomposition. The decomposition is scipy's, whose
import takes 0.2 s and 30 MB; that of scikit-learn, which is built on it, takes 1.5 s and 150 MB. Import this module
only where it is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, svds
from threadpoolctl import threadpool_limits

from boundarymorph.inference.executors import check_awaited
from boundarymorph.retrieval.words.lexical import PoolWords, hashes

DIMENSIONS = 128
TOLERANCE = 0.5  # of the decomposition: smaller ones did not improve selections; with this one pass always suffices
NEGLIGIBLE = 1e-4  # fraction of the largest singular value below which others are rounding errors
PASSES = 20  # of the decomposition, at most
SEED = 0
threadpool_limits(1, user_api="blas")  # scipy has its own BLAS, loaded after `server.composition` has set the limit


class LexicalVectors(NamedTuple):
    """documents: (N, d) unit rows; query: (d,) unit vector; float32, d at most DIMENSIONS."""

    documents: NDArray[np.float32]
    query: NDArray[np.float32]


def lexical_vectors(words: PoolWords, query: str) -> LexicalVectors:
    """Return the vectors of a pool's texts and of a query; deterministic.

    Texts without any word have equal vectors, orthogonal to all others. A query without a word of the pool is
    orthogonal to all texts with words.
    """
    vocabulary, numbers = np.unique(words.hashes, return_inverse=True)
    counts = _counted(numbers, words.lengths, len(vocabulary))
    asked = hashes(query)
    places = np.minimum(np.searchsorted(vocabulary, asked), max(len(vocabulary) - 1, 0))
    known = places[vocabulary[places] == asked] if len(vocabulary) else places[:0]
    frequencies = np.bincount(counts.indices, minlength=len(vocabulary))
    weights = (1.0 + np.log((1 + counts.shape[0]) / (1 + frequencies))).astype(np.float32)
    documents = _weighted(counts, weights)
    question = _weighted(_counted(known, np.array([len(known)]), len(vocabulary)), weights)
    return LexicalVectors(*_directions(*_reduced(documents, question)))


def _counted(numbers: NDArray[np.intp], lengths: NDArray[np.int64], vocabulary: int) -> csr_array[np.float32]:
    """Return (n, vocabulary) how often each text has each word. numbers: the words of all texts, concatenated."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ones = np.ones(len(numbers), dtype=np.float32)
    counts = csr_array((ones, numbers, starts), shape=(len(lengths), vocabulary))
    counts.sum_duplicates()
    return counts


def _weighted(counts: csr_array[np.float32], weights: NDArray[np.float32]) -> csr_array[np.float32]:
    """Return TF-IDF in rows of unit length: the weight of a word times 1 + log of its count."""
    values = (1.0 + np.log(counts.data)) * weights[counts.indices]
    texts = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    lengths = np.sqrt(np.bincount(texts, weights=np.square(values), minlength=counts.shape[0]))
    values /= lengths[texts]
    return csr_array((values.astype(np.float32), counts.indices, counts.indptr), shape=counts.shape)


def _reduced(
    documents: csr_array[np.float32], question: csr_array[np.float32]
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return (N, d) and (d,) coordinates along the leading right singular vectors, with the query folded in.

    These vectors, as long as the vocabulary, are not computed: the left ones and inner products suffice.
    """
    count, vocabulary = documents.shape
    components = DIMENSIONS - 1
    if vocabulary <= components:
        return documents.toarray(), question.toarray()[0]
    if count <= components:
        squares, left = np.linalg.eigh((documents @ documents.T).toarray().astype(np.float64))
        lengths = np.sqrt(np.maximum(squares, 0.0))
    else:
        left, lengths, _ = svds(
            _Awaited(documents),
            components,
            tol=TOLERANCE,
            maxiter=PASSES,
            return_singular_vectors="u",
            rng=np.random.default_rng(SEED),
        )
    kept = lengths > NEGLIGIBLE * lengths.max()
    left, lengths = left[:, kept], lengths[kept]
    return left * lengths, ((documents @ question.T).toarray()[:, 0] @ left) / lengths


class _Awaited(LinearOperator):
    """A matrix that aborts a decomposition, which takes hundreds of products, once nobody waits for it any more."""

    def __init__(self, matrix: csr_array[np.float32]) -> None:
        super().__init__(matrix.dtype, matrix.shape)  # type: ignore[call-arg]  # scipy-stubs knows it as object's
        self._matrix, self._transposed = matrix, matrix.T

    def _matvec(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        check_awaited()
        return self._matrix @ x

    def _rmatvec(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        check_awaited()
        return self._transposed @ x


def _directions(
    documents: NDArray[np.floating], query: NDArray[np.floating]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Normalize to unit length. Rows without a direction get one in an extra dimension, opposite for the query."""
    rows = np.pad(np.vstack([documents, query]), ((0, 0), (0, 1))).astype(np.float64)
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    without = lengths <= NEGLIGIBLE**2
    rows[without] = 0.0
    rows[without, -1] = 1.0
    if without[-1]:
        rows[-1, -1] = -1.0
    lengths[without] = 1.0
    rows /= lengths[:, None]
    unit = rows.astype(np.float32)
    return unit[:-1], unit[-1]


def _warm_up() -> None:
    """Make BLAS allocate its working memory. If it cannot do that when it is needed, OpenBLAS tries again for ever, and
    holds the interpreter meanwhile, so that not even a signal gets through."""
    lexical_vectors(PoolWords.of(f"{number} {number % 7}" for number in range(2 * DIMENSIONS)), "1")


_warm_up()
