"""A map of a pool: its vectors in their first two principal components."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.pool import Pool


class Places(NamedTuple):
    """documents: (N, 2) float64; query: (2,)."""

    documents: NDArray[np.float64]
    query: NDArray[np.float64]


def plane(pool: Pool) -> Places | None:
    """Documents and query in the first two principal components of the documents, about their mean.

    A component may point either way; here the query is on its positive side. None where there are no two components:
    too few documents or dimensions.
    """
    embeddings = pool.embeddings
    if min(embeddings.shape) < 2:
        return None
    mean = embeddings.mean(axis=0)
    centred = embeddings - mean
    axes = np.linalg.eigh(centred.T @ centred)[1][:, :-3:-1]
    axes *= np.where((pool.query - mean) @ axes < 0, -1, 1)
    return Places((centred @ axes).astype(np.float64), ((pool.query - mean) @ axes).astype(np.float64))
