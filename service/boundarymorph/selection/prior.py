"""The prior mean over the pool: what is believed of a document before any cross-encoder call."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.pool import Pool


def percentile(pool: Pool) -> NDArray[np.float64]:
    """MIPS percentile rank (N - 1 - pos) / (N - 1), 1 at the head and 0 at the end (paper sec. 3.2); 1 if N = 1."""
    last = max(len(pool) - 1, 1)
    return np.arange(last, last - len(pool), -1, dtype=np.float64) / last


def zero(pool: Pool) -> NDArray[np.float64]:
    """No prior: the mean of BAGEL and of the "without prior" ablation (paper sec. 5.2)."""
    return np.zeros(len(pool))


PRIORS: dict[str, Callable[[Pool], NDArray[np.float64]]] = {"percentile": percentile, "zero": zero}
