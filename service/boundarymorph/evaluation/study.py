"""Everything that a report says of one table, and the main table: the quality of each method by table, B and k."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from boundarymorph.evaluation.analyses import Comparison, Latency, comparisons, latencies
from boundarymorph.evaluation.calibrated import CalibratedStudy, calibrated_study
from boundarymorph.evaluation.methods import Contestant
from boundarymorph.evaluation.run import Cell, Outcome, Watch, experiment, near_50
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection.methods import DEFAULT

METRIC_TITLES = {"ce_ncg": "CE-nCG", "ncg": "nCG"}
AVERAGE = "mean of tables"
Means = Mapping[Cell, float | None]


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


def study(
    table: ScoreTable,
    contestants: Sequence[Contestant],
    budgets: Sequence[int],
    ks: Sequence[int],
    *,
    call_seconds: float | None = None,
    jobs: int = 1,
    calibrate: tuple[int, int] | None = None,
    watch: Watch = lambda *_: None,
) -> Study:
    """Run and analyse, `jobs` queries at a time. calibrate: judged queries and splits of the study of calibrations."""
    outcome = experiment(table, contestants, budgets, ks, watch, jobs)
    reference = _reference_of(outcome.contestants)
    compared = [
        one for metric in METRIC_TITLES if outcome.has(metric) for one in comparisons(outcome, reference, metric)
    ]
    timed = latencies(outcome, near_50(ks), table.call_seconds if call_seconds is None else call_seconds)
    calibrated = calibrated_study(outcome, *calibrate, jobs, watch) if calibrate and outcome.judged else None
    return Study(outcome, reference, compared, timed, calibrated)


def _reference_of(contestants: Sequence[Contestant]) -> str:
    """The product's default if it runs, else another of the product's methods, else the last one."""
    names = [contestant.name for contestant in contestants]
    if DEFAULT in names:
        return DEFAULT
    return next((contestant.name for contestant in contestants if contestant.ours), names[-1])


@dataclass(frozen=True)
class Cells:
    """One metric as the paper's main table has it: group (a table; at last their mean) -> method -> (B, k) -> 0..1."""

    columns: Sequence[Cell]
    groups: Mapping[str, Mapping[str, Means]]

    @property
    def overall(self) -> Mapping[str, Means]:
        """The mean of the tables, or the only one, by method."""
        return list(self.groups.values())[-1]

    def best(self, group: str, cell: Cell) -> tuple[float, float]:
        """The best and the second-best value of a column; equal ones share a place."""
        values = sorted(
            {round(value, 4) for row in self.groups[group].values() if (value := row[cell]) is not None}, reverse=True
        )
        best, second = [*values, -1.0, -1.0][:2]
        return best, second


def cells(studies: Sequence[Study], metric: str) -> Cells | None:
    """None where no table has the metric. Means over the tables that have it, each counting as much, are of the methods
    that ran on all of these."""
    outcomes = [found.outcome for found in studies if found.outcome.has(metric)]
    if not outcomes:
        return None
    columns = outcomes[0].cells
    groups = {
        outcome.table.name: {
            contestant.name: {cell: outcome.mean(contestant.name, *cell, metric) for cell in columns}
            for contestant in outcome.contestants
        }
        for outcome in outcomes
    }
    if len(outcomes) > 1:
        of_tables = list(groups.values())
        groups[AVERAGE] = {
            name: {cell: mean_of(rows[name][cell] for rows in of_tables) for cell in columns}
            for name in of_tables[0]
            if all(name in rows for rows in of_tables)
        }
    return Cells(columns, groups)


def mean_of(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def titles_of(studies: Sequence[Study]) -> dict[str, str]:
    """What each method is called, by its name."""
    return {contestant.name: contestant.title for found in studies for contestant in found.outcome.contestants}


def ours_of(studies: Sequence[Study]) -> set[str]:
    """The names of the methods that the product has."""
    return {contestant.name for found in studies for contestant in found.outcome.contestants if contestant.ours}
