"""Capacity: which documents fit, given how relevant each is believed to be."""

import numpy as np
from numpy.typing import NDArray


def top_k(mean: NDArray[np.float64], k: int) -> NDArray[np.bool_]:
    """Mask (N,) of the k largest means; equal means go by retrieval rank (paper app. C.3). k >= N takes all."""
    count = len(mean)
    if k >= count:
        return np.ones(count, dtype=np.bool_)
    threshold = np.partition(mean, count - k)[count - k]
    mask: NDArray[np.bool_] = mean > threshold
    ties = np.flatnonzero(mean == threshold)
    mask[ties[: k - np.count_nonzero(mask)]] = True
    return mask
