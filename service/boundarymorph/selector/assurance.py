"""What audits of past selections say of a promise, before its selection."""

from __future__ import annotations

from collections.abc import Sequence

from boundarymorph.memory.memory import Audited
from boundarymorph.selection.methods import DEFAULT
from boundarymorph.selection.promise import certified
from boundarymorph.selector.task import Assurance, SelectionTask


def kind_of(task: SelectionTask) -> str:
    """Return what has to be equal for audits to tell something of a selection."""
    rounds = "" if task.rounds == "auto" else f", rounds = {task.rounds}"
    return f"k = {task.k}, relevance to {'people' if task.to_people else 'the scorer'}{rounds}"


def unaudited(task: SelectionTask) -> str | None:
    """Return the option with which selections are not audited, if the task has one."""
    options = {
        "method": task.method != DEFAULT,
        "queries": task.queries,
        "max_tokens": task.max_tokens,
        "min_relevance": task.min_relevance is not None,
        "distinct": task.distinct,
        "diversity": task.diversity,
        "calibration": task.calibration,
        "instruction": task.instruction,
        "exclude_ids": task.excluded,
        "known_scores": task.known,
    }
    return next((name for name, given in options.items() if given), None)


def assured(task: SelectionTask, audits: Sequence[Audited]) -> Assurance:
    """Return what audits say of the promise of a task. What is not certified stops by what it believes."""
    promise = task.promise
    assert promise is not None
    if (option := unaudited(task)) is not None:
        return Assurance(promise.loss, 0, "memory", f"selections with {option!r} are not audited")
    if task.memory is None or task.memory.index is None:
        return Assurance(
            promise.loss, 0, "memory", "only selections of an index that learn from each other are audited"
        )
    of_kind = [one.audit for one in audits if one.kind == kind_of(task)]
    found = certified(of_kind, promise, task.budget)
    if found.threshold is not None:
        return Assurance(found.threshold, found.audits)
    share = f"{1 - promise.probability:.0%} of {found.audits} audited selections with {kind_of(task)}"
    match found.missing:
        case "calls":
            detail = f"after {task.budget} calls more than {share} lose more; allow more calls"
        case "scorer":
            detail = f"more than {share} lose more however many calls are made; promise less, or use a better scorer"
        case _:
            least = max(promise.fewest, found.audits + 1)
            detail = f"{found.audits} selections with {kind_of(task)} were audited, and {least} or more are needed"
    return Assurance(promise.loss, found.audits, found.missing, detail)
