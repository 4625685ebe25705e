"""How many peaks has a query's relevance? Persistence-based clustering of the scorer's landscape (paper app. E.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from boundarymorph.evaluation.problem import Question

TOP = 1_000  # documents by score that form the landscape
NEIGHBOURS = 10
PROMINENCE = 0.20  # a lower peak belongs to the taller one that it merges into


@dataclass(frozen=True, slots=True, eq=False)
class Peak:
    """summit: its highest document; members: its basin, summit included, best first; prominence: how far the score
    falls before the peak joins a taller one (all the way to 0, if it never does); mass: sum of its members' scores."""

    summit: int
    members: NDArray[np.intp]
    prominence: float
    mass: float


@dataclass(frozen=True, slots=True)
class Landscape:
    """Peaks of one query, tallest first."""

    peaks: tuple[Peak, ...]

    @property
    def multimodal_mass(self) -> float:
        """Sum over all peaks but the tallest of prominence times share of the mass: 0 with one peak, below 1 always.

        The paper says "mass-weighted prominence"; mass is taken as a share of the landscape's, so that queries with
        many and few relevant documents compare.
        """
        total = sum(peak.mass for peak in self.peaks)
        return sum(peak.prominence * peak.mass for peak in self.peaks[1:]) / total if total > 0 else 0.0


def landscape(
    question: Question, *, top: int = TOP, neighbours: int = NEIGHBOURS, prominence: float = PROMINENCE
) -> Landscape:
    """Peaks of the `top` best-scored documents over their own symmetrised cosine kNN graph."""
    documents = np.argsort(-question.scores, kind="stable")[:top]
    embeddings = np.asarray(question.pool.embeddings[documents], dtype=np.float32)
    return Landscape(_peaks(documents, question.scores[documents], _knn(embeddings, neighbours), prominence))


def _knn(embeddings: NDArray[np.float32], neighbours: int) -> NDArray[np.bool_]:
    """(n, n) adjacency: an edge where either is among the other's nearest."""
    n = len(embeddings)
    edges = np.zeros((n, n), dtype=np.bool_)
    if n > 1:
        cosines = embeddings @ embeddings.T
        np.fill_diagonal(cosines, -np.inf)
        nearest = np.argsort(-cosines, axis=1, kind="stable")[:, : min(neighbours, n - 1)]
        np.put_along_axis(edges, nearest, True, axis=1)
    joined: NDArray[np.bool_] = edges | edges.T
    return joined


def _peaks(
    documents: NDArray[np.intp], heights: NDArray[np.float64], edges: NDArray[np.bool_], prominence: float
) -> tuple[Peak, ...]:
    """Documents enter from the highest down. Each joins the tallest peak among its neighbours; peaks that it connects
    merge if the lower one rises less than `prominence` above it, and in any case share a component from then on."""
    n = len(heights)
    basin, component = np.arange(n), np.arange(n)
    merged_at: dict[int, float] = {}
    for document in range(n):
        higher = np.flatnonzero(edges[document, :document])
        if not higher.size:
            continue
        summits = sorted({_root(component, int(other)) for other in higher})
        tallest = summits[0]
        component[document] = tallest
        for summit in summits[1:]:
            merged_at[summit] = float(heights[document])
            component[summit] = tallest
        basins = sorted({_root(basin, int(other)) for other in higher})
        basin[document] = basins[0]
        for summit in basins[1:]:
            if heights[summit] - heights[document] < prominence:
                basin[summit] = basins[0]
    roots = np.array([_root(basin, document) for document in range(n)])
    return tuple(
        Peak(
            int(documents[summit]),
            documents[np.flatnonzero(roots == summit)],
            float(heights[summit] - merged_at.get(summit, 0.0)),
            float(heights[roots == summit].sum()),
        )
        for summit in np.unique(roots).tolist()
        # A component that never rises above the threshold is no peak; its documents belong to none.
        if heights[summit] >= prominence or summit == 0
    )


def _root(parents: NDArray[np.intp], node: int) -> int:
    while parents[node] != node:
        parents[node] = parents[parents[node]]
        node = int(parents[node])
    return node


def correlation(masses: NDArray[np.float64], gains: NDArray[np.float64]) -> tuple[float, float]:
    """Spearman's rho and its p; (nan, nan) where either side is constant or fewer than 3 queries are left."""
    both = np.isfinite(masses) & np.isfinite(gains)
    masses, gains = masses[both], gains[both]
    if len(masses) < 3 or np.ptp(masses) == 0 or np.ptp(gains) == 0:
        return float("nan"), float("nan")
    result = spearmanr(masses, gains)
    return float(result.statistic), float(result.pvalue)
