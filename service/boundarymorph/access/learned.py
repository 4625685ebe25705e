"""What a request gets from the past, and gives to it: memories, and audits while nobody waits."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from cachetools import LRUCache, TTLCache

from boundarymorph.errors import BoundaryMorphError
from boundarymorph.inference.concurrency import CALLER, Deadline
from boundarymorph.memory.memory import MOST_AT_ONCE, Audited, Observation
from boundarymorph.retrieval.interfaces import MemoryKey, MemorySource, Recalled
from boundarymorph.selection.pool import Evidence
from boundarymorph.selection.promise import Audit
from boundarymorph.selector.documents import Room
from boundarymorph.selector.selector import Selector, task_of_audit
from boundarymorph.selector.task import SelectionTask, unaudited
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics

log = logging.getLogger(__name__)
SECONDS, KEYS = 2.0, 1_000  # for which a process knows what is in force, and of how many memories
# Seconds for which requests wait for others of their memory, as one costs as much as many: at first, so that a young
# memory learns soon, and at most, after twice as long each time.
FIRST_GATHERING, LONGEST_GATHERING = 1.0, 16.0
UNRECORDED = 1_024  # requests that are not recorded yet; of more, some are left out


class MemoriesInUse:
    """What this process knows of memories, and what it has not recorded yet."""

    def __init__(self) -> None:
        self._known: TTLCache[MemoryKey, Recalled] = TTLCache(KEYS, SECONDS)
        self._gathered: dict[MemoryKey, _Gathered] = {}
        self._seconds: LRUCache[MemoryKey, float] = LRUCache(KEYS)  # for which each gathers the next time
        self._waiting = 0  # requests, gathered or being recorded
        self._recording: set[asyncio.Task[None]] = set()
        self._failing = False  # whether the last ones could not be recorded, which is logged when it begins

    async def recall(self, source: MemorySource, key: MemoryKey) -> Recalled:
        """Return what is in force; nothing where it cannot be found out, which is logged."""
        if (known := self._known.get(key)) is None:
            try:
                known = await source.recall(key)
            except BoundaryMorphError as error:
                log.warning("a selection goes without what was learned: %s", error)
                known = Recalled()
            self._known[key] = known
        return known

    def record(self, source: MemorySource, key: MemoryKey, evidence: Evidence, caller: str) -> None:
        """Record a request in the background, with others of its memory, unless too many wait for that."""
        if self._waiting >= UNRECORDED:
            metrics.memory_requests.labels("left_out").inc()
            return
        self._waiting += 1
        if (gathered := self._gathered.get(key)) is None:
            seconds = self._seconds.get(key, FIRST_GATHERING)
            self._seconds[key] = min(2.0 * seconds, LONGEST_GATHERING)
            timer = asyncio.get_running_loop().call_later(seconds, self._start, source, key)
            gathered = self._gathered[key] = _Gathered(source, timer)
        gathered.observations.append(Observation(evidence, digest(caller)))
        if len(gathered.observations) == MOST_AT_ONCE:
            self._start(source, key)

    async def close(self) -> None:
        """Record what waits, but wait not long for it."""
        for key, gathered in list(self._gathered.items()):
            self._start(gathered.source, key)
        if self._recording:
            _, late = await asyncio.wait(self._recording, timeout=SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _start(self, source: MemorySource, key: MemoryKey) -> None:
        gathered = self._gathered.pop(key)
        gathered.timer.cancel()
        task = asyncio.create_task(self._record(source, key, gathered.observations))
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)

    async def _record(self, source: MemorySource, key: MemoryKey, observations: Sequence[Observation]) -> None:
        outcome = "recorded"
        try:
            await source.record(key, observations)
        except BoundaryMorphError as error:
            outcome = "failed"
            if not self._failing:
                log.warning("selections are not learned from: %s", error)
        finally:
            self._waiting -= len(observations)
        self._failing = outcome == "failed"
        metrics.memory_requests.labels(outcome).inc(len(observations))


@dataclass(slots=True)
class _Gathered:
    """Requests of one memory that wait until there are enough of them, or the timer ends."""

    source: MemorySource
    timer: asyncio.TimerHandle
    observations: list[Observation] = field(default_factory=list)


def digest(caller: str) -> str:
    """Return what stands for a caller in a memory."""
    return hashlib.sha256(caller.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class TaskMemory:
    """The memory of one selection; see `selector.task.Remembering`."""

    memories: MemoriesInUse
    source: MemorySource
    index: str | None
    name: str
    tenant: str
    caller: str

    async def recall(self, scorer: str, vectors: str) -> Recalled:
        recalled = await self.memories.recall(self.source, self._key(scorer, vectors))
        metrics.memory_selections.labels("yes" if recalled.requests else "no").inc()
        return recalled

    def record(self, scorer: str, vectors: str, evidence: Evidence) -> None:
        self.memories.record(self.source, self._key(scorer, vectors), evidence, self.caller)

    async def record_audit(self, scorer: str, vectors: str, kind: str, audit: Audit) -> None:
        await self.source.record_audit(self._key(scorer, vectors), Audited(kind, audit, digest(self.caller)))

    def _key(self, scorer: str, vectors: str) -> MemoryKey:
        return MemoryKey(self.index, self.name, scorer, vectors, self.tenant)


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
