"""The experiment: every method on every query of a table, at every B and k."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property, partial
from statistics import fmean
from time import process_time

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.evaluation.methods import Contestant, Method
from boundarymorph.evaluation.metrics import Quality, quality
from boundarymorph.evaluation.problem import Question, Ranking, SelectionProblem
from boundarymorph.evaluation.tables import ScoreTable

METRICS = tuple(field.name for field in fields(Quality))
Cell = tuple[int, int]  # B, k
Watch = Callable[[str, int, int], None]  # stage, done, of how many


@dataclass(frozen=True, slots=True)
class Measurement:
    """One method on one query at one B and k. calls: bought; prompts: how often a language model was asked; seconds:
    CPU time of the method's own, without building graphs; waiting: in which a language model answered."""

    query: str
    method: str
    budget: int
    k: int
    calls: int
    prompts: int
    quality: Quality
    seconds: float
    waiting: float


@dataclass(frozen=True)
class Outcome:
    """A table's results. rows: of the selected settings only; settings: (method, B) -> the method as it was selected;
    left_out: method -> why it did not run."""

    table: ScoreTable
    contestants: Sequence[Contestant]
    budgets: Sequence[int]
    ks: Sequence[int]
    rows: Sequence[Measurement]
    settings: Mapping[tuple[str, int], Method]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def cells(self) -> list[Cell]:
        """Every B and k."""
        return [(budget, k) for budget in self.budgets for k in self.ks]

    @property
    def judged(self) -> bool:
        return "grade" in self.table.arrays

    def has(self, metric: str) -> bool:
        """Whether the metric is defined on this table: those of human labels are where there are some."""
        return self.judged or metric == "ce_ncg"

    def values(self, method: str, budget: int, k: int, metric: str = "ce_ncg") -> NDArray[np.float64]:
        """(Q,) one metric a query, in the table's order; nan where it is not defined."""
        return self._index[metric, method, budget, k]

    def mean(self, method: str, budget: int, k: int, metric: str = "ce_ncg") -> float | None:
        """Mean over the queries on which the metric is defined; None if there is none."""
        values = self.values(method, budget, k, metric)
        values = values[np.isfinite(values)]
        return float(values.mean()) if values.size else None

    @cached_property
    def _index(self) -> Mapping[tuple[str, str, int, int], NDArray[np.float64]]:
        collected: defaultdict[tuple[str, str, int, int], list[float]] = defaultdict(list)
        for row in self.rows:
            for metric in METRICS:
                collected[metric, row.method, row.budget, row.k].append(getattr(row.quality, metric))
        return {key: np.array(values) for key, values in collected.items()}


def left_out(table: ScoreTable, contestants: Sequence[Contestant]) -> dict[str, str]:
    """Method -> why it cannot run on this table. Raises InvalidInput if none can."""
    found = {
        contestant.name: f"the table has no {', '.join(sorted(contestant.requires - table.provides))}"
        for contestant in contestants
        if not contestant.requires <= table.provides
    }
    if len(found) == len(contestants):
        reasons = "; ".join(f"{method}: {reason}" for method, reason in found.items())
        raise InvalidInput(f"no chosen method can run on {table.name!r} ({reasons}); choose others with --methods")
    return found


def experiment(
    table: ScoreTable,
    contestants: Sequence[Contestant],
    budgets: Sequence[int],
    ks: Sequence[int],
    watch: Watch = lambda *_: None,
    jobs: int = 1,
) -> Outcome:
    """Run them all, `jobs` queries at a time, each in a process of its own."""
    missing = left_out(table, contestants)
    running = [contestant for contestant in contestants if contestant.name not in missing]
    rows: defaultdict[tuple[str, int, int], list[Measurement]] = defaultdict(list)  # (method, setting, B) -> rows
    tasks = (delayed(_runs)(question, running, budgets, ks) for question in table.questions())
    watch("selecting", 0, len(table))
    for done, of_question in enumerate(Parallel(n_jobs=jobs, return_as="generator")(tasks), start=1):
        for run, results in of_question:
            rows[run] += results
        watch("selecting", done, len(table))

    select_at = near_50(ks)
    kept: list[Measurement] = []
    settings: dict[tuple[str, int], Method] = {}
    for contestant in running:
        for budget in budgets:
            runs = [rows[contestant.name, number, budget] for number in range(len(contestant.settings))]
            worth = [_mean([row.quality.ce_ncg for row in results if row.k == select_at]) for results in runs]
            best = worth.index(max(worth))  # the first of equals
            kept += runs[best]
            settings[contestant.name, budget] = contestant.settings[best]
    return Outcome(table, running, budgets, ks, kept, settings, missing)


def near_50(ks: Sequence[int]) -> int:
    """The k on whose CE-nCG settings are selected, to be used with every k (paper app. D.2)."""
    return min(ks, key=lambda k: abs(k - 50))


def run_once(method: Method, question: Question, budget: int, k: int) -> tuple[SelectionProblem, Ranking]:
    """One method on one query, with the record of its calls."""
    problem = SelectionProblem(question, budget, k)
    return problem, method.rank(problem)


def _runs(
    question: Question, contestants: Sequence[Contestant], budgets: Sequence[int], ks: Sequence[int]
) -> list[tuple[tuple[str, int, int], list[Measurement]]]:
    """((method, setting, B), rows) of every run on one query. What does not depend on B or k is computed once."""
    found = []
    for contestant in contestants:
        for number, method in enumerate(contestant.settings):
            run = cache(partial(_timed, method, question))
            for budget in budgets:
                rows = []
                for k in ks:
                    given = budget if method.uses_budget else budgets[0], k if method.uses_k else ks[0]
                    problem, ranking, seconds = run(*given)
                    bought, gained = (len(problem.calls), problem.prompts), quality(question, ranking, k)
                    rows.append(
                        Measurement(question.id, contestant.name, budget, k, *bought, gained, seconds, problem.waiting)
                    )
                found.append(((contestant.name, number, budget), rows))
    return found


def _timed(method: Method, question: Question, budget: int, k: int) -> tuple[SelectionProblem, Ranking, float]:
    """A run and its CPU time, without that of graphs."""
    built, begin = question.neighbourhood.seconds, process_time()
    problem, ranking = run_once(method, question, budget, k)
    return problem, ranking, process_time() - begin - (question.neighbourhood.seconds - built)


def _mean(values: Sequence[float]) -> float:
    """Of those that are defined: no gain to win says nothing about a setting."""
    defined = [value for value in values if np.isfinite(value)]
    return fmean(defined) if defined else 0.0
