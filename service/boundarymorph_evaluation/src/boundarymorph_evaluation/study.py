"""Compute everything that a report says of one table.

This is the quality of each method by B and k, how long methods take, and whether the differences between them are more
than noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, wilcoxon

from boundarymorph.selection.methods import DEFAULT, HUMAN
from boundarymorph_evaluation.methods import Contestant
from boundarymorph_evaluation.promised import PromiseOutcome, promised_study
from boundarymorph_evaluation.run import Outcome, Watch, experiment, near_50
from boundarymorph_evaluation.tables import ScoreTable

METRIC_TITLES = {"ncg": "nCG", "ndcg_10": "nDCG@10", "ce_ncg": "CE-nCG"}
AVERAGE = "mean of tables"
RESAMPLES = 2_000
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Study:
    """The results of one table.

    Attributes:
        outcome: The results of the runs.
        reference: The method that the others are compared with.
        comparisons: As `comparisons` makes them.
        latencies: As `latencies` makes them.
        promised: The study of promises, by k, if requested.
    """

    outcome: Outcome
    reference: str
    comparisons: pd.DataFrame
    latencies: pd.DataFrame
    promised: Mapping[int, PromiseOutcome] | None = None

    @property
    def name(self) -> str:
        return self.outcome.table.name


def study(
    table: ScoreTable,
    contestants: Sequence[Contestant],
    budgets: Sequence[int],
    ks: Sequence[int],
    *,
    call_seconds: float | None = None,
    jobs: int = 1,
    promise: float | None = None,
    watch: Watch = lambda *_: None,
) -> Study:
    """Run and analyse, `jobs` queries at a time.

    `promise` is the loss of the study of promises.
    """
    outcome = experiment(table, contestants, budgets, ks, watch, jobs)
    names = [contestant.name for contestant in outcome.contestants]
    ours = [contestant.name for contestant in outcome.contestants if contestant.ours]
    reference = next((name for name in (HUMAN, DEFAULT) if name in names), (ours or names[-1:])[0])
    compared = [comparisons(outcome, reference, metric) for metric in METRIC_TITLES if outcome.has_metric(metric)]
    timed = latencies(outcome, near_50(ks), table.call_seconds if call_seconds is None else call_seconds)
    promised = promised_study(table, promise, ks, jobs=jobs, watch=watch) if promise else None
    return Study(outcome, reference, pd.concat(compared, ignore_index=True), timed, promised)


def quality_by_table(studies: Sequence[Study], metric: str) -> dict[str, pd.DataFrame]:
    """Return one metric in the form of the paper's main table: (methods, cells) by table.

    The last table is their mean. This is empty if no table has the metric. Means over the tables that have it, with
    equal weights, are of the methods that ran on all of these.
    """
    tables = {found.name: found.outcome.means(metric) for found in studies if found.outcome.has_metric(metric)}
    if len(tables) < 2:
        return tables
    everywhere = set.intersection(*(set(table.index) for table in tables.values()))
    names = [name for name in next(iter(tables.values())).index if name in everywhere]
    return tables | {AVERAGE: pd.concat(tables.values()).groupby(level=0).mean().loc[names]}


def overall(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the mean of the tables, or the only one."""
    return list(tables.values())[-1]


def titles_of(studies: Sequence[Study]) -> dict[str, str]:
    """Return the title of each method, by its name."""
    return {contestant.name: contestant.title for found in studies for contestant in found.outcome.contestants}


def ours_of(studies: Sequence[Study]) -> set[str]:
    """Return the names of the methods that the product has."""
    return {contestant.name for found in studies for contestant in found.outcome.contestants if contestant.ours}


def bootstrap_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean of (n,) values.

    NaN are left out. The interval is (NaN, NaN) without a value.
    """
    values = values[np.isfinite(values)]
    if not values.size:
        return float("nan"), float("nan")
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def paired_p(differences: NDArray[np.float64]) -> float:
    """Return the two-sided Wilcoxon signed-rank p of (n,) paired differences.

    It is 1 if there are no differences.
    """
    differences = differences[np.isfinite(differences)]
    if not np.any(differences):
        return 1.0
    return float(wilcoxon(differences, zero_method="wilcox").pvalue)


def latencies(outcome: Outcome, k: int, call_seconds: float | None) -> pd.DataFrame:
    """Return medians per query of the methods that call the scorer (paper tab. app-latency).

    The columns are method, budget, calls, scorer (seconds of the calls, one after the other; NaN if the time per call
    is not known), algorithm (CPU seconds of all else) and total (seconds).
    """
    rows = outcome.rows[(outcome.rows["k"] == k) & (outcome.rows["calls"] > 0)]
    found = rows.groupby(["method", "budget"], sort=False)[["calls", "seconds"]].median().reset_index()
    found = found.rename(columns={"seconds": "algorithm"})
    found["scorer"] = found["calls"] * (np.nan if call_seconds is None else call_seconds)
    found["total"] = found["scorer"] + found["algorithm"]
    return found


def comparisons(outcome: Outcome, method: str, metric: str) -> pd.DataFrame:
    """Return the changes from every other method to this one.

    The family of tests is all of this table and metric.
    """
    others = [contestant.name for contestant in outcome.contestants if contestant.name != method]
    return changes([outcome], [(method, other) for other in others], metric)


def changes(outcomes: Sequence[Outcome], pairs: Sequence[tuple[str, str]], metric: str) -> pd.DataFrame:
    """Return the differences of pairs (method, other), over the queries of all tables together.

    There is a row for every B and k. The columns are method, other, budget, k, metric, queries, difference; low, high:
    95 % bootstrap interval of the mean difference; p: paired Wilcoxon signed-rank, two-sided; q: p after
    Benjamini-Hochberg over the family, which has every test.
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
