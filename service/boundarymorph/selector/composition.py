"""The boundary and the stopping rule of a task."""

from __future__ import annotations

from collections.abc import Callable

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
from boundarymorph.selector.task import SelectionTask


def boundary_of(task: SelectionTask, limit: Limit, method: Config, threshold: Callable[[float], float]) -> Boundary:
    """Return the boundary of a task. threshold: converts a minimum relevance to the scale of the session."""
    best = Best(limit, method, task.negligible, Diverse(task.diversity) if task.diversity else as_chosen)
    if task.min_relevance is None:
        return best if task.goal == "set" else Ordered(best)
    least = threshold(task.min_relevance)
    return Threshold(best, least) if task.target is None else Find(best, least, task.target.share)


def stop_of(task: SelectionTask, budget: int) -> Budget:
    """Return the stopping rule of a task."""
    if task.target is not None:
        return Found(budget, task.target.probability)
    return Budget(budget) if task.settle is None else Tolerance(budget, task.settle)
