"""What a calibration is worth: learned from the grades of a few queries of a table, measured on its other queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import Calibration, log_loss, log_odds
from boundarymorph.calibration.judgments import JudgedQuery, worth_judging
from boundarymorph.calibration.learning import BINS, learn
from boundarymorph.errors import InvalidInput
from boundarymorph.evaluation.grids import grid
from boundarymorph.evaluation.methods import Method
from boundarymorph.evaluation.methods.morph import Morph
from boundarymorph.evaluation.metrics import quality
from boundarymorph.evaluation.problem import Question
from boundarymorph.evaluation.run import Outcome, Watch, run_once
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection.methods import DEFAULT, METHODS, PEOPLE, TO_PEOPLE

METRICS = ("ce_ncg", "ncg")
LEAST = 1e-6  # how close to 0 or 1 a score is taken at its word, as a probability
Run = tuple[str, int, int]  # method, B, k
Values = Mapping[Run, Mapping[str, float]]  # by metric


@dataclass(frozen=True)
class CalibratedStudy:
    """Means over splits of means over the queries that were not used.

    queries: judged ones of each split; judgments: mean number of grades; forms: what the gates applied, counted.
    without, with_: of every method, and of the product's default when it is told calibrated scores. errors, losses:
    expected calibration error and log loss of relevance over all documents of the unused queries, with every score
    known: of scores as they are, and as the calibration reads them.
    """

    queries: int
    judgments: float
    forms: Mapping[str, int]
    without: Values
    with_: Values
    errors: tuple[float, float]
    losses: tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Split:
    """A calibration, and what was measured on the rows that it was not learned from.

    told: means of the methods that were told calibrated scores, None if the calibration leaves sets as they are.
    bins: (2, BINS, 4) as of `_bins`, of scores as they are and as the calibration reads them.
    """

    calibration: Calibration
    rows: NDArray[np.intp]
    told: Values | None
    bins: NDArray[np.float64]


def calibrated_study(
    outcome: Outcome, queries: int, splits: int, jobs: int = 1, watch: Watch = lambda *_: None
) -> CalibratedStudy:
    """Calibrate by `queries` random queries, `splits` times, `jobs` at a time.

    Raises InvalidInput if the table has no grades, or too few queries.
    """
    table = outcome.table
    if not outcome.judged or len(table) <= queries:
        raise InvalidInput(f"{table.name!r} has {len(table)} queries; with {queries} judged none is left to measure")
    runs = {
        (name, budget, k): method
        for (name, budget), method in outcome.settings.items()
        if name.partition("@")[0] in (PEOPLE, DEFAULT)
        for k in outcome.ks
    }
    made: list[_Split] = []
    watch("calibrating", 0, splits)
    for split in Parallel(n_jobs=jobs, return_as="generator")(
        delayed(_split)(table, runs, queries, seed) for seed in range(splits)
    ):
        made.append(split)
        watch("calibrating", len(made), splits)

    everything = [(name, budget, k) for name, budget in outcome.settings for k in outcome.ks]
    without = [_means(outcome, everything, split.rows) for split in made]
    with_ = [split.told or {run: bare[run] for run in runs} for split, bare in zip(made, without, strict=True)]
    bins = np.stack([split.bins for split in made])
    documents, off = bins[..., 0].sum(axis=-1), np.abs(bins[..., 1] - bins[..., 2]).sum(axis=-1)
    before_error, after_error = (off / documents).mean(axis=0).tolist()
    before_loss, after_loss = (bins[..., 3].sum(axis=-1) / documents).mean(axis=0).tolist()
    return CalibratedStudy(
        queries=made[0].calibration.queries,
        judgments=fmean(split.calibration.judgments for split in made),
        forms=Counter(split.calibration.form for split in made),
        without=_mean_of(without),
        with_=_mean_of(with_),
        errors=(before_error, after_error),
        losses=(before_loss, after_loss),
    )


def _split(table: ScoreTable, runs: Mapping[Run, Method], queries: int, seed: int) -> _Split:
    order = np.random.default_rng(seed).permutation(len(table))
    calibration = _learned(table, order[:queries], seed)
    bins = np.zeros((2, BINS, 4))
    told: dict[Run, list[Mapping[str, float]]] = {run: [] for run in runs}
    for row in order[queries:]:
        question = table.question(row)
        assert question.grades is not None
        calibrated = calibration.on(question.pool)
        probability = calibrated.probability(question.scores, np.arange(len(question.pool)))
        applied = question.scores if calibration.form == "none" else probability
        bins += np.stack([_bins(scores, question.grades > 0) for scores in (question.scores, applied)])
        if calibration.form == "signals":
            instead = Question(question.id, question.pool, probability)
            for run, method in runs.items():
                _, budget, k = run
                measured = quality(question, run_once(_told(method, calibrated.near), instead, budget, k)[1], k)
                told[run].append({metric: getattr(measured, metric) for metric in METRICS})
    means = {
        run: {metric: float(np.nanmean([values[metric] for values in of_rows])) for metric in METRICS}
        for run, of_rows in told.items()
        if of_rows
    }
    return _Split(calibration, order[queries:], means or None, bins)


def _told(method: Method, near: float) -> Method:
    """Return the method for a session that is told probabilities, in which all evidence is already. near: the weight of
    the similarity in these."""
    if not isinstance(method, Morph):
        return method
    return replace(method, config=replace(TO_PEOPLE, told=near) if method.config == TO_PEOPLE else METHODS[DEFAULT])


def _learned(table: ScoreTable, rows: NDArray[np.intp], seed: int) -> Calibration:
    judged = []
    for row in rows:
        question = table.question(row)
        assert question.grades is not None
        best = np.argsort(-question.scores, kind="stable")
        documents = worth_judging(best, len(question.pool), seed)
        given = question.scores[documents], question.grades[documents]
        judged.append(JudgedQuery.of(question.pool, documents, *given, question.by_witnesses))
    return learn(f"{table.name}-{seed}", judged, scorer=table.name, encoder=None)


def _bins(probabilities: NDArray[np.float64], relevant: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(BINS, 4): documents, sums of probabilities, relevant ones and log losses by tenths of the probabilities."""
    losses = log_loss(log_odds(probabilities, LEAST), relevant.astype(np.float64))
    tenth = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    return np.column_stack([np.bincount(tenth, weights, BINS) for weights in (None, probabilities, relevant, losses)])


