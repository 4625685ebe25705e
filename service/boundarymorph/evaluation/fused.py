"""A pool in the order of hybrid retrieval: reciprocal ranks of similarity and BM25 together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.fusion import fuse
from boundarymorph.selection import Pool


def fused_order(pool: Pool) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Positions in the order of their reciprocal ranks by similarity and BM25 together, and these scores."""
    words = pool.features["bm25"]
    by_words = [pool.ids[position] for position in np.argsort(-words, kind="stable") if words[position] > 0]
    ranked = fuse([pool.ids, by_words])
    positions = {id: position for position, id in enumerate(pool.ids)}
    return np.array([positions[id] for id in ranked.ids], dtype=np.intp), ranked.scores


def reordered(pool: Pool, order: NDArray[np.intp], scores: NDArray[np.float64]) -> Pool:
    """The pool in another order, with the scores by which it is ranked and the similarity as a feature."""
    features = {name: signal[order] for name, signal in {**pool.features, "similarity": pool.scores}.items()}
    terms = None if pool.terms is None else pool.terms[:, order]
    ids = [pool.ids[position] for position in order]
    return Pool(ids, pool.embeddings[order], pool.query, scores, features, terms)
