"""Distances on the unit sphere: 1 - cosine between documents, and its median over the pool's pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.pool import COLUMNS, Pool, row_lengths

DEFAULT_PAIRS = 20_000
NEAR = 1e-3  # below this distance an inner product in float32 says too little
BLOCK = 256
CACHED_BYTES = 512 * 1024  # of embeddings, read a second time from a core's own cache
MATRIX_COLUMNS = 32  # a matrix-matrix product loses more in its float32 sums than a matrix-vector product


class CosineDistances:
    """Exact enough cosine distances 1 - cos between the points of a pool.

    A float32 inner product of unit vectors in float32 is off by some 1e-7, enough to turn a pick after some hundred
    observations. Summing stretches of columns in float64 and dividing by the true lengths makes that 5e-9, for a fifth
    more time. At (near) duplicates of a scored document, where the posterior variance is near the noise, even that is
    much: there ||x - y||^2 / 2 is taken instead, which is exactly 0 for equal vectors.
    """

    def __init__(self, pool: Pool) -> None:
        self.count = len(pool)
        self._embeddings = pool.embeddings
        self._query = pool.query
        self._lengths = row_lengths(pool.embeddings)
        self._query_length = row_lengths(pool.query[None])

    def from_documents(self, documents: Sequence[int]) -> NDArray[np.float64]:
        """(m, N) distances from m documents to all."""
        return self._distances(self._embeddings[documents], self._lengths[documents])

    def from_query(self) -> NDArray[np.float64]:
        """(N,) distances from the query to all documents."""
        distances: NDArray[np.float64] = self._distances(self._query[None], self._query_length)[0]
        return distances

    def _distances(self, points: NDArray[np.floating], lengths: NDArray[np.float64]) -> NDArray[np.float64]:
        embeddings = self._embeddings
        products = np.zeros((len(points), len(embeddings)))
        width = MATRIX_COLUMNS if len(points) > 1 else COLUMNS
        for start in range(0, points.shape[1], width):
            columns = slice(start, start + width)
            if len(points) > 1:
                products += points[:, columns] @ embeddings[:, columns].T
            else:
                products += embeddings[:, columns] @ points[0, columns]
        products /= lengths[:, None]
        products /= self._lengths
        distances = np.subtract(1.0, products, out=products)
        near = np.argwhere(distances < NEAR)
        for start in range(0, len(near), BLOCK):
            point, document = near[start : start + BLOCK].T
            difference = points[point] / lengths[point, None] - embeddings[document] / self._lengths[document, None]
            distances[point, document] = np.einsum("nd,nd->n", difference, difference) / 2
        return distances


def inner_products(embeddings: NDArray[np.floating], *point_sets: NDArray[np.floating]) -> list[NDArray[np.floating]]:
    """(m, N) inner products of each (m, d) set of points with (N, d) embeddings, which are read once for all sets.

    Off by some 1e-7 in float32: for covariances whose observations are noisier than that.
    """
    results = [np.empty((len(points), len(embeddings)), dtype=embeddings.dtype) for points in point_sets]
    rows = max(CACHED_BYTES // embeddings[:1].nbytes, 1)
    for start in range(0, len(embeddings), rows):
        block = embeddings[start : start + rows]
        for points, result in zip(point_sets, results, strict=True):
            if len(points) > 1:
                result[:, start : start + rows] = points @ block.T
            else:
                np.matmul(block, points[0], out=result[0, start : start + rows])
    return results


def median_distance(embeddings: NDArray[np.floating], pairs: int | None = DEFAULT_PAIRS, seed: int = 0) -> float:
    """Median of 1 - cos(d_i, d_j) over i < j of unit rows (N, d); 0 for a single document.

    pairs: at least this many random pairs are looked at, every document in equally many of them. None, or more than
    there are: every pair. 20,000 pairs are off by 0.1 to 0.4 %.
    """
    count = len(embeddings)
    if count < 2:
        return 0.0
    if pairs is None or pairs >= count * (count - 1) // 2:
        return 1.0 - _exact_median_cosine(embeddings)
    rng = np.random.default_rng(seed)
    cosines = np.concatenate([_paired_cosines(embeddings, rng) for _ in range(-(-pairs // count))])
    return 1.0 - float(np.median(cosines))


def _paired_cosines(embeddings: NDArray[np.floating], rng: np.random.Generator) -> NDArray[np.floating]:
    """(N,) cosine of each row with a partner other than itself; every row is once a partner."""
    count = len(embeddings)
    circle = rng.permutation(count)
    partner = np.empty(count, dtype=np.intp)
    partner[circle] = np.roll(circle, 1)
    cosines = np.empty(count, dtype=embeddings.dtype)
    for start in range(0, count, BLOCK):
        block = slice(start, start + BLOCK)
        np.einsum("nd,nd->n", embeddings[block], embeddings[partner[block]], out=cosines[block])
    return cosines


def _exact_median_cosine(embeddings: NDArray[np.floating], bins: int = 1 << 16) -> float:
    """The median without holding all N^2 / 2 cosines: find its histogram bin, then collect only that bin."""
    histogram = np.zeros(bins, dtype=np.int64)
    for cosines in _upper_cosines(embeddings):
        histogram += np.bincount(_bins(cosines, bins), minlength=bins)
    total = int(histogram.sum())
    lower, upper = (total - 1) // 2, total // 2
    ends = np.cumsum(histogram)
    first, last = (int(np.searchsorted(ends, rank, side="right")) for rank in (lower, upper))
    kept = []
    for cosines in _upper_cosines(embeddings):
        where = _bins(cosines, bins)
        kept.append(cosines[(where >= first) & (where <= last)])
    inside = np.sort(np.concatenate(kept))
    before = int(ends[first - 1]) if first else 0
    return (float(inside[lower - before]) + float(inside[upper - before])) / 2


def _bins(cosines: NDArray[np.floating], bins: int) -> NDArray[np.intp]:
    numbers: NDArray[np.intp] = np.clip((cosines + 1.0) * (bins / 2), 0, bins - 1).astype(np.intp)
    return numbers


def _upper_cosines(embeddings: NDArray[np.floating], block: int = 256) -> Iterator[NDArray[np.floating]]:
    for start in range(0, len(embeddings) - 1, block):
        rows = embeddings[start : start + block]
        cosines = rows @ embeddings[start:].T
        yield cosines[np.arange(len(rows))[:, None] < np.arange(cosines.shape[1])[None, :]]
