"""Everything that a report says of one table: the experiment, and the analyses that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from boundarymorph.evaluation.analyses import (
    CapacityCurves,
    Latency,
    Multimodality,
    capacity_curves,
    comparisons,
    latencies,
    multimodal,
)
from boundarymorph.evaluation.audit import AuditedPair, audit
from boundarymorph.evaluation.calibrated import CalibratedStudy, calibrated_study
from boundarymorph.evaluation.methods import Contestant
from boundarymorph.evaluation.multimodality import landscape
from boundarymorph.evaluation.run import Outcome, experiment
from boundarymorph.evaluation.statistics import Comparison
from boundarymorph.evaluation.tables import Table
from boundarymorph.selection.methods import DEFAULT, PAPER

OPTIMISED = (25, 50, 100, 200, 400)
EVALUATED = (10, 25, 50, 75, 100, 150, 200, 300, 400)


@dataclass(frozen=True)
class Study:
    """reference: the method that the others are compared with. capacity, multimodality: of it and of the
    paper's method. What could not be done is empty."""

    outcome: Outcome
    reference: str
    comparisons: Sequence[Comparison]
    capacity: Mapping[str, CapacityCurves]
    latencies: Sequence[Latency]
    multimodality: Mapping[str, Multimodality]
    audit: Sequence[AuditedPair] = field(default_factory=tuple)
    calibrated: CalibratedStudy | None = None

    @property
    def name(self) -> str:
        return self.outcome.table.name

    @property
    def example(self) -> int:
        """The row of the query that the pictures show: the most multimodal one."""
        masses = [found.masses for found in self.multimodality.values()] or [np.zeros(1)]
        return int(np.argmax(masses[0]))

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
    table: Table,
    contestants: Sequence[Contestant],
    budgets: Sequence[int],
    ks: Sequence[int],
    *,
    call_seconds: float | None = None,
    jobs: int = 1,
    ask: Callable[[str], str] | None = None,
    calibrate: tuple[int, int] | None = None,
    watch: Callable[[str, int, int], None] = lambda *_: None,
) -> Study:
    """Run and analyse, `jobs` queries at a time. ask: a language model for the audit of peaks, which also needs texts;
    calibrate:
    judged queries and splits of the study of calibrations; watch: stage, done, of."""
    total = len(table)
    outcome = experiment(table, contestants, budgets, ks, _counter("selecting", total, watch), jobs)
    running = {contestant.name: contestant for contestant in outcome.contestants}
    reference = reference_of(outcome.contestants)

    analysed = [name for name in dict.fromkeys((reference, PAPER)) if name in running]
    advance = _counter("analysing", total * len(analysed), watch)
    curves = {
        name: capacity_curves(table, method, max(budgets), OPTIMISED, EVALUATED, advance, jobs)
        for name in analysed
        if (method := outcome.settings[name, max(budgets)]).uses_k and table.depth > min(OPTIMISED)
    }
    modes = {name: multimodal(outcome, name) for name in analysed if "bagel" in running and name != "bagel"}
    audited: list[AuditedPair] = []
    if ask is not None and table.texts is not None:
        advance = _counter("auditing peaks", total, watch)
        for question in table.questions():
            audited += audit(question, landscape(question), ask)
            advance()
    calibrated = None
    if calibrate is not None and outcome.judged:
        advance = _counter("calibrating", total, watch)
        calibrated = calibrated_study(outcome, *calibrate, jobs, advance)
    metrics = ("ce_ncg", "ncg") if outcome.judged else ("ce_ncg",)
    return Study(
        outcome,
        reference,
        [found for metric in metrics for found in comparisons(outcome, reference, metric)],
        curves,
        latencies(
            outcome, min(ks, key=lambda k: abs(k - 50)), table.call_seconds if call_seconds is None else call_seconds
        ),
        modes,
        audited,
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
