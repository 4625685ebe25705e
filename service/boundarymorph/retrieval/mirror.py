"""Vectors kept twice: in this process as the truth, and on a device that nominates candidates."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.index import FlatIndex, FlatView, Neighbours, Within, check_search


class BeyondDevice(Exception):
    """A search that the device cannot answer for certain, and why."""


class Mirror(Protocol):
    """The vectors of a view on a device. `of` may share memory with the mirror before, whose searches go on."""

    def nominate(self, view: FlatView, query: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
        """Rows, ascending and alive, among which the nearest `depth` are for certain.

        depth: less than the view's living. Raises BeyondDevice where it cannot tell.
        """


Reflection = TypeVar("Reflection", bound=Mirror)


class MirroredIndex(Generic[Reflection]):
    """A `VectorIndex` that is exact at any depth: a device nominates, the full vectors in this process decide.

    Where the device cannot, this process searches, and a warning says so. A subclass says how a mirror follows its
    view. 4d bytes a document here, and what the mirror needs there.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._flat = FlatIndex(dimension)
        self._writing = threading.Lock()
        self._state = (self._flat.view(), self._mirrored(self._flat.view(), None))

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

    def search(self, query: NDArray[np.float32], depth: int, *, within: Within | None = None) -> Neighbours:
        check_search(query, depth, self._dimension)
        if within is not None:
            return self._flat.search(query, depth, within=within)
        view, mirror = self._state
        if depth >= view.living:
            return view.search(query, depth)
        try:
            rows = mirror.nominate(view, query, depth)
        except BeyondDevice as reason:
            return replace(view.search(query, depth), warnings=(f"the CPU searched, not the device: {reason}",))
        return view.ranked(query, depth, rows)

    def _mirrored(self, view: FlatView, before: tuple[FlatView, Reflection] | None) -> Reflection:
        """The mirror of a view. before: the last view and its mirror; rows up to its count are the same if `numbering`
        is."""
        raise NotImplementedError

    def _publish(self) -> None:
        view = self._flat.view()
        self._state = (view, self._mirrored(view, self._state))
