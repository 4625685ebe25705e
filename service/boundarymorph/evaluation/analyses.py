"""How long methods take, and whether the differences between them are more than noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, wilcoxon

from boundarymorph.evaluation.run import Outcome

RESAMPLES = 2_000
SIGNIFICANT = 0.05


def bootstrap_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean of (n,) values; NaN are left out; (NaN, NaN) without a value."""
    values = values[np.isfinite(values)]
    if not values.size:
        return float("nan"), float("nan")
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def paired_p(differences: NDArray[np.float64]) -> float:
    """Return the two-sided Wilcoxon signed-rank p of (n,) paired differences; 1 where nothing differs."""
    differences = differences[np.isfinite(differences)]
    if not np.any(differences):
        return 1.0
    return float(wilcoxon(differences, zero_method="wilcox").pvalue)


def latencies(outcome: Outcome, k: int, call_seconds: float | None) -> pd.DataFrame:
    """Return medians a query of the methods that call the scorer (paper tab. app-latency), with the columns method,
    budget, calls, scorer (seconds of the calls, one after the other, NaN if nobody says how long one takes), algorithm
    (CPU seconds of all else) and total (seconds)."""
    rows = outcome.rows[(outcome.rows["k"] == k) & (outcome.rows["calls"] > 0)]
    found = rows.groupby(["method", "budget"], sort=False)[["calls", "seconds"]].median().reset_index()
    found = found.rename(columns={"seconds": "algorithm"})
    found["scorer"] = found["calls"] * (np.nan if call_seconds is None else call_seconds)
    found["total"] = found["scorer"] + found["algorithm"]
    return found


def comparisons(outcome: Outcome, method: str, metric: str) -> pd.DataFrame:
    """Return the changes from every other method to this one. One family of tests: all of this table and metric."""
    others = [contestant.name for contestant in outcome.contestants if contestant.name != method]
    return changes([outcome], [(method, other) for other in others], metric)


def changes(outcomes: Sequence[Outcome], pairs: Sequence[tuple[str, str]], metric: str) -> pd.DataFrame:
    """Return methods minus others, by pairs of (method, other), over the queries of all tables together, at every B
    and k. One family of tests: all of them.

    Columns: method, other, budget, k, metric, queries, difference; low, high: 95 % bootstrap interval of the mean
    difference; p: paired Wilcoxon signed-rank, two-sided; q: p after Benjamini-Hochberg over the family.
    """
    found = []
    for method, other in pairs:
        for cell in outcomes[0].cells:
            differences = np.concatenate(
                [outcome.values(method, *cell, metric) - outcome.values(other, *cell, metric) for outcome in outcomes]
            )
            differences = differences[np.isfinite(differences)]
            if differences.size:
                interval = bootstrap_interval(differences)
                mean, p = float(differences.mean()), paired_p(differences)
                found.append((method, other, *cell, metric, len(differences), mean, *interval, p))
    columns = ["method", "other", "budget", "k", "metric", "queries", "difference", "low", "high", "p"]
    compared = pd.DataFrame(found, columns=columns)
    return compared.assign(q=false_discovery_control(compared["p"], method="bh") if found else ())
