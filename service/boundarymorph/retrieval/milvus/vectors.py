"""A cache on this machine's disk of vectors fetched from Milvus."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.storage import storage_errors


class VectorCache:
    """float16 vectors of one dimension by id and version, in a memory-mapped file; the oldest are evicted first.

    The file has no name and is deleted with the process; it takes 2d bytes per vector, up to `size` bytes, and the
    process about 150 bytes of memory per id. Thread-safe.
    """

    def __init__(self, directory: Path, dimension: int, size: int) -> None:
        """Raises StorageFull or StorageUnavailable."""
        self.capacity = max(1, size // (2 * dimension))
        with storage_errors(f"no vectors can be cached in {directory}"):
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory) as file:
                # Allocate all of it now: writing to a mapped file on a full disk would kill the process.
                os.posix_fallocate(file.fileno(), 0, self.capacity * 2 * dimension)
                self._halves = np.memmap(file, dtype="<f2", mode="r+", shape=(self.capacity, dimension))
        self._lock = threading.Lock()
        self._slots: dict[str, int] = {}
        self._owners: list[str | None] = [None] * self.capacity
        self._versions = np.zeros(self.capacity, np.int64)
        self._next = 0

    def __len__(self) -> int:
        return len(self._slots)

    def find(self, ids: Sequence[str], versions: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.float16]]:
        """Return (n,) which of n vectors are here in these versions, and the (m, d) vectors of those."""
        with self._lock:
            slots = np.fromiter((self._slots.get(id, -1) for id in ids), np.int64, len(ids))
            found: NDArray[np.bool_] = (slots >= 0) & (self._versions[slots] == versions)
            return found, np.array(self._halves[slots[found]])

    def keep(self, ids: Sequence[str], versions: NDArray[np.int64], halves: NDArray[np.float16]) -> None:
        """Store n (n, d) vectors, replacing other versions of theirs and then the oldest vectors."""
        with self._lock:
            for id, version, vector in zip(ids, versions.tolist(), halves, strict=True):
                slot = self._slots.get(id)
                if slot is None:
                    slot, self._next = self._next, (self._next + 1) % self.capacity
                    if (gone := self._owners[slot]) is not None:
                        del self._slots[gone]
                    self._slots[id], self._owners[slot] = slot, id
                self._versions[slot] = version
                self._halves[slot] = vector
