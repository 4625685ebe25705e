"""Complete a set with documents about which the session says nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.notices import Notice
from boundarymorph.selection import Selection
from boundarymorph.selector.composition import SetLimits
from boundarymorph.selector.task import SelectionTask


def append_blank(selection: Selection, blank: NDArray[np.intp], task: SelectionTask, k: int | None) -> Selection:
    """Append documents without content to a selection, up to k documents in all.

    Args:
        selection: The selection of the session.
        blank: (n,) positions of documents without content.
        task: The task. If it limits more than the number of documents, none is appended.
        k: The most documents; None without a limit on their number.
    """
    aim = task.aim
    if not task.ranks_all:
        limited = aim.max_tokens is not None or aim.distinct is not None or aim.negligible > 0
        spare = 0 if limited or k is None else k - len(selection.documents)
        blank = blank[: max(0, spare)]
    if aim.min_relevance or not blank.size:
        return selection
    nothing, value = np.zeros(len(blank)), selection.value
    return Selection(
        np.concatenate([selection.documents, blank]),
        np.concatenate([selection.relevance, nothing]),
        np.concatenate([selection.std, nothing]),
        np.concatenate([selection.scored, np.ones(len(blank), dtype=np.bool_)]),
        None if value is None else np.concatenate([value, nothing]),
    )


def in_given_order(
    task: SelectionTask, limits: SetLimits, texts: NDArray[np.intp], blank: NDArray[np.intp], excluded: NDArray[np.intp]
) -> Selection:
    """Return the first documents of the pool that the limits allow, without any score.

    Args:
        task: The task.
        limits: The limits of the set.
        texts: (N,) numbers, equal for documents with the same text.
        blank: (n,) positions of documents without content, which come last.
        excluded: (m,) positions of documents that the task excludes.
    """
    count = len(texts)
    worth = np.arange(count, 0.0, -1.0)  # a token limit divides it by the root of the length
    if limits.lengths is not None:
        worth *= np.sqrt(limits.lengths)
    worth[blank] = -1.0  # behind all others
    worth[excluded] = -2.0  # removed below
    capacity = limits.limit.capacity_for(np.ones(count, dtype=np.bool_), texts)
    fits = capacity.with_others(capacity.fill(worth), worth)
    documents = np.setdiff1d(np.flatnonzero(fits | task.ranks_all), excluded)
    documents = np.concatenate([np.setdiff1d(documents, blank), np.intersect1d(documents, blank)])
    unknown = np.where(np.isin(documents, blank), 0.0, 0.5)
    return Selection(documents, unknown, unknown, np.zeros(len(documents), dtype=np.bool_))


def unused_limits(task: SelectionTask) -> Sequence[Notice]:
    """Warn about the fields of a task that have no effect without scores."""
    notices = []
    if task.aim.min_relevance is not None:
        said = "nothing is known of the scores, so 'min_relevance' left nothing out"
        notices.append(Notice("min-relevance-not-used", said))
    if task.relevance.boosts is not None:
        notices.append(Notice("boost-not-used", "nothing is known of the scores, so 'boost' changed nothing"))
    return notices
