"""What was learned: the calibrations and memories of indexes, which live with them, and of pools, which have a folder
and a file of their own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self

import orjson

from boundarymorph.calibration.belongings import Belongings, CalibrationFolder, checked_name
from boundarymorph.calibration.calibration import Calibration
from boundarymorph.errors import InvalidIndexName, InvalidInput, UnknownIndex
from boundarymorph.memory.memory import Audited, Memory, Observation, prior_of_json
from boundarymorph.memory.store import Memories
from boundarymorph.retrieval.catalog import Catalog
from boundarymorph.retrieval.storage import storage_errors
from boundarymorph.selection.prior import DEFAULT_PRIOR, TrendPrior
from boundarymorph.settings import Settings

MOST_NAMES = 1_000  # that are told of where there is none of a name
_log = logging.getLogger(__name__)
TROUBLE = "calibrations cannot be read or written"
POOLS = ".memories.sqlite3"  # in the data directory


@dataclass(frozen=True, slots=True)
class Found:
    """The calibrations of one name. known: the names that there are, each with its index or None, unless the caller may
    use the first of the calibrations whoever it is. distinct: the field of the metadata by which selections from the
    index are distinct by default."""

    calibrations: Sequence[Calibration] = ()
    known: Sequence[tuple[str, str | None]] = ()
    distinct: str | None = None

    def to_json(self) -> dict[str, Any]:
        made = [one.to_json() for one in self.calibrations]
        return {"calibrations": made, "known": self.known, "distinct": self.distinct}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Found:
        """Raises InvalidInput, KeyError, TypeError or ValueError for what is none."""
        known = [(str(name), None if index is None else str(index)) for name, index in values["known"]]
        by = values.get("distinct")
        return cls(
            [Calibration.of_json(made) for made in values["calibrations"]], known, None if by is None else str(by)
        )


class CalibrationSource(Protocol):
    """Where calibrations are found: in this process, or at a retriever."""

    async def calibrations(self, name: str | None, index: str | None) -> Found:
        """Return those of a name, first that of the index; without a name the default of the index, if it has one.

        Raises UnknownIndex, and InvalidInput for what is no name or a calibration that cannot be read.
        """


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


class Learned:
    """The calibrations and memories of a catalog and of pools. Methods block, and raise StorageUnavailable or
    StorageFull."""

    def __init__(self, catalog: Catalog, settings: Settings) -> None:
        self._catalog, self._pools, self._settings = catalog, pools_of(settings), settings.memory
        directory = settings.data_directory
        self._memories_of_pools = Memories(directory / POOLS, lambda: directory.mkdir(parents=True, exist_ok=True))

    def find(self, name: str | None, index: str | None) -> Found:
        """See `CalibrationSource.calibrations`."""
        with storage_errors(TROUBLE):
            own = None if index is None else self._catalog.belongings(index)
            found = self._found(name, index, own)
            return found if own is None else replace(found, distinct=own.distinct())

    def keep(self, made: Calibration) -> None:
        """Write a calibration in place of an earlier one of its name. Raises UnknownIndex."""
        with storage_errors(TROUBLE):
            if made.index is None:
                self._pools.keep(made)
            else:
                held = self._catalog.belongings(made.index)
                held.keep(replace(made, name=held.index) if made.name == made.index else made)

    def recall(self, key: MemoryKey) -> Recalled:
        """See `MemorySource`."""
        return Recalled.of(self._memories(key).get(key.text, observations=False))

    def record(self, key: MemoryKey, observations: Sequence[Observation]) -> None:
        """See `MemorySource`."""
        if not self._settings.frozen:
            self._memories(key).record(key.text, observations, self._settings.requests)

    def record_audit(self, key: MemoryKey, audited: Audited) -> None:
        """See `MemorySource`."""
        if not self._settings.frozen:
            self._memories(key).record_audit(key.text, audited)

    def _found(self, name: str | None, index: str | None, own: Belongings | None) -> Found:
        """own: what belongs to the index."""
        if name is None:
            made = None if own is None else _readable(own, None)
            return Found([made] if made else [])
        if own is not None and (made := _of(own, name)) is not None:
            return Found([replace(made, index=index)])  # by the name that the caller knows it by
        if (found := self._of_index_named(name)) is not None:
            return Found([found], list(self._names()))
        checked_name(name)
        pooled = self._pools.get(name)
        if pooled is not None and pooled.index is None:  # earlier versions kept those of indexes here, too
            return Found([pooled])
        others = [made for held in self._catalog.all_belongings() if (made := _readable(held, name))]
        return Found(others, list(self._names()))

    def _of_index_named(self, name: str) -> Calibration | None:
        try:
            return _readable(self._catalog.belongings(name), None)
        except (InvalidIndexName, UnknownIndex, InvalidInput):
            return None

    def _names(self) -> Iterator[tuple[str, str | None]]:
        for name in self._pools.names()[:MOST_NAMES]:
            try:
                made = self._pools.get(name)
            except InvalidInput:
                continue
            if made is not None and made.index is None:
                yield name, None
        for held in self._catalog.all_belongings():
            for name in held.names()[:MOST_NAMES]:
                yield name, held.index

    def _memories(self, key: MemoryKey) -> Memories:
        if key.index is not None:
            return self._catalog.belongings(key.index).memories
        checked_name(key.name)
        return self._memories_of_pools


def pools_of(settings: Settings) -> CalibrationFolder:
    """Return the folder of the calibrations of pools."""
    return CalibrationFolder(settings.calibration.directory or settings.data_directory / ".calibrations")


def _of(held: Belongings, name: str) -> Calibration | None:
    if name != held.index:
        checked_name(name)
    return held.calibration(name)


def _readable(held: Belongings, name: str | None) -> Calibration | None:
    """Return a calibration for which nobody asked by index and name; one that cannot be read is logged."""
    try:
        return held.calibration(name)
    except InvalidInput as error:
        _log.warning("the index %r is searched without its calibration: %s", held.index, error)
        return None
