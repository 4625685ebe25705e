"""Run every method on every query of a table, at every B and k."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache, cached_property, partial
from itertools import product
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph_evaluation.methods import Contestant, ScoringMethod
from boundarymorph_evaluation.metrics import Quality, quality
from boundarymorph_evaluation.problem import Question, Ranking, SelectionProblem
from boundarymorph_evaluation.tables import ScoreTable

METRICS = tuple(field.name for field in fields(Quality))
RUN = ["method", "setting", "budget"]  # a method with one of its settings
Cell = tuple[int, int]  # B, k
Watch = Callable[[str, int, int], None]  # stage, number done, total


@dataclass(frozen=True)
class Outcome:
    """The results of a table.

    Attributes:
        table: The table.
        contestants: The methods.
        budgets: Every B.
        ks: Every k.
        rows: A row for each method, B, k and query, of the selected settings only, with the columns query, method,
            budget, k, calls, the METRICS, and seconds (CPU time of the method without graphs).
        settings: The method with its selected setting, by method and B.
        left_out: Why a method did not run.
    """

    table: ScoreTable
    contestants: Sequence[Contestant]
    budgets: Sequence[int]
    ks: Sequence[int]
    rows: pd.DataFrame
    settings: Mapping[tuple[str, int], ScoringMethod]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def cells(self) -> list[Cell]:
        """Every B and k."""
        return list(product(self.budgets, self.ks))

    @property
    def judged(self) -> bool:
        return "grade" in self.table.arrays

    def has_metric(self, metric: str) -> bool:
        """Return whether the metric is defined on this table.

        Metrics of human labels need a judged table.
        """
        return self.judged or metric == "ce_ncg"

    def values(self, method: str, budget: int, k: int, metric: str = "ce_ncg") -> NDArray[np.float64]:
        """Return (Q,) one metric per query, in the table's order; NaN where it is not defined."""
        values: NDArray[np.float64] = self.rows[metric].to_numpy(dtype=np.float64)
        return values[self._of_run.get((method, budget, k), np.empty(0, dtype=np.intp))]

    @cached_property
    def _of_run(self) -> Mapping[tuple[str, int, int], NDArray[np.intp]]:
        found: Mapping[Any, NDArray[np.intp]] = self.rows.groupby(["method", "budget", "k"]).indices
        return found

    def mean(self, method: str, budget: int, k: int, metric: str = "ce_ncg") -> float | None:
        """Return the mean over the queries on which the metric is defined.

        It is None if there are no such queries.
        """
        found = mean(self.values(method, budget, k, metric))
        return None if np.isnan(found) else found

    def means(self, metric: str) -> pd.DataFrame:
        """Return (methods, cells) means over the queries on which the metric is defined.

        They are NaN if there are no such queries.
        """
        found = self.rows.groupby(["method", "budget", "k"])[metric].mean().unstack(["budget", "k"])
        return found.reindex(
            index=pd.Index([one.name for one in self.contestants], name="method"),
            columns=pd.MultiIndex.from_tuples(self.cells, names=["budget", "k"]),
        )


def skipped_contestants(table: ScoreTable, contestants: Sequence[Contestant]) -> dict[str, str]:
    """Return, by method, why it cannot run on this table. Raises InvalidInput if none can."""
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
    """Run all methods, `jobs` queries at a time, each in a process of its own."""
    missing = skipped_contestants(table, contestants)
    running = [contestant for contestant in contestants if contestant.name not in missing]
    rows: list[dict[str, Any]] = []
    tasks = (delayed(_runs)(question, running, budgets, ks) for question in table.questions())
    for of_question in in_parallel(tasks, jobs, watch, "selecting", len(table)):
        rows += of_question
    tried = pd.DataFrame(rows)
    # No gain to win says nothing about a setting; of equal settings the first is selected.
    worth = tried[tried["k"] == near_50(ks)].groupby(RUN)["ce_ncg"].mean().fillna(0.0)
    best = worth.groupby(level=["method", "budget"]).idxmax()
    runs, cells = tried.groupby(RUN), [(one, budget) for one in running for budget in budgets]
    kept = pd.concat([runs.get_group(best[one.name, budget]) for one, budget in cells], ignore_index=True)
    settings = {(one.name, budget): one.settings[best[one.name, budget][1]] for one, budget in cells}
    kept = kept.drop(columns="setting")
    return Outcome(table, running, budgets, ks, kept, settings, missing)


def in_parallel(tasks: Iterable[Any], jobs: int, watch: Watch, stage: str, total: int) -> Iterator[Any]:
    """Yield the results of delayed calls of `joblib`, `jobs` at a time, and report their number."""
    watch(stage, 0, total)
    for done, result in enumerate(Parallel(n_jobs=jobs, return_as="generator")(tasks), start=1):
        yield result
        watch(stage, done, total)


def mean(values: NDArray[np.float64]) -> float:
    """Return the mean over the queries on which a metric is defined.

    It is NaN if there are no such queries.
    """
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table for JSON, with None for NaN."""
    listed = frame.astype(object)
    found: list[dict[str, Any]] = listed.where(listed.notna(), None).to_dict("records")
    return found


def near_50(ks: Sequence[int]) -> int:
    """Return the k whose CE-nCG selects the settings for every k (paper app. D.2)."""
    return min(ks, key=lambda k: abs(k - 50))


def run_once(method: ScoringMethod, question: Question, budget: int, k: int) -> tuple[SelectionProblem, Ranking]:
    """Run one method on one query; return the record of its calls, and its ranking."""
    problem = SelectionProblem(question, budget, k)
    return problem, method.rank(problem)


def _runs(
    question: Question, contestants: Sequence[Contestant], budgets: Sequence[int], ks: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the rows of every run on one query.

    Runs that do not depend on B or k are computed once.
    """
    rows = []
    for name, number, method in (
        (one.name, number, method) for one in contestants for number, method in enumerate(one.settings)
    ):
        run = cache(partial(_timed, method, question))
        for budget, k in product(budgets, ks):
            given = budget if method.uses_budget else budgets[0], k if method.uses_k else ks[0]
            problem, ranking, seconds = run(*given)
            found = asdict(quality(question, ranking, k))
            row = {"query": question.id, "method": name, "setting": number, "budget": budget, "k": k}
            rows.append({**row, "calls": len(problem.calls), **found, "seconds": seconds})
    return rows


def _timed(method: ScoringMethod, question: Question, budget: int, k: int) -> tuple[SelectionProblem, Ranking, float]:
    """Return a run and its CPU time, without the time of graphs."""
    built, begin = question.neighbourhood.seconds, process_time()
    problem, ranking = run_once(method, question, budget, k)
    return problem, ranking, process_time() - begin - (question.neighbourhood.seconds - built)
