"""Search exactly with FAISS on a GPU, at depths beyond the limit of its kernels.

The vectors are spread at random over shards. The best results of a shard suffice unless the last one is among the
nearest of all; then the search asks that shard for more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.retrieval.local.vectors import BeyondDevice, VectorView, rounding_error

SHARDS = 16
NATIVE_LIMIT = 2_048  # most results of FAISS's own kernels
CUVS_LIMIT = 16_384  # most results of cuVS
_MARGIN = 64  # results requested from a shard beyond its share, which varies
_BLOCK = 65_536  # rows added at a time
_faiss: Any = faiss  # has few type hints


def limit(library: Any) -> int:
    """Return the most results that a build of FAISS returns on a GPU.

    It is 0 without GPU support.
    """
    if not hasattr(library, "StandardGpuResources"):
        return 0
    return CUVS_LIMIT if "CUVS" in str(library.get_compile_options()).upper() else NATIVE_LIMIT


class FaissShard:
    def __init__(self, index: Any) -> None:
        self.index = index
        self.rows = np.empty(0, np.int64)

    def add(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        self.index.add(vectors)
        self.rows = np.concatenate([self.rows, rows])

    def nearest(self, query: NDArray[np.float32], reach: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return rows and scores of the `reach` nearest, best first."""
        if reach == 0:
            return self.rows[:0], np.empty(0, np.float32)
        (scores,), (found,) = self.index.search(query[None], reach)
        there = found >= 0
        return self.rows[found[there]], scores[there]


class FaissMirror:
    """A `Mirror` of rows in shards, in 4d bytes per document on the device."""

    def __init__(self, shards: Sequence[FaissShard], most: int) -> None:
        self.shards = shards
        self._most = most
        self._rng = np.random.default_rng(0)
        self._using = threading.Lock()

    def extend(self, view: VectorView, kept: int) -> FaissMirror:
        with self._using:
            for start in range(kept, view.rows.count, _BLOCK):
                rows = np.arange(start, min(start + _BLOCK, view.rows.count))
                vectors, chosen = view.vectors(rows), self._rng.integers(len(self.shards), size=len(rows))
                for place, shard in enumerate(self.shards):
                    if (mine := chosen == place).any():
                        shard.add(rows[mine], vectors[mine])
        return self

    def nominate(self, view: VectorView, query: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
        """Nominate as `Mirror.nominate` does.

        Raises:
            BeyondDevice: If a shard may hold more of the nearest than it can return.
        """
        error = 2 * rounding_error(query.size)
        with self._using:
            reaches = [self._first_reach(shard, view, depth) for shard in self.shards]
            found = [shard.nearest(query, reach) for shard, reach in zip(self.shards, reaches, strict=True)]
            while True:
                rows = np.concatenate([rows for rows, _ in found])
                scores = np.concatenate([scores for _, scores in found])
                # The results may include rows that were added after this view, and dead rows.
                living = (rows < view.rows.count) & view.rows.alive[np.minimum(rows, view.rows.count - 1)]
                rows, scores = rows[living], scores[living]
                last = np.partition(scores, len(scores) - depth)[len(scores) - depth] if len(scores) >= depth else -2
                exhausted = [
                    place
                    for place, (shard, reach) in enumerate(zip(self.shards, reaches, strict=True))
                    if reach < len(shard.rows) and found[place][1][-1] >= last - error
                ]
                if not exhausted:
                    return np.sort(rows[scores >= last - error])
                for place in exhausted:
                    if reaches[place] == self._most:
                        raise BeyondDevice(
                            f"a depth of {depth:,} is more than FAISS can guarantee to be complete, with "
                            f"{self._most:,} results from each of {len(self.shards)} shards"
                        )
                    reaches[place] = min(2 * reaches[place], self._most, len(self.shards[place].rows))
                    found[place] = self.shards[place].nearest(query, reaches[place])

    def _first_reach(self, shard: FaissShard, view: VectorView, depth: int) -> int:
        """Return slightly more than the shard's share of the nearest, including dead rows."""
        share = depth * len(shard.rows) // max(1, view.rows.living)
        return min(share + share // 4 + _MARGIN, self._most, len(shard.rows))


def mirrors(device: int) -> Callable[[int], FaissMirror]:
    """Return a function that makes an empty mirror of d dimensions on a GPU.

    Raises:
        InvalidConfiguration: If the GPU is unusable.
    """
    most = limit(_faiss)
    if most == 0:
        raise InvalidConfiguration("this FAISS has no GPU support; install faiss-gpu-cu12 instead of faiss-cpu")
    try:
        there = _faiss.get_num_gpus()
    except RuntimeError as error:
        raise InvalidConfiguration(f"FAISS finds no GPU here: {error}") from error
    if device >= there:
        raise InvalidConfiguration(f"FAISS has no GPU {device} here: it sees {there}")

    def make(dimension: int) -> FaissMirror:
        configuration, resources = _faiss.GpuIndexFlatConfig(), _faiss.StandardGpuResources()
        configuration.device = device
        shards = (_faiss.GpuIndexFlatIP(resources, dimension, configuration) for _ in range(SHARDS))
        return FaissMirror(list(map(FaissShard, shards)), most)

    return make
