"""Rankings, and merging several into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import DuplicateIds
from boundarymorph.retrieval.vectors import exact_scores
from boundarymorph.selection.pool import Pool

RANK_CONSTANT = 60.0


@dataclass(frozen=True, slots=True)
class FusedRanking:
    """n documents, best first. scores: (n,) float64, descending."""

    ids: list[str]
    scores: NDArray[np.float64]


def scores_by_rank(count: int) -> NDArray[np.float64]:
    """Return (count,) scores for a ranking known only by its order: those of fusing it with no other."""
    scores: NDArray[np.float64] = 1.0 / (RANK_CONSTANT + np.arange(1, count + 1, dtype=np.float64))
    return scores


def fuse(rankings: Sequence[Sequence[str]]) -> FusedRanking:
    """Reciprocal rank fusion (Cormack, Clarke and Büttcher 2009): the sum of 1 / (RANK_CONSTANT + rank), ranks from 1.

    rankings: ids, best first; a ranking that lacks a document adds nothing to its score. Ties are broken by the first
    ranking that contains one of the documents; otherwise the order of the rankings does not matter. Raises DuplicateIds
    for an id that is twice in a ranking.
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


def fused(
    near: Pool, best: Sequence[str], depth: int, vectors: Callable[[list[str]], Mapping[str, NDArray[np.floating]]]
) -> Pool:
    """Return a pool of the nearest and the best by words, fused by reciprocal rank; the similarity becomes a feature.

    vectors: returns the (d,) unit vectors of ids that are not among the nearest.
    """
    ranked = fuse([near.ids[:depth], best[:depth]])
    ids, scores = ranked.ids[:depth], ranked.scores[:depth]
    rows: dict[str, NDArray[np.floating]] = dict(zip(near.ids, near.embeddings, strict=True))
    rows |= vectors([id for id in ids if id not in rows])
    matrix = np.array([rows[id] for id in ids], dtype=np.float32)
    return Pool(ids, matrix, near.query, scores, {"similarity": exact_scores(matrix, near.query)})
