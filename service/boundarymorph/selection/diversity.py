"""Sets whose documents say different things."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.geometry import median_distance
from boundarymorph.selection.kernels import VonMisesFisher

CANDIDATES = 10  # a document of the set, and
MORE_CANDIDATES = 100  # in all: by relevance, among which it is chosen
LEAST = 1e-9  # relevance, and share of a variance, so that each has a logarithm


def diverse(
    vectors: NDArray[np.floating], relevance: NDArray[np.float64], count: int, diversity: float
) -> NDArray[np.intp]:
    """Positions of `count` of N documents, or of all, in the order in which they were chosen.

    Each is the one with the largest (1 - diversity) log r + diversity log v, of its relevance r and the share v of its
    variance that is left when those before it are known, in a field over the (N, d) unit vectors. For a diversity of
    one half that is the greedy search for the likeliest set under a determinantal point process (Chen, Zhang and Zhou
    2018); 0 goes by relevance alone.
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
        rows[step] = row / np.sqrt(left[best])
        left = np.maximum(left - np.square(rows[step]), LEAST)
        chosen.append(best)
    return few[chosen]
