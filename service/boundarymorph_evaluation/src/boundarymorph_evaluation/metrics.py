"""Compute nCG@k and CE-nCG@k (paper eq. ncg), and nDCG@10.

nCG is the gain of a set of k documents over the best gain that k documents can have. nDCG judges the order of the first
ten.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundarymorph_evaluation.problem import Question, Ranking

TOP = 10  # places that nDCG counts


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality of a set of k documents; NaN if a query has no gain to win.

    Attributes:
        ce_ncg: Against the scorer's answers.
        ncg: The gain by human labels, every relevant document counting 1, against the best k of the pool, as in
            the paper (eq. ncg).
        ncg_graded: As `ncg`, with grades as gains.
        ncg_collection: As `ncg`, but against `min(k, relevant documents of the collection)`, so that documents that
            retrieval missed count; NaN if a table counts other relevant documents than its pool has.
        ndcg_10: nDCG@10 of the set in its order, with grades as gains, against the best order of the pool (Jarvelin and
            Kekalainen 2002, as in trec_eval).
    """

    ce_ncg: float
    ncg: float
    ncg_graded: float
    ncg_collection: float
    ndcg_10: float


def normalised_gain(chosen: NDArray[np.intp], gains: NDArray[np.float64]) -> float:
    """Return the sum of (N,) `gains` at the chosen positions, over the largest possible sum.

    The largest sum has the same number of positions.
    """
    k = min(len(chosen), len(gains))
    best = np.partition(gains, len(gains) - k)[len(gains) - k :].sum() if k else 0.0
    return float(gains[chosen].sum() / best) if best > 0 else float("nan")


def discounted_gain(ranked: NDArray[np.float64]) -> float:
    """Return the sum of the first ten gains, the gain of place i (from 1) over log2(i + 1)."""
    first = ranked[:TOP]
    return float((first / np.log2(np.arange(len(first)) + 2.0)).sum())


def quality(question: Question, ranking: Ranking, k: int) -> Quality:
    """Return the metrics of the first k documents of a ranking."""
    chosen = ranking[:k]
    binary = graded = collection = ordered = float("nan")
    if question.grades is not None:
        relevant = (question.grades > 0).astype(np.float64)
        binary = normalised_gain(chosen, relevant)
        graded = normalised_gain(chosen, question.grades)
        best = discounted_gain(np.sort(question.grades)[::-1])
        ordered = discounted_gain(question.grades[chosen]) / best if best > 0 else ordered
        if question.relevant is not None and question.relevant >= relevant.sum():
            possible = min(k, question.relevant)
            collection = float(relevant[chosen].sum() / possible) if possible else float("nan")
    return Quality(normalised_gain(chosen, question.scores), binary, graded, collection, ordered)
