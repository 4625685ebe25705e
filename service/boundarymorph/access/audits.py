"""Audits of past selections in this process, while nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack

from boundarymorph.errors import BoundaryMorphError
from boundarymorph.inference.deadline import Deadline
from boundarymorph.inference.shares import CALLER
from boundarymorph.selector.audit import task_of_audit
from boundarymorph.selector.documents import Room
from boundarymorph.selector.selector import Selector
from boundarymorph.selector.task import SelectionTask, unaudited
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics

log = logging.getLogger(__name__)
WAITING = 64  # selections that are to be audited; more are left out
PAUSE = 0.05  # seconds between looks at whether the process is idle
QUIET = 0.5  # seconds without a request, after which it is
HOUR = 3_600.0
LONGEST = HOUR  # of an audit, with its pauses


class Audits:
    """Selections to audit, and the audit in progress. Each is forgotten when its audit begins."""

    def __init__(
        self,
        settings: Settings,
        busy: Callable[[], bool],
        room: Callable[[ExitStack], Room],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """busy: whether a caller waits for this process; room: for an audit, until the end of its stack."""
        self._settings, self._busy, self._room, self._clock = settings, busy, room, clock
        self._waiting: deque[SelectionTask] = deque()
        self._asked = clock() - QUIET  # when a caller was seen last
        self._calls = float(settings.memory.audit_calls)  # that are left at the moment below
        self._counted = clock()

    def offer(self, task: SelectionTask) -> None:
        """Have a share of the selections audited that can be."""
        memory = self._settings.memory
        of_index = task.memory is not None and task.memory.index is not None
        if not of_index or memory.frozen or unaudited(task) or random.random() >= memory.audits:  # noqa: S311
            return
        if len(self._waiting) >= WAITING:
            metrics.audits.labels("left_out").inc()
        else:
            self._waiting.append(task)

    async def run(self, selector: Callable[[], Selector | None]) -> None:
        """Audit, until cancelled. selector: of the process, None before it is built."""
        CALLER.set("")  # nobody's
        while True:
            await self._idle(0)
            found = selector() if self._waiting else None
            if found is None:
                await asyncio.sleep(QUIET)
            else:
                await self._audit(found, self._waiting.popleft())

    async def _audit(self, selector: Selector, task: SelectionTask) -> None:
        settings, outcome = self._settings, "left_out"
        deadline = Deadline(self._clock() + LONGEST, self._clock)
        try:
            with ExitStack() as until_end:
                budget = min(settings.auto_budget, settings.limits.budget)
                again = task_of_audit(task, budget, deadline, self._room(until_end))
                made = await selector.audit(again, settings.memory.audit_pool, self._idle)
        except BoundaryMorphError as error:
            outcome = "failed"
            log.info("a selection was not audited: %s", error)
        except Exception:
            outcome = "failed"
            log.exception("an audit failed")
        else:
            if made is not None:
                outcome = "done"
                metrics.audit_loss.labels("real").observe(made.audit.looks[-1].real)
                metrics.audit_loss.labels("believed").observe(made.believed)
        metrics.audits.labels(outcome).inc()

    async def _idle(self, calls: int) -> None:
        """Wait until nobody has waited for this process for a while, and so many calls may be made."""
        while True:
            now, most = self._clock(), float(self._settings.memory.audit_calls)
            self._calls = min(most, self._calls + most * (now - self._counted) / HOUR)
            self._counted = now
            if self._busy():
                self._asked = now
            elif now - self._asked >= QUIET and self._calls >= min(calls, most):
                self._calls -= calls
                return
            await asyncio.sleep(PAUSE)
