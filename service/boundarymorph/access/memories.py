"""What selections learn from each other: looked up before one, recorded after it, never waited for."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from cachetools import LRUCache, TTLCache

from boundarymorph.errors import BoundaryMorphError
from boundarymorph.memory.memory import MOST_AT_ONCE, Audited, Observation
from boundarymorph.retrieval.interfaces import MemoryKey, MemorySource, Recalled
from boundarymorph.selection.prior import Evidence
from boundarymorph.selection.promise import Audit
from boundarymorph.telemetry import metrics

log = logging.getLogger(__name__)
SECONDS, KEYS = 2.0, 1_000  # for which a process knows what is in force, and of how many memories
# Seconds for which requests wait for others of their memory, as one costs as much as many: at first, so that a young
# memory learns soon, and at most, after twice as long each time.
FIRST_GATHERING, LONGEST_GATHERING = 1.0, 16.0
WAITING = 1_024  # requests that are not recorded yet; of more, some are left out


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
        if self._waiting >= WAITING:
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
