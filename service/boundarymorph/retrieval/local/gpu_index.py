"""Exact search with FAISS on a GPU, as deep as its kernels go, and on the CPU beyond."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.retrieval.local.mirror import BeyondDevice, MirroredIndex
from boundarymorph.retrieval.local.vectors import FlatView, rounding_error

NATIVE_LIMIT = 2_048  # nearest that FAISS's own kernels return
CUVS_LIMIT = 16_384  # and those of cuVS
_MARGIN = 64  # nominated beyond the depth, so that the last of them shows that nothing was missed
_faiss: Any = faiss  # of whose types it tells little
_log = logging.getLogger(__name__)


def limit(library: Any) -> int:
    """How many nearest a build of FAISS returns on a GPU at once; 0 where it has no GPU support."""
    if not hasattr(library, "StandardGpuResources"):
        return 0
    return CUVS_LIMIT if "CUVS" in str(library.get_compile_options()).upper() else NATIVE_LIMIT


def reaches(depth: int, dead: int, count: int, most: int) -> list[int]:
    """How many nearest to ask a GPU for, one attempt after the other; none where the CPU has to search.

    depth: wanted, of the living; dead: rows that are in the way; count: all rows; most: the GPU's limit. An answer is
    proof that nothing was missed once its last score lies clearly below that of the depth-th living row, so the
    attempts go on to what the GPU allows. It is never asked for less than the depth, nor for more than its limit.
    """
    attempts = []
    reach = depth + dead + _MARGIN
    while reach <= most:
        attempts.append(min(reach, count))
        if reach >= count:
            break
        reach *= 2
    return attempts


class GpuMirror:
    """Rows on a GPU, in one FAISS index that grows with them; its searches and additions take turns."""

    def __init__(self, index: Any, most: int) -> None:
        self.index = index
        self.most = most
        self.using = threading.Lock()
        self._warned = False

    @classmethod
    def following(
        cls, view: FlatView, before: tuple[FlatView, GpuMirror] | None, empty: Callable[[], GpuMirror]
    ) -> GpuMirror:
        """The mirror of a view: the one before with the rows that are new, or another when rows have moved."""
        if before is not None and before[0].numbering == view.numbering:
            mirror, kept = before[1], before[0].count
        else:
            mirror, kept = empty(), 0
        if view.count > kept:
            with mirror.using:
                mirror.index.add(view.matrix[kept : view.count])
        return mirror

    def nominate(self, view: FlatView, query: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
        """As `Mirror.nominate`. Raises BeyondDevice, logged the first time, beyond what the GPU returns at once."""
        error = rounding_error(query.size)
        # Rows that were added after this view come between its own, as dead ones do.
        with self.using:
            later = int(self.index.ntotal) - view.count
            for reach in reaches(depth, view.count - view.living + later, int(self.index.ntotal), self.most):
                (scores,), (found,) = self.index.search(query[None], reach)
                scores, rows = scores[found >= 0], found[found >= 0]
                living = (rows < view.count) & view.alive[np.minimum(rows, view.count - 1)]
                reached = scores[living]
                if reach == self.index.ntotal or scores[-1] < reached[depth - 1] - 2 * error:
                    return np.sort(rows[living])
        if not self._warned:
            self._warned = True
            _log.warning(
                "a search of depth %d goes beyond the %d that FAISS returns on this GPU; it and others like it are "
                "answered by the CPU, more slowly; TorchIndex has no such limit",
                depth,
                self.most,
            )
        raise BeyondDevice(
            f"a depth of {depth:,} is beyond what FAISS, with {self.most:,} at once, can show to be whole there"
        )


class GpuFlatIndex(MirroredIndex[GpuMirror]):
    """A `VectorIndex` on a GPU through FAISS: exact, and complete at any depth because the CPU takes the deep searches.

    4d bytes a document here, and as many on the GPU.
    """

    def __init__(self, dimension: int, *, device: int = 0) -> None:
        """device: its number. Raises InvalidConfiguration where FAISS has no GPU support, or there is no such GPU."""
        self._most = limit(_faiss)
        if self._most == 0:
            raise InvalidConfiguration("this FAISS has no GPU support; install one that has, or use TorchIndex")
        try:
            there = _faiss.get_num_gpus()
            self._resources = _faiss.StandardGpuResources()
        except RuntimeError as error:
            raise InvalidConfiguration(f"FAISS has no GPU here: {error}") from error
        if device >= there:
            raise InvalidConfiguration(f"FAISS has no GPU {device} here: it sees {there}")
        self._device = device
        super().__init__(dimension)

    def _mirrored(self, view: FlatView, before: tuple[FlatView, GpuMirror] | None) -> GpuMirror:
        return GpuMirror.following(view, before, self._empty)

    def _empty(self) -> GpuMirror:
        configuration = _faiss.GpuIndexFlatConfig()
        configuration.device = self._device
        return GpuMirror(_faiss.GpuIndexFlatIP(self._resources, self._dimension, configuration), self._most)
