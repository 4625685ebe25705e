"""Audits: a selection of the past is made again and scored to the end, for what it would have lost at each look."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.concurrency import Deadline
from boundarymorph.memory.memory import LOOKS
from boundarymorph.selection import SelectionSession
from boundarymorph.selection.promise import Audit, Look
from boundarymorph.selector.documents import Room, texts_of
from boundarymorph.selector.run import SelectionRun
from boundarymorph.selector.task import SelectionTask

PIECE = 16  # documents that are scored at a time, after which a caller's work goes first
Idle = Callable[[int], Awaitable[None]]  # waits until so many scores take nobody's time


@dataclass(frozen=True, slots=True)
class Made:
    """An audit. believed: the expected loss at the last look."""

    audit: Audit
    believed: float


def task_of_audit(task: SelectionTask, budget: int, deadline: Deadline, room: Room) -> SelectionTask:
    """Return the task of an audit, which makes as many calls as a selection that stops by itself may, and reuses
    nothing. room: for its texts."""
    return replace(
        task,
        budget=budget,
        settle=0.0,
        promise=None,
        goal="set",
        deadline=deadline,
        accepts="complete",
        reuse=False,
        return_documents=False,
        explain_pool=False,
        room=room,
    )


async def audit(run: SelectionRun, task: SelectionTask, most: int, idle: Idle) -> Made | None:
    """Carry out the new run of a `task_of_audit`. most: candidates of a pool that is scored to the end. Returns None
    for a larger one, if nothing is to be decided, where scores cost money, and if a document gets no score.

    Raises what retriever and scorer raise.
    """
    scores = run.scores
    await run.retrieve()
    if len(run.pool) > most or scores.bill is not None or scores.trips.price:
        return None
    await run.recall()
    session, looks = run.session, list[tuple[int, float, float, NDArray[np.intp]]]()
    if not isinstance(session, SelectionSession) or run.calibrated.told:
        return None
    while run.batch.size:
        await idle(len(run.batch))
        await run.score()
        loss = min(1.0, session.expected_loss())
        looks.append((session.spent, session.settles_at, loss, session.selection().documents))
    known = {seen.document: seen.score for seen in session.history}
    rest = np.setdiff1d(np.arange(len(run.pool)), list(known))
    for start in range(0, len(rest), PIECE):
        part = await readable(run, rest[start : start + PIECE])
        await idle(len(part))
        texts = texts_of(run.documents.at(part))
        if len(part):
            values = await scores.score(texts, deadline=task.deadline.moment)
            known |= dict(zip(part.tolist(), values.tolist(), strict=True))
    if not looks or not np.isfinite(list(known.values())).all():
        return None
    real = await asyncio.to_thread(session.real_losses, known, [chosen for *_, chosen in looks])
    found = [Look(calls, believed, loss) for (calls, believed, *_), loss in zip(looks, real, strict=True)]
    return Made(Audit(tuple(found[-LOOKS:])), looks[-1][2])


async def readable(run: SelectionRun, positions: NDArray[np.intp]) -> NDArray[np.intp]:
    """Read documents, and return the positions of those that are there and have something to read."""
    await run.documents.read(positions, copies=False)
    gone = np.union1d(run.documents.deleted(positions), run.documents.without_content(positions))
    return np.setdiff1d(positions, gone)