def _means(outcome: Outcome, runs: Sequence[Run], rows: NDArray[np.intp]) -> Values:
    """Over these rows of a table."""
    return {run: {metric: float(np.nanmean(outcome.values(*run, metric)[rows])) for metric in METRICS} for run in runs}


def _mean_of(splits: Sequence[Values]) -> Values:
    return {run: {metric: fmean(values[run][metric] for values in splits) for metric in METRICS} for run in splits[0]}


def rows(studies: Mapping[str, CalibratedStudy]) -> list[dict[str, object]]:
    """For machines: means over tables, each counting as much, on the queries that were not used."""
    found: list[dict[str, object]] = []
    for calibrated in (False, True):
        tables = [study.with_ if calibrated else study.without for study in studies.values()]
        for run in tables[0]:
            if all(run in values for values in tables):
                method, budget, k = run
                means = _mean_of([{run: values[run]} for values in tables])[run]
                found.append({"method": method, "budget": budget, "k": k, "calibrated": calibrated, **means})
    return found


def section(studies: Mapping[str, CalibratedStudy]) -> list[str]:
    """A part of the report: human nCG with and without, by table."""
    first = next(iter(studies.values()))
    rivals = [name for name in ("ss-hybrid",) if any(run[0] == name for run in first.without)]
    names = list(dict.fromkeys(run[0] for run in first.with_))
    lines = []
    for table, study in studies.items():
        figures = [mean for name in names for mean in (_ncg(study.without, name), _ncg(study.with_, name))]
        figures += [_ncg(study.without, name) for name in rivals]
        values = [f"{100 * value:.1f}" for value in figures]
        changes = [f"{before:.3f} to {after:.3f}" for before, after in (study.errors, study.losses)]
        applied = ", ".join(f"{form} {count}" for form, count in sorted(study.forms.items()))
        lines.append([table, *values, *changes, applied])
    titles = [f"{name}, {what}" for name in names for what in ("without", "calibrated")]
    return [
        f"Learned from each table's grades of {first.queries} random queries, at most 40 documents each. Human nCG in "
        "% of the other queries, mean over B, k and splits. Error: expected calibration error of relevance, every "
        "score being known, before and after; log loss likewise. Applied: how often the gate let all evidence decide "
        "(signals), scores be read as probabilities (scale), or nothing change (none).",
        grid(["table", *titles, *rivals, "error", "log loss", "applied"], lines),
    ]


def _ncg(values: Values, method: str) -> float:
    return fmean(of["ncg"] for run, of in values.items() if run[0] == method)
