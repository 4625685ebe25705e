"""A calibration that is learned from the grades of some of a table's queries, measured on the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from joblib import delayed
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import Calibration, log_loss, log_odds
from boundarymorph.calibration.judgments import JudgedQuery, worth_judging
from boundarymorph.calibration.learning import calibration_error, learn
from boundarymorph.errors import InvalidInput
from boundarymorph.selection.methods import DEFAULT, METHODS, PEOPLE, TO_PEOPLE
from boundarymorph_evaluation.grids import grid
from boundarymorph_evaluation.methods.morph import Morph
from boundarymorph_evaluation.metrics import quality
from boundarymorph_evaluation.problem import Question
from boundarymorph_evaluation.run import Outcome, Watch, in_parallel, mean, records, run_once
from boundarymorph_evaluation.tables import ScoreTable

METRICS = ["ce_ncg", "ncg"]
RUN = ["method", "budget", "k"]
LEAST = 1e-6  # how close to 0 or 1 a score is taken at its word, as a probability
Run = tuple[str, int, int]  # method, B, k


@dataclass(frozen=True)
class CalibratedStudy:
    """Means over splits of means over the queries that were not judged: METRICS by method, B and k, NaN without labels.

    without: of all methods that are reported; with_: of the product's, told calibrated scores. queries: judged ones of
    each split; judgments: mean number of grades; forms: what the gates applied, counted. errors, losses: expected
    calibration error and log loss of relevance over all documents of the unused queries, with every score known: of
    scores as they are, and as the calibration reads them.
    """

    without: pd.DataFrame
    with_: pd.DataFrame
    queries: int
    judgments: float
    forms: Mapping[str, int]
    errors: tuple[float, float]
    losses: tuple[float, float]


def calibrated_study(
    outcome: Outcome, queries: int, splits: int, jobs: int = 1, watch: Watch = lambda *_: None
) -> CalibratedStudy:
    """Calibrate by `queries` random queries, `splits` times, `jobs` at a time.

    Raises InvalidInput if the table has no grades, or too few queries.
    """
    table = outcome.table
    if not outcome.judged or len(table) <= queries:
        raise InvalidInput(f"{table.name!r} has {len(table)} queries; with {queries} judged none is left to measure")
    runs = _product(outcome)
    tasks = (delayed(_calibrated)(table, runs, queries, seed) for seed in range(splits))
    made = list(in_parallel(tasks, jobs, watch, "calibrating", splits))
    calibrations, rows, told, errors, losses = zip(*made, strict=True)
    everything = [(name, budget, k) for name, budget in outcome.settings for k in outcome.ks]
    without = [_bare(outcome, everything, here) for here in rows]
    with_ = [bare.loc[list(runs)] if of is None else of for bare, of in zip(without, told, strict=True)]
    return CalibratedStudy(
        _mean_of(without),
        _mean_of(with_),
        queries=calibrations[0].queries,
        judgments=fmean(one.judgments for one in calibrations),
        forms=Counter(one.form for one in calibrations),
        errors=(fmean(before for before, _ in errors), fmean(after for _, after in errors)),
        losses=(fmean(before for before, _ in losses), fmean(after for _, after in losses)),
    )


def _calibrated(
    table: ScoreTable, runs: Mapping[Run, Morph], queries: int, seed: int
) -> tuple[Calibration, NDArray[np.intp], pd.DataFrame | None, list[float], list[float]]:
    """Return a calibration, the rows that it was not learned from, and what was measured on these: means of methods
    that are told calibrated scores (None if the calibration leaves sets as they are), and the errors and losses."""
    order = np.random.default_rng(seed).permutation(len(table))
    judged, rest = order[:queries], order[queries:]
    calibration = learn(
        f"{table.name}-{seed}", [_judged(table, row, seed) for row in judged], scorer=table.name, encoder=None
    )
    told, raw, read, relevant = list[Any](), list[Any](), list[Any](), list[Any]()
    for row in rest:
        question = table.question(row)
        assert question.grades is not None
        calibrated = calibration.on(question.pool)
        probability = calibrated.probability(question.scores, np.arange(len(question.pool)))
        relevant.append(question.grades > 0)
        raw.append(question.scores)
        read.append(question.scores if calibration.form == "none" else probability)
        if calibration.form == "signals":
            # All evidence is in the probabilities already; near: the weight of the similarity in these.
            to_people = replace(TO_PEOPLE, told=calibrated.near)
            methods = {
                run: replace(method, config=to_people if method.config == TO_PEOPLE else METHODS[DEFAULT])
                for run, method in runs.items()
            }
            told += _measured(question, methods, Question(question.id, question.pool, probability))
    targets = np.concatenate(relevant).astype(np.float64)
    scores = [np.concatenate(each) for each in (raw, read)]
    errors = [calibration_error(each, targets) for each in scores]
    losses = [float(log_loss(log_odds(each, LEAST), targets).mean()) for each in scores]
    return calibration, rest, _means(told) if told else None, errors, losses


def _judged(table: ScoreTable, row: int, seed: int) -> JudgedQuery:
    question = table.question(row)
    assert question.grades is not None
    documents = worth_judging(np.argsort(-question.scores, kind="stable"), len(question.pool), seed)
    given = question.scores[documents], question.grades[documents]
    return JudgedQuery.of(question.pool, documents, *given, question.by_witnesses)


def _product(outcome: Outcome) -> dict[Run, Morph]:
    """Return the product's methods that take what is learned, as they ran."""
    return {
        (name, budget, k): method
        for (name, budget), method in outcome.settings.items()
        if isinstance(method, Morph) and name.partition("@")[0] in (PEOPLE, DEFAULT)
        for k in outcome.ks
    }


