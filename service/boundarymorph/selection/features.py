"""Features of candidates that scores may follow: the columns of the trend."""

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.pool import COMPLETE, Pool

BY_WORDS = 0.25  # the share of BM25 among the witnesses


def standardised(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """(N,) with mean 0 and standard deviation 1; zeros where all are equal. Finite for any finite values."""
    scale = np.abs(values).max(initial=0.0)
    if scale == 0.0:
        return np.zeros(len(values))
    centred = np.asarray(values, dtype=np.float64) / scale
    centred -= centred.mean()
    deviation = centred.std()
    if deviation <= 1e-12:
        return np.zeros(len(centred))
    standard: NDArray[np.float64] = centred / deviation
    return standard


def rank_and_similarity(pool: Pool) -> NDArray[np.float64]:
    """(2, N): retrieval percentile, and the feature "similarity" or, for a pool without it, the retrieval score.

    In a fused ranking the similarity is more informative than the fused score (docs/evaluation.md).
    """
    return np.stack([standardised(-np.arange(len(pool), dtype=np.float64)), similarity(pool)])


def similarity(pool: Pool) -> NDArray[np.float64]:
    """(N,), standardised."""
    return standardised(pool.features.get("similarity", pool.scores))


def lexical(pool: Pool) -> NDArray[np.float64]:
    """(1, N), the square root of BM25, or (0, N) for a pool without it."""
    if "bm25" not in pool.features:
        return np.empty((0, len(pool)))
    return standardised(np.sqrt(np.maximum(pool.features["bm25"], 0.0)))[None]


def witnesses(pool: Pool) -> NDArray[np.float64]:
    """(N,) what speaks for a document besides the scorer: the encoder and, for a pool with BM25, the words, by
    `BY_WORDS`, each with mean 0 and standard deviation 1."""
    near, words = similarity(pool), lexical(pool)
    return (1.0 - BY_WORDS) * near + BY_WORDS * words[0] if len(words) else near


def signals(pool: Pool) -> NDArray[np.float64]:
    """(M, N) other features of the pool, sorted by name, as standardised ranks, so that scale and outliers do not
    matter. 0 where a document lacks the feature."""
    others = sorted(pool.features.keys() - set(COMPLETE))
    columns = np.zeros((len(others), len(pool)))
    for column, name in zip(columns, others, strict=True):
        there = ~np.isnan(pool.features[name])
        column[there] = standardised(ranks(pool.features[name][there]))
    return columns


def terms(pool: Pool) -> NDArray[np.floating]:
    """(w, N) which words of the query each document has, centred and scaled to columns of mean squared length 1. (0, N)
    if the pool does not know. Has the type of the embeddings."""
    if pool.terms is None:
        return np.empty((0, len(pool)), dtype=pool.embeddings.dtype)
    centred = pool.terms.astype(pool.embeddings.dtype)
    centred -= centred.mean(axis=1, keepdims=True)
    length = np.sqrt(np.square(centred).sum() / len(pool))
    return centred / length if length > 0 else centred


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) ascending; equal values share the mean of theirs."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[group]
    return ranks
