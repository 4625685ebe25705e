"""What a calibration is worth: learned from the grades of a few queries of a table, measured on its other queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.calibration.judgments import JudgedQuery, worth_judging
from boundarymorph.calibration.learning import learn
from boundarymorph.calibration.logistic import log_loss
from boundarymorph.calibration.validation import BINS
from boundarymorph.errors import InvalidInput
from boundarymorph.evaluation.methods import Method
from boundarymorph.evaluation.metrics import quality
from boundarymorph.evaluation.problem import Question
from boundarymorph.evaluation.run import Outcome, run_once
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection.methods import DEFAULT

METRICS = ("ce_ncg", "ncg")
LEAST = 1e-6  # how close to 0 or 1 a score is taken at its word, as a probability
Cell = tuple[str, int, int]  # method, B, k


@dataclass(frozen=True, slots=True)
class Split:
    """A calibration, and the rows of the queries that it was not learned from."""

    calibration: Calibration
    rows: NDArray[np.intp]


@dataclass(frozen=True)
class CalibratedStudy:
    """Means over splits of means over the queries that were not used.

    queries: judged ones of each split; judgments: mean number of grades; forms: what the gates applied, counted.
    without, with_: cell -> metric -> mean; with_ has the product's default only. errors, losses: expected calibration
    error and log loss of relevance over all documents of the unused queries, with every score known: of scores as they
    are, and as the calibration reads them.
    """

    queries: int
    judgments: float
    forms: Mapping[str, int]
    without: Mapping[Cell, Mapping[str, float]]
    with_: Mapping[Cell, Mapping[str, float]]
    errors: tuple[float, float]
    losses: tuple[float, float]


def calibrated_study(
    outcome: Outcome, queries: int, splits: int, jobs: int = 1, advance: Callable[[], None] = lambda: None
) -> CalibratedStudy:
    """Calibrate by `queries` random queries, `splits` times. `advance` is called once a query of the table.

    Raises InvalidInput if the table has no grades, or too few queries.
    """
    table = outcome.table
    if not outcome.judged or len(table) <= queries:
        raise InvalidInput(f"{table.name!r} has {len(table)} queries; with {queries} judged none is left to measure")
    made = [_split(table, queries, seed) for seed in range(splits)]
    methods = {
        (name, budget): method
        for (name, budget), method in outcome.settings.items()
        if name.partition("@")[0] == DEFAULT
    }
    tasks = (
        delayed(_on_query)(
            table.question(row), [split.calibration for split in made if row in split.rows], methods, outcome.ks
        )
        for row in range(len(table))
    )
    found: list[_OnQuery] = []
    for of_query in Parallel(n_jobs=jobs, return_as="generator")(tasks):
        found.append(of_query)
        advance()
    return _summed(outcome, made, methods, found)


@dataclass(frozen=True, slots=True)
class _OnQuery:
    """Of one query, a row for each calibration: values by cell and metric, and sums over the documents by which errors
    and losses are found. A row is None where the sets are those without."""

    values: Sequence[Mapping[Cell, Mapping[str, float]] | None]
    sums: Sequence[NDArray[np.float64]]


def _split(table: ScoreTable, queries: int, seed: int) -> Split:
    order = np.random.default_rng(seed).permutation(len(table))
    judged = []
    for row in order[:queries].tolist():
        question = table.question(row)
        assert question.grades is not None
        best = np.argsort(-question.scores, kind="stable")
        documents = worth_judging(best, len(question.pool), seed)
        judged.append(JudgedQuery.of(question.pool, documents, question.scores[documents], question.grades[documents]))
    return Split(learn(f"{table.name}-{seed}", judged, scorer=table.name, encoder=None), order[queries:])


def _on_query(
    question: Question,
    calibrations: Sequence[Calibration],
    methods: Mapping[tuple[str, int], Method],
    ks: Sequence[int],
) -> _OnQuery:
    every = np.arange(len(question.pool))
    relevant = (np.zeros(len(every)) if question.grades is None else question.grades > 0).astype(np.float64)
    values: list[Mapping[Cell, Mapping[str, float]] | None] = []
    sums = []
    for calibration in calibrations:
        probability = calibration.on(question.pool).probability(question.scores, every)
        applied = question.scores if calibration.form == "none" else probability
        sums.append(np.stack([_sums(question.scores, relevant), _sums(applied, relevant)]))
        told = Question(question.id, question.pool, probability)
        values.append(_values(question, told, methods, ks) if calibration.form == "signals" else None)
    return _OnQuery(values, sums)


def _values(
    question: Question, told: Question, methods: Mapping[tuple[str, int], Method], ks: Sequence[int]
) -> dict[Cell, dict[str, float]]:
    """By methods that are told other scores, which are judged by the question's own."""
    found = {}
    for (name, budget), method in methods.items():
        for k in ks:
            problem, ranking = run_once(method, told, budget, k)
            measured = quality(question, ranking, k, problem.scored)
            found[name, budget, k] = {metric: getattr(measured, metric) for metric in METRICS}
    return found


