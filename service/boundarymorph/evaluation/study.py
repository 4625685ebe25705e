"""Everything that a report says of one table: the experiment, and the analyses that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from boundarymorph.evaluation.analyses import Latency, comparisons, latencies
from boundarymorph.evaluation.calibrated import CalibratedStudy, calibrated_study
from boundarymorph.evaluation.methods import Contestant
from boundarymorph.evaluation.run import Outcome, experiment
from boundarymorph.evaluation.statistics import Comparison
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection.methods import DEFAULT


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
