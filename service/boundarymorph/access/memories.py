"""What selections learn from each other: looked up before one, told after it, never waited for."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass

from cachetools import TTLCache

from boundarymorph.errors import BoundaryMorphError
from boundarymorph.memory.memory import Audited
from boundarymorph.retrieval.memories import MemorySource, Place, Recalled
from boundarymorph.selection.prior import Evidence
from boundarymorph.selection.promise import Audit
from boundarymorph.telemetry import metrics

log = logging.getLogger(__name__)
SECONDS, PLACES = 2.0, 1_000  # for which a process knows what is in force, and of how many memories
WAITING = 16  # requests that have not been told yet; of more, some are left out


class MemoriesInUse:
    """What this process knows of memories, and what it is telling them."""

    def __init__(self) -> None:
        self._known: TTLCache[Place, Recalled] = TTLCache(PLACES, SECONDS)
        self._telling: set[asyncio.Task[None]] = set()
        self._failing = False  # whether the last one could not be told, which is logged when it begins

    async def recall(self, source: MemorySource, place: Place) -> Recalled:
        """Return what is in force; nothing where it cannot be found out, which is logged."""
        if (known := self._known.get(place)) is None:
            try:
                known = await source.recall(place)
            except BoundaryMorphError as error:
                log.warning("a selection goes without what was learned: %s", error)
                known = Recalled()
            self._known[place] = known
        return known

    def tell(self, source: MemorySource, place: Place, evidence: Evidence, caller: str) -> None:
        """Tell a memory in the background, unless too many requests wait for that."""
        if len(self._telling) >= WAITING:
            metrics.memory_requests.labels("left_out").inc()
            return
        task = asyncio.create_task(self._told(source, place, evidence, digest(caller)))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def close(self) -> None:
        """Wait until all is told, but not long."""
        if self._telling:
            _, late = await asyncio.wait(self._telling, timeout=SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _told(self, source: MemorySource, place: Place, evidence: Evidence, caller: str) -> None:
        outcome = "told"
        try:
            await source.hear(place, evidence, caller)
        except BoundaryMorphError as error:
            outcome = "failed"
            if not self._failing:
                log.warning("selections are not learned from: %s", error)
        self._failing = outcome == "failed"
        metrics.memory_requests.labels(outcome).inc()


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
        recalled = await self.memories.recall(self.source, self._place(scorer, vectors))
        metrics.memory_selections.labels("yes" if recalled.requests else "no").inc()
        return recalled

    def tell(self, scorer: str, vectors: str, evidence: Evidence) -> None:
        self.memories.tell(self.source, self._place(scorer, vectors), evidence, self.caller)

    async def audited(self, scorer: str, vectors: str, kind: str, audit: Audit) -> None:
        await self.source.audited(self._place(scorer, vectors), Audited(kind, audit, digest(self.caller)))

    def _place(self, scorer: str, vectors: str) -> Place:
        return Place(self.index, self.name, scorer, vectors, self.tenant)
