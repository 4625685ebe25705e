"""Is a difference more than noise? Paired tests and bootstrap intervals over queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, wilcoxon

RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """One method minus another over the same queries. low, high: 95 % bootstrap interval of the mean difference;
    p: paired Wilcoxon signed-rank, two-sided; q: p after Benjamini-Hochberg over the family it was tested in."""

    method: str
    other: str
    budget: int
    k: int
    metric: str
    queries: int
    difference: float
    low: float
    high: float
    p: float
    q: float

    @property
    def significant(self) -> bool:
        return self.q < 0.05


def bootstrap_interval(values: NDArray[np.float64], seed: int = 0, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the mean of (n,) values; nan are left out; (nan, nan) without any value."""
    values = values[np.isfinite(values)]
    if not values.size:
        return float("nan"), float("nan")
    draws = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_p(differences: NDArray[np.float64]) -> float:
    """Two-sided Wilcoxon signed-rank p of (n,) paired differences; 1 where nothing differs."""
    differences = differences[np.isfinite(differences)]
    if not np.any(differences):
        return 1.0
    return float(wilcoxon(differences, zero_method="wilcox").pvalue)


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Adjusted p values in the order given."""
    return [float(q) for q in false_discovery_control(p, method="bh")] if p else []
