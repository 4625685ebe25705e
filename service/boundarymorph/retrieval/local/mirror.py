"""Vectors kept twice: in this process as the truth, and on a device that nominates candidates."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.local.flat import FlatIndex, FlatView
from boundarymorph.retrieval.local.vector_index import Neighbours
from boundarymorph.retrieval.vectors import check_search

_FAILURES = (RuntimeError, MemoryError)  # of PyTorch and FAISS: no memory left, or a device that is broken
_log = logging.getLogger(__name__)


class BeyondDevice(Exception):
    """A search that the device cannot answer for certain, and why."""


class Mirror(Protocol):
    """The vectors of a view on a device. `of` may share memory with the mirror before, whose searches go on."""

    def nominate(self, view: FlatView, query: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
        """Rows, ascending and alive, among which the nearest `depth` are for certain.

        depth: less than the view's living. Raises BeyondDevice where the device cannot find that many.
        """


Reflection = TypeVar("Reflection", bound=Mirror)


@dataclass(frozen=True, slots=True)
class MirroredView(Generic[Reflection]):
    """A `VectorView` whose searches a device nominates for.

    flat: the vectors here. mirror: those on the device; None where it has no room for them.
    """

    flat: FlatView
    mirror: Reflection | None

    def __len__(self) -> int:
        return len(self.flat)

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        """As `VectorView.search`; documents that are asked for by number are searched here."""
        if within is not None or depth >= len(self):
            return self.flat.search(query, depth, within=within)
        check_search(query, depth, self.flat.matrix.shape[1])
        try:
            if self.mirror is None:
                raise BeyondDevice("it could not take over the documents of this index; the log says why")
            rows = self.mirror.nominate(self.flat, query, depth)
        except BeyondDevice as reason:
            return _by_cpu(self.flat, query, depth, str(reason))
        except _FAILURES as error:
            _log.warning("a search failed on its device and was answered by the CPU: %s", error)
            return _by_cpu(self.flat, query, depth, "it failed or has no memory left; the log says why")
        return self.flat.ranked(query, depth, rows)

    def others(self, living: NDArray[np.int64]) -> list[str]:
        """As `VectorView.others`."""
        return self.flat.others(living)


class MirroredIndex(Generic[Reflection]):
    """A `VectorIndex` that is exact at any depth: a device nominates, the full vectors in this process decide.

    Where the device cannot, this process searches, and a warning says so. That is so for one search where the device
    fails during it, as when it has no memory left; and for all searches once it could not take over what was written,
    until the index is opened anew. A subclass says how a mirror follows its view. 4d bytes a document here, and what
    the mirror needs there.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._flat = FlatIndex(dimension)
        self._writing = threading.Lock()
        view = self._flat.view()
        self._view = MirroredView(view, self._reflected(view, None))

    def __len__(self) -> int:
        return len(self._flat)

    def upsert(
        self, ids: Sequence[str], vectors: NDArray[np.float32], sequences: NDArray[np.int64] | None = None
    ) -> None:
        with self._writing:
            self._flat.upsert(ids, vectors, sequences)
            self._publish()

    def remove(self, ids: Sequence[str]) -> None:
        with self._writing:
            self._flat.remove(ids)
            self._publish()

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        return self._view.search(query, depth, within=within)

    def view(self) -> MirroredView[Reflection]:
        """The index as it is now."""
        return self._view

    def _mirrored(self, view: FlatView, before: tuple[FlatView, Reflection] | None) -> Reflection:
        """The mirror of a view. before: the last view and its mirror; rows up to its count are the same if `numbering`
        is."""
        raise NotImplementedError

    def _publish(self) -> None:
        before, view = self._view, self._flat.view()
        mirror = None if before.mirror is None else self._reflected(view, (before.flat, before.mirror))
        self._view = MirroredView(view, mirror)

    def _reflected(self, view: FlatView, before: tuple[FlatView, Reflection] | None) -> Reflection | None:
        """The mirror of a view; None from then on where the device has no room for it."""
        try:
            return self._mirrored(view, before)
        except _FAILURES as error:
            _log.warning(
                "%d vectors of %d numbers could not be brought to the device; the CPU searches them until this index "
                "is opened anew, and each answer has a warning: %s",
                view.rows.count,
                self._dimension,
                error,
            )
            return None


def _by_cpu(view: FlatView, query: NDArray[np.float32], depth: int, reason: str) -> Neighbours:
    return replace(view.search(query, depth), warnings=(f"the CPU searched, not the device: {reason}",))