def _measured(
    question: Question, runs: Mapping[Run, Morph], shown: Question | None = None
) -> Iterator[tuple[Any, ...]]:
    """Yield RUN and METRICS of the methods on a query. shown: the query as they see it."""
    for (name, budget, k), method in runs.items():
        found = quality(question, run_once(method, shown or question, budget, k)[1], k)
        yield name, budget, k, found.ce_ncg, found.ncg


def _means(rows: Iterable[tuple[Any, ...]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*RUN, *METRICS]).groupby(RUN, sort=False).agg(mean)


def _bare(outcome: Outcome, runs: Sequence[Run], rows: NDArray[np.intp]) -> pd.DataFrame:
    """Return the means of the experiment over these rows of its table."""
    index = pd.MultiIndex.from_tuples(runs, names=RUN)
    found = {metric: [mean(outcome.values(*run, metric)[rows]) for run in runs] for metric in METRICS}
    return pd.DataFrame(found, index=index)


def _mean_of(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the means over splits or tables that have a metric, each counting as much, of the runs that all have."""
    whole = pd.concat(parts).groupby(RUN, sort=False)
    found = whole.agg(lambda values: fmean(there) if len(there := values.dropna()) else np.nan)
    return found[whole.size() == len(parts)]


def rows(studies: Sequence[CalibratedStudy]) -> list[dict[str, object]]:
    """For machines: means over tables, each counting as much, on the queries that were not judged."""
    both = {False: [study.without for study in studies], True: [study.with_ for study in studies]}
    found = pd.concat({told: _mean_of(parts) for told, parts in both.items()}, names=["calibrated"]).reset_index()
    return records(found[[*RUN, "calibrated", *METRICS]])


def section(studies: Mapping[str, CalibratedStudy]) -> list[str]:
    """A part of the report: human nCG with and without, by table."""
    first = next(iter(studies.values()))
    rivals = [name for name in ("ss-hybrid",) if name in first.without.index.get_level_values("method")]
    names = list(dict.fromkeys(first.with_.index.get_level_values("method")))
    lines = []
    for table, study in studies.items():
        figures = [values.loc[name, "ncg"] for name in names for values in (study.without, study.with_)]
        figures += [study.without.loc[name, "ncg"] for name in rivals]
        changes = [f"{before:.3f} to {after:.3f}" for before, after in (study.errors, study.losses)]
        applied = ", ".join(f"{form} {count}" for form, count in sorted(study.forms.items()))
        lines.append([table, *(f"{100 * fmean(values):.1f}" for values in figures), *changes, applied])
    titles = [f"{name}, {what}" for name in names for what in ("without", "calibrated")]
    return [
        f"Learned from each table's grades of {first.queries} random queries, at most 40 documents each. Human nCG in "
        "% of the other queries, mean over B, k and splits. Error: expected calibration error of relevance, every "
        "score being known, before and after; log loss likewise. Applied: how often the gate let all evidence decide "
        "(signals), scores be read as probabilities (scale), or nothing change (none).",
        grid(["table", *titles, *rivals, "error", "log loss", "applied"], lines),
    ]
