"""Choose sets whose documents have little in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.capacity import Capacity
from boundarymorph.selection.process import VonMisesFisher, median_distance

CANDIDATES = 10  # documents considered for each document of the set, by relevance
MORE_CANDIDATES = 100  # considered in addition
LEAST = 1e-9  # lower bound of relevance and variance, because their logarithms are taken


@dataclass(frozen=True, slots=True)
class DiverseFinish:
    """A `boundary.Finish` that replaces the chosen documents by diverse ones.

    Attributes:
        diversity: The weight of having little in common, against relevance; from 0 to 1.
    """

    diversity: float

    def __call__(
        self,
        capacity: Capacity,
        chosen: NDArray[np.bool_],
        vectors: NDArray[np.floating],
        documents: NDArray[np.intp],
        relevance: NDArray[np.float64],
    ) -> NDArray[np.bool_]:
        eligible = np.flatnonzero(capacity.eligible(relevance))
        count = int(np.count_nonzero(chosen))
        mask = np.zeros_like(chosen)
        mask[eligible[choose_diverse(vectors[documents[eligible]], relevance[eligible], count, self.diversity)]] = True
        return mask


def choose_diverse(
    vectors: NDArray[np.floating], relevance: NDArray[np.float64], count: int, diversity: float
) -> NDArray[np.intp]:
    """Return the positions of at most `count` of N documents, in the order of choice.

    Each maximises (1 - diversity) log r + diversity log v. r is its relevance; v is its variance conditional on the
    documents chosen before, in a Gaussian process over the (N, d) unit vectors. With `diversity` one half this is the
    greedy search for the most probable set of a determinantal point process (Chen, Zhang and Zhou 2018). At 0 only
    relevance counts.
    """
    few = np.sort(np.argsort(-relevance, kind="stable")[: CANDIDATES * count + MORE_CANDIDATES])
    if len(few) <= count:
        return few
    points, quality = vectors[few].astype(np.float64), np.log(np.maximum(relevance[few], LEAST))
    kernel = VonMisesFisher.from_median(median_distance(vectors) / 2.0)
    left, rows = np.ones(len(few)), np.empty((count, len(few)))
    chosen: list[int] = []
    for step in range(count):
        worth = (1.0 - diversity) * quality + diversity * np.log(left)
        worth[chosen] = -np.inf
        best = int(worth.argmax())
        row = kernel(1.0 - points @ points[best]) - rows[:step, best] @ rows[:step]
        bound = np.sqrt(left)  # rounding makes correlations exceed it where little variance is left
        rows[step] = np.clip(row / bound[best], -bound, bound)
        left = np.maximum(left - np.square(rows[step]), LEAST)
        chosen.append(best)
    return few[chosen]
