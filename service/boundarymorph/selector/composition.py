"""Make the session of a task from its candidates: limits, boundary, and stopping rule."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.notices import Notice
from boundarymorph.retrieval.artifacts import Artifacts
from boundarymorph.retrieval.candidates import Candidates, IndexSource
from boundarymorph.retrieval.filters import read_path
from boundarymorph.selection import (
    BaseSession,
    BestBoundary,
    BoostedBoundary,
    Boundary,
    Budget,
    Config,
    DiverseFinish,
    ExhaustiveSession,
    Limit,
    OrderBoundary,
    Pool,
    SearchBoundary,
    SearchTarget,
    Session,
    ThresholdBoundary,
    Tolerance,
    capacity_of,
)
from boundarymorph.selection.boundary import keep_chosen
from boundarymorph.selection.methods import DEFAULT, TO_FIND
from boundarymorph.selector.documents import Documents, Grouping
from boundarymorph.selector.remarks import boost_notices
from boundarymorph.selector.scores import CalibratedScores
from boundarymorph.selector.task import Aim, SelectionTask

log = logging.getLogger(__name__)
ROUNDS = 3  # rounds of a fixed budget: people find as much as with more rounds (docs/results.md)


def add_artifacts(task: SelectionTask, found: Artifacts) -> SelectionTask:
    """Return the task with the artifacts of its index, where the request lets them apply.

    They are its calibration, and at most one document for each value of its field `distinct`.
    """
    if not isinstance(task.source, IndexSource):
        return task
    defaults, aim, relevance = task.source.defaults, task.aim, task.relevance
    if "calibration" in defaults:
        relevance = replace(relevance, calibration=found.calibration)
    if "distinct" in defaults and found.distinct is not None:
        try:
            aim = replace(aim, distinct=Grouping(read_path(found.distinct, "distinct")))
        except InvalidInput as error:  # the artifact of the index is damaged
            log.warning("the index %r is searched without its 'distinct': %s", task.source.index, error)
    return replace(task, aim=aim, relevance=relevance)


class SetLimits(NamedTuple):
    """The limits of a set, by the lengths and groups of all candidates.

    Attributes:
        limit: The limit on the set.
        lengths: (N,) tokens of the candidates; None without `max_tokens`.
        deleted: The positions of candidates that were found to be deleted.
        warnings: Warnings for the caller.
    """

    limit: Limit
    lengths: NDArray[np.float64] | None
    deleted: NDArray[np.intp]
    warnings: Sequence[Notice]


async def limits_of(
    aim: Aim, k: int | None, candidates: Candidates, documents: Documents, ids: Sequence[str]
) -> SetLimits:
    """Read the limits of a set of at most k documents: all candidates' lengths and groups."""
    lengths, deleted, warnings = None, np.empty(0, dtype=np.intp), list[Notice]()
    if aim.max_tokens is not None:
        lengths = await candidates.lengths(ids)
        deleted = np.flatnonzero(np.isnan(lengths))
        lengths = np.nan_to_num(lengths, nan=1.0)
    limit: Limit = capacity_of(k=k, lengths=lengths, max_tokens=aim.max_tokens)
    limit = candidates.passages.restrict(limit, ids)
    if (grouping := aim.distinct) is not None:
        limit = grouping.restrict(limit, await documents.read_groups(grouping))
        if grouping.path is not None and not any(map(grouping.value, documents.read_so_far.values())):
            said = f"no candidate has the field {'.'.join(grouping.path)!r} in its metadata"
            warnings.append(Notice("field-not-found", said))
    return SetLimits(limit, lengths, deleted, warnings)


async def boosts_of(task: SelectionTask, documents: Documents) -> tuple[NDArray[np.float64] | None, list[Notice]]:
    """Return the (N,) boosts of all candidates, None if the task has none, and warnings."""
    if task.relevance.boosts is None:
        return None, []
    boosts, unread = await documents.read_boosts(task.relevance.boosts)
    return boosts, boost_notices(unread)


def session_of(
    task: SelectionTask,
    pool: Pool,
    calibrated: CalibratedScores,
    known: Mapping[int, float],
    budget: int,
    limit: Limit,
    boosts: NDArray[np.float64] | None,
) -> BaseSession:
    """Return the session of a task.

    Args:
        task: The task, complete with the defaults of its index.
        pool: The N candidates.
        calibrated: The scores by which the session decides.
        known: Scores by position.
        budget: The most calls.
        limit: The limit on the set.
        boosts: (N,) factors of relevance, if the task has any.
    """
    scores = calibrated.add_known(known)
    if task.spending.goal == "scores":
        return ExhaustiveSession(pool, scores, boosts)
    finds = task.aim.target is not None and task.relevance.method == DEFAULT
    method = TO_FIND if finds else calibrated.config(task.relevance.method)
    boundary = boundary_of(task, limit, method, calibrated)
    # A limit on tokens weighs relevance against length, so it uses the relevance of the answer.
    weighs = task.aim.max_tokens is not None and (calibrated.shipped or calibrated.reading) is not None
    if boosts is not None or weighs:
        boundary = BoostedBoundary(boundary, boosts, calibrated.shipped)
    posterior = method.posterior(pool, min(budget + len(scores), len(pool)))
    return Session(pool, posterior, boundary, stop_of(task, budget), known=scores, reading=calibrated.reading)


def boundary_of(task: SelectionTask, limit: Limit, method: Config, calibrated: CalibratedScores) -> Boundary:
    aim = task.aim
    finish = DiverseFinish(aim.diversity) if aim.diversity else keep_chosen
    best = BestBoundary(limit, method, aim.negligible, finish)
    if aim.min_relevance is None:
        return best if task.spending.goal == "set" else OrderBoundary(best)
    least, target = calibrated.threshold_of_set(aim.min_relevance), aim.target
    return ThresholdBoundary(best, least) if target is None else SearchBoundary(best, least, target.share)


def stop_of(task: SelectionTask, budget: int) -> Budget:
    if task.aim.target is not None:
        return SearchTarget(budget, task.aim.target.probability)
    return Budget(budget) if task.spending.tolerance is None else Tolerance(budget, task.spending.tolerance)


def rounds_of(task: SelectionTask, budget: int, full: int) -> int | None:
    """Return the number of rounds for a budget, or None for rounds that grow.

    A fixed budget is spent in few rounds. A selection that stops by itself, and one by the score alone, use the scores
    more often: after each full pass of the scorer, which reads `full` documents, or in rounds that grow.
    """
    spending = task.spending
    if spending.rounds != "auto":
        return spending.rounds
    if task.relevance.human and spending.tolerance is None and task.aim.target is None:
        return ROUNDS
    return None if full == 1 else -(-budget // full)
