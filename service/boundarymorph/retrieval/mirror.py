"""Vectors kept twice: in this process as the truth, and on a device that nominates candidates."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.index import FlatIndex, FlatView, Neighbours, check_search


class BeyondDevice(Exception):
    """A search that the device cannot answer for certain, and why."""


class Mirror(Protocol):
    """The vectors of a view on a device. `of` may share memory with the mirror before, whose searches go on."""

    def nominate(self, view: FlatView, query: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
        """Rows, ascending and alive, among which the nearest `depth` are for certain.

        depth: less than the view's living. Raises BeyondDevice where it cannot tell.
        """


Reflection = TypeVar("Reflection", bound=Mirror)


@dataclass(frozen=True, slots=True)
class MirroredView(Generic[Reflection]):
    """A `VectorView` whose searches a device nominates for. flat: the vectors here; mirror: those on the device."""

    flat: FlatView
    mirror: Reflection

    def __len__(self) -> int:
        return len(self.flat)

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        """As `VectorView.search`; documents that are asked for by number are searched here."""
        if within is not None or depth >= len(self):
            return self.flat.search(query, depth, within=within)
        check_search(query, depth, self.flat.matrix.shape[1])
        try:
            rows = self.mirror.nominate(self.flat, query, depth)
        except BeyondDevice as reason:
            return replace(self.flat.search(query, depth), warnings=(f"the CPU searched, not the device: {reason}",))
        return self.flat.ranked(query, depth, rows)

    def strays(self, living: NDArray[np.int64]) -> list[str]:
        """As `VectorView.strays`."""
        return self.flat.strays(living)


class MirroredIndex(Generic[Reflection]):
    """A `VectorIndex` that is exact at any depth: a device nominates, the full vectors in this process decide.

    Where the device cannot, this process searches, and a warning says so. A subclass says how a mirror follows its
    view. 4d bytes a document here, and what the mirror needs there.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._flat = FlatIndex(dimension)
        self._writing = threading.Lock()
        self._view = MirroredView(self._flat.view(), self._mirrored(self._flat.view(), None))

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
        view = self._flat.view()
        self._view = MirroredView(view, self._mirrored(view, (self._view.flat, self._view.mirror)))
