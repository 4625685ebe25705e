"""What a memory is worth: learned from half of a table's queries, as earlier requests, measured on the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.evaluation.calibrated import METRICS, Run, Values
from boundarymorph.evaluation.grids import grid
from boundarymorph.evaluation.methods import Method
from boundarymorph.evaluation.methods.morph import Morph, drive
from boundarymorph.evaluation.metrics import quality
from boundarymorph.evaluation.problem import SelectionProblem
from boundarymorph.evaluation.run import Outcome, Watch, near_50, run_once
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.memory.memory import FEWEST_SCORES, FIRST, REQUESTS, Memory, Observation
from boundarymorph.selection import SelectionSession, TrendConfig
from boundarymorph.selection.methods import DEFAULT, PEOPLE, TO_PEOPLE
from boundarymorph.selection.pool import TrendPrior


@dataclass(frozen=True)
class LearnedStudy:
    """Means over splits of means over the queries that were not learned from.

    requests: played of each split; budget: calls of each; in_force: the share of splits whose memory was in force after
    them. without, with_: of the product's methods.
    """

    requests: int
    budget: int
    in_force: float
    without: Values
    with_: Values


def learned_study(
    outcome: Outcome,
    budget: int,
    splits: int,
    played: int | None = None,
    *,
    jobs: int = 1,
    watch: Watch = lambda *_: None,
) -> LearnedStudy:
    """Learn from random halves of the queries with so many calls each, `splits` times, `jobs` at a time. played: of a
    half, so many queries.

    Raises InvalidInput for too few queries or calls.
    """
    table, half = outcome.table, len(outcome.table) // 2
    requests = half if played is None else min(half, played)
    if requests < FIRST or budget < FEWEST_SCORES:
        raise InvalidInput(
            f"a memory learns from {FIRST} requests on, and from {FEWEST_SCORES} calls of each; half of "
            f"{table.name!r} is {requests}, with {budget} calls"
        )
    runs = {
        (name, cell_budget, k): method
        for (name, cell_budget), method in outcome.settings.items()
        if name.partition("@")[0] in (PEOPLE, DEFAULT)
        for k in outcome.ks
    }
    if not runs:
        raise InvalidInput(f"--learn-from measures {PEOPLE} and {DEFAULT}; choose one with --methods")
    tasks = (
        delayed(_split)(table, outcome, runs, (requests, budget, near_50(outcome.ks)), seed) for seed in range(splits)
    )
    made: list[tuple[bool, Values, Values]] = []
    watch("learning", 0, splits)
    for split in Parallel(n_jobs=jobs, return_as="generator")(tasks):
        made.append(split)
        watch("learning", len(made), splits)
    in_force, without, with_ = zip(*made, strict=True)
    return LearnedStudy(requests, budget, fmean(in_force), _mean(without), _mean(with_))


def _split(
    table: ScoreTable, outcome: Outcome, runs: Mapping[Run, Method], played: tuple[int, int, int], seed: int
) -> tuple[bool, Values, Values]:
    """played: requests, calls and k of each. Returns whether what was learned is in force, and means without it and
    with it."""
    requests, budget, k = played
    order = np.random.default_rng(seed).permutation(len(table))
    past, rest = order[:requests], np.sort(order[len(table) // 2 :])
    prior = remembered(table, past, budget, k)
    metrics = [metric for metric in METRICS if outcome.has(metric)]
    without = {
        run: {metric: float(np.nanmean(outcome.values(*run, metric)[rest])) for metric in metrics} for run in runs
    }
    return prior is not None, without, without if prior is None else _with(table, rest, runs, prior, metrics)


def remembered(table: ScoreTable, rows: NDArray[np.intp], budget: int, k: int) -> TrendPrior | None:
    """Return the prior that is in force after these rows of a table were requests with so many calls, None if none."""
    memory, prior = Memory(), None
    for row in rows.tolist():
        question = table.question(row)
        config = TO_PEOPLE if prior is None else replace(TO_PEOPLE, prior=prior)
        session = SelectionSession(question.pool, budget=budget, k=k, config=config)
        drive(session, SelectionProblem(question, budget, k), None)
        if (evidence := session.evidence()) is not None:
            memory = memory.record([Observation(evidence, "")], REQUESTS)
        if memory.due:
            memory = memory.learn()
        prior = memory.prior if memory.in_force else None
    return prior


def _with(
    table: ScoreTable, rows: NDArray[np.intp], runs: Mapping[Run, Method], prior: TrendPrior, metrics: Sequence[str]
) -> Values:
    told: dict[Run, list[Mapping[str, float]]] = {run: [] for run in runs}
    for row in rows.tolist():
        question = table.question(row)
        for run, method in runs.items():
            _, budget, k = run
            measured = quality(question, run_once(_learned(method, prior), question, budget, k)[1], k)
            told[run].append({metric: getattr(measured, metric) for metric in metrics})
    return {
        run: {metric: float(np.nanmean([one[metric] for one in of_rows])) for metric in metrics}
        for run, of_rows in told.items()
    }


def _learned(method: Method, prior: TrendPrior) -> Method:
    if isinstance(method, Morph) and isinstance(method.config, TrendConfig):
        return replace(method, config=replace(method.config, prior=prior))
    return method


def _mean(splits: Sequence[Values]) -> Values:
    return {
        run: {metric: fmean(values[run][metric] for values in splits) for metric in splits[0][run]} for run in splits[0]
    }


def rows(studies: Mapping[str, LearnedStudy]) -> list[dict[str, object]]:
    """For machines: means over tables, each counting as much, on the queries that were not learned from."""
    found: list[dict[str, object]] = []
    for learned in (False, True):
        tables = [study.with_ if learned else study.without for study in studies.values()]
        for run in tables[0]:
            if all(run in values for values in tables):
                method, budget, k = run
                means = {
                    metric: fmean(there) if (there := [t[run][metric] for t in tables if metric in t[run]]) else None
                    for metric in METRICS
                }
                found.append({"method": method, "budget": budget, "k": k, "learned": learned, **means})
    return found


def section(studies: Mapping[str, LearnedStudy]) -> list[str]:
    """A part of the report: what was gained, by table, B and k."""
    first = next(iter(studies.values()))
    lines = []
    for (method, budget, k), _ in first.with_.items():
        cells = []
        for study in studies.values():
            before, after = study.without.get((method, budget, k), {}), study.with_.get((method, budget, k), {})
            cells += [f"{100 * (after[m] - before[m]):+.1f}" if m in after else "" for m in METRICS]
        lines.append([method, str(budget), str(k), *cells])
    titles = [f"{name}, {title}" for name in studies for title in ("CE-nCG", "nCG")]
    shares = ", ".join(f"{name} {100 * study.in_force:.0f} %" for name, study in studies.items())
    return [
        f"Random halves of each table's queries were played as earlier requests with {first.budget} calls. Points "
        f"gained on the other halves by what they taught, which is used only while it is ahead. In force: {shares}.",
        grid(["method", "B", "k", *titles], lines),
    ]
