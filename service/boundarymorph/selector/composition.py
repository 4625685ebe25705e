"""What a task becomes once its candidates are known: its defaults, boundary and stopping rule."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from boundarymorph.errors import InvalidInput
from boundarymorph.retrieval.artifacts import Artifacts
from boundarymorph.retrieval.candidates import IndexSource
from boundarymorph.retrieval.filters import read_path
from boundarymorph.selection import (
    Best,
    Boundary,
    Budget,
    Config,
    Diverse,
    Find,
    Found,
    Limit,
    Ordered,
    Threshold,
    Tolerance,
)
from boundarymorph.selection.boundary import as_chosen
from boundarymorph.selector.documents import Grouping
from boundarymorph.selector.task import SelectionTask

log = logging.getLogger(__name__)
ROUNDS = 3  # of a fixed budget: people find as much as with more (docs/results.md)


def completed(task: SelectionTask, found: Artifacts) -> SelectionTask:
    """Return the task with the artifacts of its index: its calibration, and at most one document for each value of its
    field `distinct`, as far as the request lets them apply."""
    if not isinstance(task.source, IndexSource):
        return task
    defaults, wanted, relevance = task.source.defaults, task.wanted, task.relevance
    if "calibration" in defaults:
        relevance = replace(relevance, calibration=found.calibration)
    if "distinct" in defaults and found.distinct is not None:
        try:
            wanted = replace(wanted, distinct=Grouping(read_path(found.distinct, "distinct")))
        except InvalidInput as error:  # the artifact of the index is damaged
            log.warning("the index %r is searched without its 'distinct': %s", task.source.index, error)
    return replace(task, wanted=wanted, relevance=relevance)


def boundary_of(task: SelectionTask, limit: Limit, method: Config, threshold: Callable[[float], float]) -> Boundary:
    """Return the boundary of a task. threshold: converts a minimum relevance to the scale of the session."""
    best = Best(
        limit, method, task.wanted.negligible, Diverse(task.wanted.diversity) if task.wanted.diversity else as_chosen
    )
    if task.wanted.min_relevance is None:
        return best if task.spending.goal == "set" else Ordered(best)
    least = threshold(task.wanted.min_relevance)
    return Threshold(best, least) if task.wanted.target is None else Find(best, least, task.wanted.target.share)


def stop_of(task: SelectionTask, budget: int) -> Budget:
    """Return the stopping rule of a task."""
    if task.wanted.target is not None:
        return Found(budget, task.wanted.target.probability)
    return Budget(budget) if task.spending.settle is None else Tolerance(budget, task.spending.settle)


def rounds_of(task: SelectionTask, budget: int, full: int) -> int | None:
    """Return in how many rounds a budget is spent, or None for rounds that grow.

    A fixed budget is spent in few. A selection that stops by itself, and one by the score alone, looks at the scores
    more often: after each full pass of the scorer, which reads `full` documents, or in rounds that grow.
    """
    spending = task.spending
    if spending.rounds != "auto":
        return spending.rounds
    if task.relevance.human and spending.settle is None and task.wanted.target is None:
        return ROUNDS
    return None if full == 1 else -(-budget // full)
