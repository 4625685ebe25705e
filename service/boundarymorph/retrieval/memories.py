"""The memories of indexes, which live with them, and of pools, which have a file of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

import orjson

from boundarymorph.calibration.belongings import checked_name
from boundarymorph.memory.memory import Audited, Memory, Observation, prior_of_json
from boundarymorph.memory.store import Memories
from boundarymorph.retrieval.catalog import Catalog
from boundarymorph.selection.prior import DEFAULT_PRIOR, TrendPrior
from boundarymorph.settings import Settings

POOLS = ".memories.sqlite3"  # in the data directory


@dataclass(frozen=True, slots=True)
class MemoryKey:
    """Which memory: of an index, or of pools by a name; for each scorer, source of vectors, and tenant one."""

    index: str | None
    name: str
    scorer: str
    vectors: str
    tenant: str

    @property
    def text(self) -> str:
        return orjson.dumps([self.name, self.scorer, self.vectors, self.tenant]).decode()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Recalled:
    """The prior of a memory, and from how many requests it was learned; the default and 0 while none is in force.
    audits: all that it has."""

    prior: TrendPrior = DEFAULT_PRIOR
    requests: int = 0
    audits: tuple[Audited, ...] = ()

    @classmethod
    def of(cls, memory: Memory) -> Self:
        if memory.prior is None or not memory.in_force:
            return cls(audits=memory.audits)
        return cls(memory.prior, memory.learned_at, memory.audits)

    def to_json(self) -> dict[str, Any]:
        audits = [one.to_json() for one in self.audits]
        return {"prior": asdict(self.prior), "requests": self.requests, "audits": audits}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for what is none."""
        audits = tuple(Audited.of_json(one) for one in values.get("audits", ()))
        return cls(prior_of_json(values["prior"]), int(values["requests"]), audits)


class MemorySource(Protocol):
    """Where memories are: in this process, or at a retriever."""

    async def recall(self, key: MemoryKey) -> Recalled:
        """Return what is in force. Raises UnknownIndex, and what the source raises."""

    async def record(self, key: MemoryKey, observations: Sequence[Observation]) -> None:
        """Add requests to the memory. Raises as `recall` does."""

    async def record_audit(self, key: MemoryKey, audited: Audited) -> None:
        """Add an audit to the memory. Raises as `recall` does."""


class AllMemories:
    """The memories of a catalog and of pools. Methods block, and raise UnknownIndex, StorageUnavailable or
    StorageFull."""

    def __init__(self, catalog: Catalog, settings: Settings) -> None:
        self._catalog, self._settings = catalog, settings.memory
        directory = settings.data_directory
        self._pools = Memories(directory / POOLS, lambda: directory.mkdir(parents=True, exist_ok=True))

    def recall(self, key: MemoryKey) -> Recalled:
        return Recalled.of(self._of(key).get(key.text, observations=False))

    def record(self, key: MemoryKey, observations: Sequence[Observation]) -> None:
        if not self._settings.frozen:
            self._of(key).record(key.text, observations, self._settings.requests)

    def record_audit(self, key: MemoryKey, audited: Audited) -> None:
        if not self._settings.frozen:
            self._of(key).record_audit(key.text, audited)

    def _of(self, key: MemoryKey) -> Memories:
        if key.index is not None:
            return self._catalog.belongings(key.index).memories
        checked_name(key.name)
        return self._pools