def _sums(probabilities: NDArray[np.float64], relevant: NDArray[np.float64]) -> NDArray[np.float64]:
    """(BINS, 4): documents, sums of probabilities, relevant ones and log losses by tenths of the probabilities."""
    held = np.clip(probabilities, LEAST, 1.0 - LEAST)
    losses = log_loss(np.log(held) - np.log1p(-held), relevant)
    tenth = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    columns = (None, probabilities, relevant, losses)
    return np.column_stack([np.bincount(tenth, weights, BINS) for weights in columns])


def _summed(
    outcome: Outcome, made: Sequence[Split], methods: Mapping[tuple[str, int], Method], found: Sequence[_OnQuery]
) -> CalibratedStudy:
    """Collect what was found of each query by splits."""
    place = [0] * len(found)  # of a query's next calibration
    errors, losses = [], []
    with_: dict[Cell, dict[str, list[float]]] = {}
    cells = [(name, budget, k) for name, budget in methods for k in outcome.ks]
    for split in made:
        of_split = []
        for row in range(len(found)):
            if row in split.rows:
                of_split.append((row, place[row]))
                place[row] += 1
        sums = np.sum([found[row].sums[at] for row, at in of_split], axis=0)
        errors.append((np.abs(sums[:, :, 1] - sums[:, :, 2]).sum(axis=1) / sums[:, :, 0].sum(axis=1)).tolist())
        losses.append((sums[:, :, 3].sum(axis=1) / sums[:, :, 0].sum(axis=1)).tolist())
        for cell in cells:
            for metric in METRICS:
                bare = outcome.values(*cell, metric)
                values = [
                    bare[row] if (changed := found[row].values[at]) is None else changed[cell][metric]
                    for row, at in of_split
                ]
                with_.setdefault(cell, {}).setdefault(metric, []).append(float(np.nanmean(values)))
    without = {
        (contestant.name, budget, k): {
            metric: fmean(
                float(np.nanmean(outcome.values(contestant.name, budget, k, metric)[split.rows])) for split in made
            )
            for metric in METRICS
        }
        for contestant in outcome.contestants
        for budget in outcome.budgets
        for k in outcome.ks
    }
    return CalibratedStudy(
        queries=made[0].calibration.queries,
        judgments=fmean(split.calibration.judgments for split in made),
        forms=Counter(split.calibration.form for split in made),
        without=without,
        with_={cell: {metric: fmean(values) for metric, values in of.items()} for cell, of in with_.items()},
        errors=(fmean(error[0] for error in errors), fmean(error[1] for error in errors)),
        losses=(fmean(loss[0] for loss in losses), fmean(loss[1] for loss in losses)),
    )


def rows(studies: Mapping[str, CalibratedStudy]) -> list[dict[str, object]]:
    """For machines: means over tables, each counting as much, on the queries that were not used."""
    found: list[dict[str, object]] = []
    for calibrated in (False, True):
        first = next(iter(studies.values()))
        for cell in first.with_ if calibrated else first.without:
            per_table = [(study.with_ if calibrated else study.without).get(cell) for study in studies.values()]
            if None in per_table:
                continue
            means = {metric: fmean(values[metric] for values in per_table if values) for metric in METRICS}
            method, budget, k = cell
            found.append({"method": method, "budget": budget, "k": k, "calibrated": calibrated, **means})
    return found


def section(studies: Mapping[str, CalibratedStudy]) -> str:
    """A part of the report: human nCG with and without, by table."""
    first = next(iter(studies.values()))
    rivals = [name for name in ("ss-hybrid",) if any(cell[0] == name for cell in first.without)]
    names = list(dict.fromkeys(cell[0] for cell in first.with_))
    titles = [*(f"{name}, {what}" for name in names for what in ("without", "calibrated")), *rivals]
    lines = [
        "## Calibrated by a few judgements",
        "",
        f"Learned from each table's grades of {first.queries} random queries, at most 40 documents each. Human nCG in "
        "% of the other queries, mean over B, k and splits. Error: expected calibration error of relevance, every "
        "score being known, before and after; log loss likewise. Applied: how often the gate let all evidence decide "
        "(signals), scores be read as probabilities (scale), or nothing change (none).",
        "",
        f"| table | {' | '.join(titles)} | error | log loss | applied |",
        f"|---|{'---:|' * (len(titles) + 2)}---|",
    ]
    for table, study in studies.items():
        figures = [mean for name in names for mean in (_mean(study.without, name), _mean(study.with_, name))]
        figures += [_mean(study.without, name) for name in rivals]
        applied = ", ".join(f"{form} {count}" for form, count in sorted(study.forms.items()))
        values = " | ".join(f"{100 * value:.1f}" for value in figures)
        changes = " | ".join(f"{before:.3f} to {after:.3f}" for before, after in (study.errors, study.losses))
        lines.append(f"| {table} | {values} | {changes} | {applied} |")
    return "\n".join([*lines, ""])


def _mean(cells: Mapping[Cell, Mapping[str, float]], method: str) -> float:
    return fmean(values["ncg"] for cell, values in cells.items() if cell[0] == method)
