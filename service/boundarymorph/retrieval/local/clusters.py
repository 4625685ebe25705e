"""Training FAISS's inverted file: the centroids of its clusters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

_faiss: Any = faiss  # has few type hints
_SAMPLE = 40  # training vectors per cluster
_ROUNDS = 6
_BLOCK = 4_096


def clusters_of(count: int) -> int:
    """Return the number of clusters for this many vectors."""
    return max(1, min(count // 8, int(4 * math.sqrt(count))))


def sample_size(count: int) -> int:
    """Return how many of this many vectors to train with."""
    return min(count, clusters_of(count) * _SAMPLE)


def trained(sample: NDArray[np.float32], clusters: int, seed: int, checkpoint: Callable[[], None]) -> Any:
    """Return FAISS's inverted file with half precision and inner products, trained but without vectors.

    sample: (n, d) unit rows, n at least `clusters`. checkpoint is called at least about every second; an exception from
    it aborts the training, which FAISS's own training would not allow.
    """
    centres = _centres(sample, clusters, seed, checkpoint)
    dimension = centres.shape[1]
    quantizer = _faiss.IndexFlatIP(dimension)
    quantizer.add(centres)
    index = _faiss.IndexIVFScalarQuantizer(
        quantizer, dimension, clusters, _faiss.ScalarQuantizer.QT_fp16, _faiss.METRIC_INNER_PRODUCT, False
    )
    index.own_fields = True
    quantizer.this.disown()
    index.is_trained = True
    index.set_direct_map_type(_faiss.DirectMap.Array)  # to look up the vector of a row
    return index


def _centres(
    sample: NDArray[np.float32], clusters: int, seed: int, checkpoint: Callable[[], None]
) -> NDArray[np.float32]:
    """Return (clusters, d) unit rows, by spherical k-means."""
    rng = np.random.default_rng(seed)
    centres = sample[rng.permutation(len(sample))[:clusters]].copy()
    for _ in range(_ROUNDS):
        sums = np.zeros(centres.shape, np.float64)
        for start in range(0, len(sample), _BLOCK):
            checkpoint()
            block = sample[start : start + _BLOCK]
            nearest = np.argmax(block @ centres.T, axis=1)
            order = np.argsort(nearest, kind="stable")
            members, starts = np.unique(nearest[order], return_index=True)
            sums[members] += np.add.reduceat(block[order].astype(np.float64), starts, axis=0)
        lengths = np.linalg.norm(sums, axis=1)
        lost = lengths < 1e-6
        sums[lost] = sample[rng.integers(len(sample), size=int(lost.sum()))]
        lengths[lost] = 1
        centres = (sums / lengths[:, None]).astype(np.float32)
    return centres
