"""Prior means of the paper's method, for documents and for the query itself."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.pool import Pool


@dataclass(frozen=True, slots=True)
class Prior:
    """documents: returns the (N,) prior means of a pool; query: prior mean of the query, which may be observed at
    relevance 1."""

    documents: Callable[[Pool], NDArray[np.float64]]
    query: float


def percentile(pool: Pool) -> NDArray[np.float64]:
    """MIPS percentile rank (N - 1 - pos) / (N - 1), 1 at the head and 0 at the end (paper sec. 3.2); 1 if N = 1."""
    last = max(len(pool) - 1, 1)
    return np.arange(last, last - len(pool), -1, dtype=np.float64) / last


def zero(pool: Pool) -> NDArray[np.float64]:
    """No prior: the mean of BAGEL and of the "without prior" ablation (paper sec. 5.2)."""
    return np.zeros(len(pool))


# Nothing ranks above the query itself, so its percentile is that of the head.
PRIORS = {"percentile": Prior(percentile, query=1.0), "zero": Prior(zero, query=0.0)}
