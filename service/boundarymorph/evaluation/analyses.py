"""How long methods take, and whether the differences between them are more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, wilcoxon

from boundarymorph.evaluation.run import Outcome

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


def bootstrap_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """95 % percentile interval of the mean of (n,) values; nan are left out; (nan, nan) without any value."""
    values = values[np.isfinite(values)]
    if not values.size:
        return float("nan"), float("nan")
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
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


@dataclass(frozen=True, slots=True)
class Latency:
    """Medians a query. calls: of the scorer, which take `scorer` seconds one after the other, None if nobody says how
    long one takes; prompts: calls of a language model, which take `model` seconds; algorithm: CPU seconds of all
    else."""

    method: str
    budget: int
    calls: float
    prompts: float
    scorer: float | None
    model: float
    algorithm: float

    @property
    def total(self) -> float | None:
        """Seconds of everything."""
        return None if self.scorer is None else self.scorer + self.model + self.algorithm


def latencies(outcome: Outcome, k: int, call_seconds: float | None) -> list[Latency]:
    """Of the methods that call models (paper tab. app-latency)."""
    found = []
    for method, budget in outcome.settings:
        taken = [
            (row.calls, row.prompts, row.waiting, row.seconds)
            for row in outcome.rows
            if (row.method, row.budget, row.k) == (method, budget, k) and (row.calls or row.prompts)
        ]
        if taken:
            calls, prompts, model, algorithm = np.median(taken, axis=0).tolist()
            scorer = None if call_seconds is None else calls * call_seconds
            found.append(Latency(method, budget, calls, prompts, scorer, model, algorithm))
    return found


def comparisons(outcome: Outcome, method: str, metric: str) -> list[Comparison]:
    """A method against every other, at every B and k. One family of tests: all of this table and metric."""
    others = [contestant.name for contestant in outcome.contestants if contestant.name != method]
    return changes([outcome], [(method, other) for other in others], metric)


def changes(outcomes: Sequence[Outcome], pairs: Sequence[tuple[str, str]], metric: str) -> list[Comparison]:
    """Variants against what they vary, (variant, original), over the queries of all tables together. One family of
    tests: all of them."""
    found = []
    for method, other in pairs:
        for cell in outcomes[0].cells:
            differences = np.concatenate(
                [outcome.values(method, *cell, metric) - outcome.values(other, *cell, metric) for outcome in outcomes]
            )
            differences = differences[np.isfinite(differences)]
            if differences.size:
                found.append((method, other, *cell, differences))
    p = [paired_p(differences) for *_, differences in found]
    compared = []
    for (method, other, budget, k, differences), raw, adjusted in zip(found, p, benjamini_hochberg(p), strict=True):
        low, high = bootstrap_interval(differences)
        mean = float(differences.mean())
        compared.append(Comparison(method, other, budget, k, metric, len(differences), mean, low, high, raw, adjusted))
    return compared
