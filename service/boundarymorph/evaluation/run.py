"""The experiment: every method on every query of a table, at every B and k."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from time import process_time
from typing import TypeVar

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.evaluation.methods import Contestant, Method
from boundarymorph.evaluation.metrics import Quality, quality
from boundarymorph.evaluation.problem import Question, Ranking, SelectionProblem
from boundarymorph.evaluation.tables import ScoreTable

Result = TypeVar("Result")
SELECTION_K = 50  # settings are selected on CE-nCG@50, per budget, and reused across k (paper app. D.2)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One method on one query at one B and k. calls: bought; prompts: how often a language model was asked; seconds:
    CPU time of the method's own, without building graphs; waiting: in which a language model answered; update,
    acquisition: parts of the CPU time, where it has them."""

    query: str
    method: str
    budget: int
    k: int
    calls: int
    prompts: int
    quality: Quality
    seconds: float
    waiting: float
    update: float
    acquisition: float


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

    def values(self, method: str, budget: int, k: int, metric: str = "ce_ncg") -> NDArray[np.float64]:
        """(Q,) one metric a query, in the table's order; nan where it is not defined."""
        return self._index[metric, method, budget, k]

    def mean(self, method: str, budget: int, k: int, metric: str = "ce_ncg") -> float | None:
        """Mean over the queries on which the metric is defined; None if there is none."""
        values = self.values(method, budget, k, metric)
        values = values[np.isfinite(values)]
        return float(values.mean()) if values.size else None

    @property
    def judged(self) -> bool:
        return "grade" in self.table.arrays

    def __post_init__(self) -> None:
        collected: dict[tuple[str, str, int, int], list[float]] = {}
        for row in self.rows:
            for metric in METRICS:
                collected.setdefault((metric, row.method, row.budget, row.k), []).append(getattr(row.quality, metric))
        object.__setattr__(self, "_index", {key: np.array(values) for key, values in collected.items()})

    _index: Mapping[tuple[str, str, int, int], NDArray[np.float64]] = field(init=False, repr=False)


METRICS = tuple(Quality.__dataclass_fields__)


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
    advance: Callable[[], None] = lambda: None,
    jobs: int = 1,
) -> Outcome:
    """Run them all, `jobs` queries at a time; `advance` is called once a query."""
    missing = left_out(table, contestants)
    running = [contestant for contestant in contestants if contestant.name not in missing]
    select_at = min(ks, key=lambda k: abs(k - SELECTION_K))
    rows: dict[tuple[str, int, int], list[Measurement]] = {}  # (method, setting, B) -> rows
    criterion: dict[tuple[str, int, int], list[float]] = {}
    for of_question in each_question(_all_runs, table, running, budgets, ks, jobs=jobs):
        for run, results in of_question:
            rows.setdefault(run, []).extend(results)
            at = next(row.quality.ce_ncg for row in results if row.k == select_at)
            criterion.setdefault(run, []).append(at)
        advance()

    kept: list[Measurement] = []
    settings: dict[tuple[str, int], Method] = {}
    for contestant in running:
        for budget in budgets:
            # The first of equals wins; a nan (no gain to win) says nothing about a setting.
            best = max(
                range(len(contestant.settings)),
                key=lambda number: _mean(criterion[contestant.name, number, budget]),
            )
            kept += rows[contestant.name, best, budget]
            settings[contestant.name, budget] = contestant.settings[best]
    return Outcome(table, running, budgets, ks, kept, settings, missing)


def each_question(work: Callable[..., Result], table: ScoreTable, *arguments: object, jobs: int) -> Iterator[Result]:
    """What `work` makes of each question with these arguments, in order, in `jobs` processes."""
    tasks = (delayed(work)(question, *arguments) for question in table.questions())
    results: Iterator[Result] = Parallel(n_jobs=jobs, return_as="generator")(tasks)
    return results


def run_once(method: Method, question: Question, budget: int, k: int) -> tuple[SelectionProblem, Ranking]:
    """One method on one query, with the record of its calls."""
    problem = SelectionProblem(question, budget, k)
    return problem, method.rank(problem)


def _all_runs(
    question: Question, contestants: Sequence[Contestant], budgets: Sequence[int], ks: Sequence[int]
) -> list[tuple[tuple[str, int, int], list[Measurement]]]:
    """((method, setting, B), rows) of every run on one query."""
    return [
        ((contestant.name, number, budget), results)
        for contestant in contestants
        for number, method in enumerate(contestant.settings)
        for budget, results in _runs(contestant.name, method, question, budgets, ks)
    ]


def _runs(
    name: str, method: Method, question: Question, budgets: Sequence[int], ks: Sequence[int]
) -> list[tuple[int, list[Measurement]]]:
    """What does not depend on B or k is computed once and reported for all of them."""
    results: list[tuple[int, list[Measurement]]] = []
    done: dict[int, tuple[SelectionProblem, Ranking, float]] = {}
    for budget in budgets:
        here: list[Measurement] = []
        for k in ks:
            key = k if method.uses_k else 0
            if key not in done:
                built, begin = question.neighbourhood.seconds, process_time()
                problem, ranking = run_once(method, question, budget, k)
                seconds = process_time() - begin - (question.neighbourhood.seconds - built)
                done[key] = problem, ranking, seconds
            problem, ranking, seconds = done[key]
            here.append(
                Measurement(
                    question.id,
                    name,
                    budget,
                    k,
                    len(problem.calls),
                    problem.prompts,
                    quality(question, ranking, k, problem.scored),
                    seconds,
                    problem.seconds.get("model", 0.0),
                    problem.seconds.get("update", 0.0),
                    problem.seconds.get("acquisition", 0.0),
                )
            )
        results.append((budget, here))
        if method.uses_budget:
            done.clear()
    return results


def _mean(values: Sequence[float]) -> float:
    defined = [value for value in values if np.isfinite(value)]
    return fmean(defined) if defined else 0.0
