"""Measure the cost of a promise.

Half of a table's queries are audited, and certify when the others stop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from joblib import delayed
from numpy.typing import NDArray

from boundarymorph.selection import BestBoundary, DocumentCapacity, Session, Tolerance
from boundarymorph.selection.methods import HUMAN_CONFIG
from boundarymorph.selection.stop import LOOKS_TO_STOP
from boundarymorph_evaluation.grids import grid
from boundarymorph_evaluation.problem import Question, SelectionProblem
from boundarymorph_evaluation.promise import Audit, Checkpoint, Promise, certify
from boundarymorph_evaluation.run import Watch, in_parallel
from boundarymorph_evaluation.tables import ScoreTable

CALLS = 200  # calls of a selection, as in the default of the setting auto_budget
SPLITS = 200
PROBABILITY = 0.9


@dataclass(frozen=True)
class PromiseOutcome:
    """The outcome of a promise, over random splits.

    Attributes:
        promise: The promise.
        refused: The share of splits without a certificate.
        broken: The share of queries without an audit that lost more, over the other splits; None without such splits.
        calls: The mean calls of these queries.
        believed_broken: As broken, for selections that stop by their belief.
        believed_calls: As calls, for such selections.
    """

    promise: Promise
    refused: float
    broken: float | None
    calls: float | None
    believed_broken: float
    believed_calls: float


def promised_study(
    table: ScoreTable, loss: float, ks: Sequence[int], *, jobs: int = 1, watch: Watch = lambda *_: None
) -> dict[int, PromiseOutcome]:
    """Audit every query at every k, and try the promise on random halves. Returns by k.

    `jobs` queries run at a time.
    """
    promise, found = Promise(loss, PROBABILITY), dict[int, PromiseOutcome]()
    for k in ks:
        tasks = (delayed(audit_of)(table.question(row), k) for row in range(len(table)))
        found[k] = try_promise(list(in_parallel(tasks, jobs, watch, f"audits, k = {k}", len(table))), promise)
    return found


def audit_of(question: Question, k: int) -> Audit:
    """Return the audit of a query with the default method."""
    method = question.configured(HUMAN_CONFIG)
    posterior = method.posterior(question.pool, min(CALLS, len(question.pool)))
    session = Session(question.pool, posterior, BestBoundary(DocumentCapacity(k), method), Tolerance(CALLS, 0.0))
    problem, made = SelectionProblem(question, CALLS, k), []
    while (asked := session.ask_round()).size:
        session.tell(asked, problem.score(asked))
        believed = session.cautious_loss() if session.enough_scores else math.inf
        made.append((session.spent, believed, session.selection().documents))
    losses = real_losses(question, k, [chosen for *_, chosen in made])
    return Audit(tuple(Checkpoint(calls, at, loss) for (calls, at, _), loss in zip(made, losses, strict=True)))


def real_losses(question: Question, k: int, sets: Sequence[NDArray[np.intp]]) -> list[float]:
    """Return the losses of sets of k documents, once all scores are known.

    They are shares of the relevance of the best set.
    """
    known = dict(enumerate(question.scores.tolist()))
    ranking = Session.create(
        question.pool, budget=0, k=k, method=question.configured(HUMAN_CONFIG), known=known
    ).ranking()
    relevance = np.empty(len(question.pool))
    relevance[ranking.documents] = ranking.relevance
    best = float(ranking.relevance[: max(map(len, sets))].sum())
    return [max(0.0, 1.0 - float(relevance[one].sum()) / best) if best > 0.0 else 0.0 for one in sets]


def try_promise(audits: Sequence[Audit], promise: Promise, splits: int = SPLITS) -> PromiseOutcome:
    """Certify by random halves of the audits, and stop the other queries by that."""
    stops: list[list[Checkpoint]] = []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(audits)).tolist()
        half, rest = order[: len(audits) // 2], order[len(audits) // 2 :]
        threshold = certify([audits[place] for place in half], promise, CALLS).threshold
        if threshold is not None:
            stops.append([stop(audits[place], threshold) for place in rest])
    believed = [stop(audit, promise.loss, LOOKS_TO_STOP) for audit in audits]
    return PromiseOutcome(
        promise,
        1.0 - len(stops) / splits,
        fmean(fmean(checkpoint.real > promise.loss for checkpoint in checkpoints) for checkpoints in stops)
        if stops
        else None,
        fmean(fmean(checkpoint.calls for checkpoint in checkpoints) for checkpoints in stops) if stops else None,
        fmean(checkpoint.real > promise.loss for checkpoint in believed),
        fmean(checkpoint.calls for checkpoint in believed),
    )


def stop(audit: Audit, threshold: float, checkpoints: int = 1) -> Checkpoint:
    """Return the checkpoint at which a session stops.

    It is the last of `checkpoints` in a row at or below the threshold, or the end.
    """
    believed = [checkpoint.believed for checkpoint in audit.checkpoints]
    for place in range(checkpoints - 1, len(believed)):
        if max(believed[place + 1 - checkpoints : place + 1]) <= threshold:
            return audit.checkpoints[place]
    return audit.checkpoints[-1]


def section(studies: Mapping[str, Mapping[int, PromiseOutcome]]) -> list[str]:
    """Return a section of the report."""
    promise = next(one.promise for study in studies.values() for one in study.values())
    lines = [
        [
            name,
            str(k),
            f"{100 * one.refused:.0f} %",
            "" if one.broken is None else f"{100 * one.broken:.1f} %",
            "" if one.calls is None else f"{one.calls:.1f}",
            f"{100 * one.believed_broken:.1f} %",
            f"{one.believed_calls:.1f}",
        ]
        for name, study in studies.items()
        for k, one in study.items()
    ]
    return [
        f"To lose at most {promise.loss:g} with a probability of {promise.probability:g}: random halves of each "
        f"table's queries were audited, {SPLITS} times, and certified when the others stop. Beside that, stopping by "
        "the belief.",
        grid(["table", "k", "refused", "broken", "calls", "believed: broken", "calls"], lines),
    ]
