"""What the paper looks at beyond its main table: the capacity, the unscored share, latency, multimodality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundarymorph.evaluation import multimodality
from boundarymorph.evaluation.methods import Method
from boundarymorph.evaluation.methods.morph import Morph
from boundarymorph.evaluation.metrics import curve, normalised_gain
from boundarymorph.evaluation.problem import Problem, Question
from boundarymorph.evaluation.run import Outcome, each_question, run_once
from boundarymorph.evaluation.statistics import Comparison, benjamini_hochberg, bootstrap_interval, paired_p
from boundarymorph.evaluation.tables import Table


@dataclass(frozen=True, slots=True, eq=False)
class CapacityCurves:
    """CE-nCG (len(optimised), len(evaluated)): the mean when the method is told one k and judged at another."""

    optimised: Sequence[int]
    evaluated: Sequence[int]
    values: NDArray[np.float64]

    @property
    def best_where_told(self) -> float:
        """Share of the k_opt at which no other run is better than the one that was told it (up to 0.1 points)."""
        return 1.0 - len(self.beaten) / len(self.optimised)

    @property
    def beaten(self) -> dict[int, tuple[int, float]]:
        """k_opt at which another run is better (by more than 0.1 points) -> what the best run was told, by how much."""
        found = {}
        for row, told in enumerate(self.optimised):
            at = self.values[:, self.evaluated.index(told)]
            if at[row] < at.max() - 1e-3:
                found[told] = self.optimised[int(at.argmax())], float(at.max() - at[row])
        return found


def capacity_curves(
    table: Table,
    method: Method,
    budget: int,
    optimised: Sequence[int],
    evaluated: Sequence[int],
    advance: Callable[[], None] = lambda: None,
    jobs: int = 1,
) -> CapacityCurves:
    """Paper sec. 5.2, fig. k-opt-vs-k-eval (a), of `jobs` queries at a time. The sets of the product's methods are cut
    as the product cuts them."""
    optimised = sorted({min(k, table.depth - 1) for k in optimised})
    evaluated = sorted({min(k, table.depth - 1) for k in (*evaluated, *optimised)})
    found: list[NDArray[np.float64]] = []
    for of_question in each_question(_capacity_curve, table, method, budget, optimised, evaluated, jobs=jobs):
        found.append(of_question)
        advance()
    values = np.array(found)
    defined = np.isfinite(values).all(axis=(1, 2))
    return CapacityCurves(optimised, evaluated, values[defined].mean(axis=0))


def _capacity_curve(
    question: Question, method: Method, budget: int, optimised: Sequence[int], evaluated: Sequence[int]
) -> NDArray[np.float64]:
    """(len(optimised), len(evaluated)) CE-nCG of one query."""
    values: list[list[float] | NDArray[np.float64]] = []
    for k in optimised:
        if isinstance(method, Morph):
            sets = method.sets(Problem(question, budget, k), evaluated)
            values.append([normalised_gain(documents, question.scores) for documents in sets])
        else:
            values.append(curve(run_once(method, question, budget, k)[1], question.scores, evaluated))
    return np.array(values)


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


@dataclass(frozen=True, slots=True, eq=False)
class Multimodality:
    """masses, peaks: (Q,) a query; gains: (Q,) CE-nCG of `method` minus BAGEL's, mean over all B and k."""

    method: str
    masses: NDArray[np.float64]
    peaks: NDArray[np.intp]
    gains: NDArray[np.float64]
    rho: float
    p: float


def multimodal(outcome: Outcome, method: str, baseline: str = "bagel") -> Multimodality:
    """Does the method gain over BAGEL where relevance has several peaks? (paper sec. 5.3)."""
    landscapes = [multimodality.landscape(question) for question in outcome.table.questions()]
    masses = np.array([found.multimodal_mass for found in landscapes])
    gains = np.mean(
        [
            outcome.values(method, budget, k) - outcome.values(baseline, budget, k)
            for budget in outcome.budgets
            for k in outcome.ks
        ],
        axis=0,
    )
    rho, p = multimodality.correlation(masses, gains)
    return Multimodality(method, masses, np.array([len(found.peaks) for found in landscapes]), gains, rho, p)


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
