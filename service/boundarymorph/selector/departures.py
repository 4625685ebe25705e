"""Where a selection by the paper's method departed from the paper's algorithm."""

from __future__ import annotations

from collections import Counter

import numpy as np

from boundarymorph.selection import SelectionSession
from boundarymorph.selection.methods import PAPER
from boundarymorph.selector.task import SelectionTask


def departure(task: SelectionTask, session: SelectionSession, reused: int) -> str | None:
    """Describe what made the calls differ from the paper's, and which options avoid it; None if they do not differ or
    the task uses another method. reused: the number of scores known from earlier tasks."""
    if task.method != PAPER:
        return None
    brought = int(np.count_nonzero(session.belief.scored)) - len(session.history) - reused
    largest = max(Counter(observation.round for observation in session.history).values(), default=0)
    found = []
    if largest > 1:
        found.append(f'calls went out in rounds of up to {largest} ("batch_size": 1 makes them one by one)')
    if reused:
        found.append(f'{reused} scores were known from earlier requests ("reuse": false starts from none)')
    if brought:
        found.append(f"{brought} scores came with the pool")
    if task.min_relevance is not None:
        found.append('calls went to where "min_relevance" is in doubt')
    if session.orders and session.history:
        found.append('calls went to the order, as every document fits ("spend": "set" makes none)')
    return f"{PAPER!r} departed from the paper's algorithm: {'; '.join(found)}" if found else None
