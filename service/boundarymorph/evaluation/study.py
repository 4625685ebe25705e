"""Everything that a report says of one table, and the main table: the quality of each method by table, B and k."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from boundarymorph.evaluation.analyses import Comparison, Latency, comparisons, latencies
from boundarymorph.evaluation.calibrated import CalibratedStudy, calibrated_study
from boundarymorph.evaluation.methods import Contestant
from boundarymorph.evaluation.run import Outcome, experiment
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection.methods import DEFAULT

METRIC_TITLES = {"ce_ncg": "CE-nCG", "ncg": "nCG"}
AVERAGE = "mean of tables"


@dataclass(frozen=True)
class Study:
    """reference: the method that the others are compared with."""

    outcome: Outcome
    reference: str
    comparisons: Sequence[Comparison]
    latencies: Sequence[Latency]
    calibrated: CalibratedStudy | None = None

    @property
    def name(self) -> str:
        return self.outcome.table.name

    @property
    def pictured(self) -> tuple[int, int]:
        """(B, k) of the pictures and of single figures: the largest budget, the k nearest 50."""
        return max(self.outcome.budgets), min(self.outcome.ks, key=lambda k: abs(k - 50))

    def shares(self) -> Mapping[str, float]:
        """Unscored share of the CE gain by method, over queries where it is defined, of the methods that buy scores."""
        budget, k = self.pictured
        buying = {row.method for row in self.outcome.rows if row.calls}
        found = {}
        for contestant in self.outcome.contestants:
            share = self.outcome.mean(contestant.name, budget, k, "unscored_share")
            if share is not None and contestant.name in buying:
                found[contestant.name] = share
        return found


def reference_of(contestants: Sequence[Contestant]) -> str:
    """The product's default if it runs, else another of the product's methods, else the last one."""
    names = [contestant.name for contestant in contestants]
    if DEFAULT in names:
        return DEFAULT
    return next((contestant.name for contestant in contestants if contestant.ours), names[-1])


def study(
    table: ScoreTable,
    contestants: Sequence[Contestant],
    budgets: Sequence[int],
    ks: Sequence[int],
    *,
    call_seconds: float | None = None,
    jobs: int = 1,
    calibrate: tuple[int, int] | None = None,
    watch: Callable[[str, int, int], None] = lambda *_: None,
) -> Study:
    """Run and analyse, `jobs` queries at a time. calibrate: judged queries and splits of the study of calibrations;
    watch: stage, done, of."""
    total = len(table)
    outcome = experiment(table, contestants, budgets, ks, _counter("selecting", total, watch), jobs)
    reference = reference_of(outcome.contestants)
    calibrated = None
    if calibrate is not None and outcome.judged:
        advance = _counter("calibrating", total, watch)
        calibrated = calibrated_study(outcome, *calibrate, jobs, advance)
    metrics = ("ce_ncg", "ncg") if outcome.judged else ("ce_ncg",)
    return Study(
        outcome,
        reference,
        [found for metric in metrics for found in comparisons(outcome, reference, metric)],
        latencies(
            outcome, min(ks, key=lambda k: abs(k - 50)), table.call_seconds if call_seconds is None else call_seconds
        ),
        calibrated,
    )


def overall(studies: Sequence[Study], method: str, budget: int, k: int, metric: str) -> float | None:
    """Mean over the tables that have the metric, each counting as much; None unless the method ran on all of those."""
    values = []
    for found in studies:
        if metric != "ce_ncg" and not found.outcome.judged:
            continue
        if (method, budget) not in found.outcome.settings:
            return None
        value = found.outcome.mean(method, budget, k, metric)
        if value is not None:
            values.append(value)
    return fmean(values) if values else None


def _counter(stage: str, total: int, watch: Callable[[str, int, int], None]) -> Callable[[], None]:
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        watch(stage, done, total)

    watch(stage, 0, total)
    return advance


@dataclass(frozen=True)
class Cells:
    """One metric as the paper's main table has it: group (a table, or their mean) -> method -> (B, k) -> 0..1."""

    metric: str
    budgets: Sequence[int]
    ks: Sequence[int]
    groups: Mapping[str, Mapping[str, Mapping[tuple[int, int], float | None]]]
    titles: Mapping[str, str]

    @property
    def columns(self) -> list[tuple[int, int]]:
        return [(budget, k) for budget in self.budgets for k in self.ks]

    def best(self, group: str, cell: tuple[int, int]) -> tuple[float, float]:
        """The best and the second-best value of a column; equal ones share a place."""
        values = sorted(
            {round(value, 4) for row in self.groups[group].values() if (value := row[cell]) is not None}, reverse=True
        )
        best, second = [*values, -1.0, -1.0][:2]
        return best, second


def cells(studies: Sequence[Study], metric: str) -> Cells | None:
    """None where no table has the metric."""
    first = studies[0].outcome
    having = [found for found in studies if metric == "ce_ncg" or found.outcome.judged]
    if not having:
        return None
    columns = [(budget, k) for budget in first.budgets for k in first.ks]
    groups: dict[str, dict[str, dict[tuple[int, int], float | None]]] = {}
    for found in having:
        groups[found.name] = {
            contestant.name: {cell: found.outcome.mean(contestant.name, *cell, metric) for cell in columns}
            for contestant in found.outcome.contestants
        }
    if len(having) > 1:
        everywhere = [
            contestant.name
            for contestant in having[0].outcome.contestants
            if all(contestant.name in group for group in groups.values())
        ]
        groups[AVERAGE] = {
            name: {cell: overall(having, name, *cell, metric) for cell in columns} for name in everywhere
        }
    return Cells(metric, first.budgets, first.ks, groups, titles_of(studies))


def titles_of(studies: Sequence[Study]) -> dict[str, str]:
    """What each method is called, by its name."""
    return {contestant.name: contestant.title for found in studies for contestant in found.outcome.contestants}


def ours_of(studies: Sequence[Study]) -> list[str]:
    """The names of the methods that the product has."""
    return [contestant.name for contestant in studies[0].outcome.contestants if contestant.ours]
