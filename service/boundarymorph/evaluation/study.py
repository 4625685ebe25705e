"""Everything that a report says of one table, and the main table: the quality of each method by table, B and k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from boundarymorph.evaluation.analyses import comparisons, latencies
from boundarymorph.evaluation.calibrated import CalibratedStudy, calibrated_study
from boundarymorph.evaluation.learned import LearnedStudy, learned_study
from boundarymorph.evaluation.methods import Contestant
from boundarymorph.evaluation.promised import PromisedStudy, promised_study
from boundarymorph.evaluation.run import Outcome, Watch, experiment, near_50
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection.methods import DEFAULT, PEOPLE

METRIC_TITLES = {"ncg": "nCG", "ndcg_10": "nDCG@10", "ce_ncg": "CE-nCG"}
AVERAGE = "mean of tables"


@dataclass(frozen=True)
class Study:
    """reference: the method that the others are compared with; comparisons, latencies: as `analyses` makes them."""

    outcome: Outcome
    reference: str
    comparisons: pd.DataFrame
    latencies: pd.DataFrame
    calibrated: CalibratedStudy | None = None
    learned: LearnedStudy | None = None
    promised: PromisedStudy | None = None

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
    learn: tuple[int, int, int | None] | None = None,
    promise: float | None = None,
    watch: Watch = lambda *_: None,
) -> Study:
    """Run and analyse, `jobs` queries at a time. calibrate: judged queries and splits of the study of calibrations;
    learn: calls, splits and requests of that of memories; promise: the loss of that of promises."""
    outcome = experiment(table, contestants, budgets, ks, watch, jobs)
    names = [contestant.name for contestant in outcome.contestants]
    ours = [contestant.name for contestant in outcome.contestants if contestant.ours]
    reference = next((name for name in (PEOPLE, DEFAULT) if name in names), (ours or names[-1:])[0])
    compared = [comparisons(outcome, reference, metric) for metric in METRIC_TITLES if outcome.has(metric)]
    timed = latencies(outcome, near_50(ks), table.call_seconds if call_seconds is None else call_seconds)
    calibrated = calibrated_study(outcome, *calibrate, jobs, watch) if calibrate and outcome.judged else None
    learned = learned_study(outcome, *learn, jobs=jobs, watch=watch) if learn else None
    promised = promised_study(table, promise, ks, jobs=jobs, watch=watch) if promise else None
    return Study(outcome, reference, pd.concat(compared, ignore_index=True), timed, calibrated, learned, promised)


def quality_by_table(studies: Sequence[Study], metric: str) -> dict[str, pd.DataFrame]:
    """Return one metric as the paper's main table has it: (methods, cells) by table, and at last their mean.

    Empty if no table has the metric. Means over the tables that have it, each counting as much, are of the methods that
    ran on all of these.
    """
    tables = {found.name: found.outcome.means(metric) for found in studies if found.outcome.has(metric)}
    if len(tables) < 2:
        return tables
    everywhere = set.intersection(*(set(table.index) for table in tables.values()))
    names = [name for name in next(iter(tables.values())).index if name in everywhere]
    return tables | {AVERAGE: pd.concat(tables.values()).groupby(level=0).mean().loc[names]}


def overall(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the mean of the tables, or the only one."""
    return list(tables.values())[-1]


def titles_of(studies: Sequence[Study]) -> dict[str, str]:
    """Return what each method is called, by its name."""
    return {contestant.name: contestant.title for found in studies for contestant in found.outcome.contestants}


def ours_of(studies: Sequence[Study]) -> set[str]:
    """Return the names of the methods that the product has."""
    return {contestant.name for found in studies for contestant in found.outcome.contestants if contestant.ours}
