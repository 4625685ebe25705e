"""How long methods take, and whether the differences between them are more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from boundarymorph.evaluation.run import Outcome
from boundarymorph.evaluation.statistics import Comparison, benjamini_hochberg, bootstrap_interval, paired_p


@dataclass(frozen=True, slots=True)
class Latency:
    """Medians a query. calls: of the scorer, which take `scorer` seconds one after the other, None if nobody says how
    long one takes; prompts: calls of a language model, which take `model` seconds; algorithm: CPU seconds of all
    else, of which update and acquisition are parts."""

    method: str
    budget: int
    calls: float
    prompts: float
    scorer: float | None
    model: float
    algorithm: float
    update: float
    acquisition: float

    @property
    def total(self) -> float | None:
        """Seconds of everything."""
        return None if self.scorer is None else self.scorer + self.model + self.algorithm


def latencies(outcome: Outcome, k: int, call_seconds: float | None) -> list[Latency]:
    """Of the methods that call models (paper tab. app-latency)."""
    found = []
    for contestant in outcome.contestants:
        for budget in outcome.budgets:
            rows = [
                row
                for row in outcome.rows
                if row.method == contestant.name and row.budget == budget and row.k == k and (row.calls or row.prompts)
            ]
            if rows:
                calls, prompts, model, algorithm, update, acquisition = np.median(
                    [(row.calls, row.prompts, row.waiting, row.seconds, row.update, row.acquisition) for row in rows],
                    axis=0,
                ).tolist()
                scorer = calls * call_seconds if call_seconds is not None else None
                found.append(
                    Latency(contestant.name, budget, calls, prompts, scorer, model, algorithm, update, acquisition)
                )
    return found


def comparisons(outcome: Outcome, method: str, metric: str) -> list[Comparison]:
    """A method against every other, at every B and k. One family of tests: all of this table and metric."""
    others = [contestant.name for contestant in outcome.contestants if contestant.name != method]
    return _compared([outcome], [(method, other) for other in others], metric)


def changes(outcomes: Sequence[Outcome], pairs: Sequence[tuple[str, str]], metric: str) -> list[Comparison]:
    """Variants against what they vary, (variant, original), over the queries of all tables together. One family of
    tests: all of them."""
    return _compared(outcomes, pairs, metric)


def _compared(outcomes: Sequence[Outcome], pairs: Sequence[tuple[str, str]], metric: str) -> list[Comparison]:
    found = []
    for method, other in pairs:
        for budget in outcomes[0].budgets:
            for k in outcomes[0].ks:
                differences = np.concatenate(
                    [
                        outcome.values(method, budget, k, metric) - outcome.values(other, budget, k, metric)
                        for outcome in outcomes
                    ]
                )
                differences = differences[np.isfinite(differences)]
                if differences.size:
                    found.append((method, other, budget, k, differences))
    p = [paired_p(differences) for *_, differences in found]
    compared = []
    for (method, other, budget, k, differences), raw, adjusted in zip(found, p, benjamini_hochberg(p), strict=True):
        low, high = bootstrap_interval(differences)
        mean = float(differences.mean())
        compared.append(Comparison(method, other, budget, k, metric, len(differences), mean, low, high, raw, adjusted))
    return compared
