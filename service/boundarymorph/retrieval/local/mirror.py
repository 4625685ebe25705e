"""Vectors kept twice: in this process, which decides, and on a device, which nominates candidates."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.local.flat import FlatIndex, FlatView
from boundarymorph.retrieval.local.rows import Neighbours, Rows
from boundarymorph.retrieval.vectors import check_search

_FAILURES = (RuntimeError, MemoryError)  # of PyTorch and FAISS: out of memory, or a failing device
_log = logging.getLogger(__name__)


class BeyondDevice(Exception):
    """The device cannot guarantee an exact answer to this search; the message says why."""


class Mirror(Protocol):
    """The vectors of a view on a device."""

    def extended(self, view: FlatView, kept: int) -> Mirror:
        """Return the mirror of a view whose first `kept` rows are those here, where searches may go on meanwhile."""

    def nominate(self, view: FlatView, query: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
        """Return ascending living rows that certainly include the nearest `depth`.

        depth: less than the number of living rows. Raises BeyondDevice if the device cannot find that many.
        """


@dataclass(frozen=True, slots=True)
class MirroredView:
    """A `VectorView` whose searches use candidates from a device.

    flat: the vectors here. mirror: those on the device; None if they did not fit.
    """

    flat: FlatView
    mirror: Mirror | None

    @property
    def rows(self) -> Rows:
        return self.flat.rows

    def __len__(self) -> int:
        return len(self.flat)

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        """See `VectorView.search`. Documents given by `within` are searched here."""
        if within is not None or depth >= len(self):
            return self.flat.search(query, depth, within=within)
        check_search(query, depth, self.flat.matrix.shape[1])
        try:
            if self.mirror is None:
                raise BeyondDevice("it could not load the documents of this index; the log says why")
            rows = self.mirror.nominate(self.flat, query, depth)
        except BeyondDevice as reason:
            return _by_cpu(self.flat, query, depth, str(reason))
        except _FAILURES as error:
            _log.warning("a search failed on its device and was answered by the CPU: %s", error)
            return _by_cpu(self.flat, query, depth, "it failed or is out of memory; the log says why")
        return self.rows.ranked(query, depth, rows, self.flat.matrix, rows)


class MirroredIndex(ABC):
    """A `VectorIndex` that is exact at any depth: a device nominates, the full vectors in this process decide.

    If the device cannot, this process searches, and a warning says so: for one search if the device fails during it,
    for instance out of memory; for all searches, until the index is reopened, if new vectors could not be loaded to the
    device. Takes 4d bytes per document here, plus what the mirror needs.
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

    def view(self) -> MirroredView:
        """The current state of the index."""
        return self._view

    @abstractmethod
    def _empty(self) -> Mirror:
        """Return the mirror of no rows."""

    def _publish(self) -> None:
        before, view = self._view, self._flat.view()
        self._view = MirroredView(view, None if before.mirror is None else self._reflected(view, before))

    def _reflected(self, view: FlatView, before: MirroredView | None) -> Mirror | None:
        """Return the mirror of a view; from the first failure on always None."""
        try:
            if before is None or before.mirror is None or before.flat.rows.numbering != view.rows.numbering:
                return self._empty().extended(view, 0)
            return before.mirror.extended(view, before.flat.rows.count)
        except _FAILURES as error:
            _log.warning(
                "%d vectors of %d numbers could not be loaded to the device; the CPU searches them until this index "
                "is reopened, and each answer has a warning: %s",
                view.rows.count,
                self._dimension,
                error,
            )
            return None


def _by_cpu(view: FlatView, query: NDArray[np.float32], depth: int, reason: str) -> Neighbours:
    return replace(view.search(query, depth), warnings=(f"the CPU searched, not the device: {reason}",))
