"""The vectors of an exhaustively searched index in a file that all its processes map, instead of a copy in each."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import StorageFull
from boundarymorph.retrieval.local.flat import FlatIndex
from boundarymorph.retrieval.local.rows import RowBook

_FILE = "vectors.f4"
ROOM = 2  # sizes of the file that must be free, so that it does not take the last place from the documents
_BLOCK = 4_096  # rows written at a time


class FlatFormat:
    """A `Format` of (count, d) float32 rows, and room for as many as may follow before the file is written again.

    What a process writes into that room stays in its own memory.
    """

    suffix: ClassVar[str] = ".flat"
    mapped: ClassVar[bool] = True

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension

    def save(self, index: FlatIndex, folder: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """See `Format.save`."""
        view = index.view()
        living = np.flatnonzero(view.rows.alive)
        capacity = len(living) * 5 // 4
        size = 4 * self._dimension * capacity
        if shutil.disk_usage(folder).free < ROOM * size:
            raise StorageFull(f"{folder} needs {size:,} bytes for a file of vectors, and as much free beside it")
        with (folder / _FILE).open("wb") as file:
            for start in range(0, len(living), _BLOCK):
                view.matrix[living[start : start + _BLOCK]].astype("<f4", copy=False).tofile(file)
            file.truncate(size)
        return {"capacity": capacity}, {}

    def load(
        self, folder: Path, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], book: RowBook
    ) -> FlatIndex:
        """See `Format.load`."""
        shape = facts["capacity"], self._dimension
        return FlatIndex(
            self._dimension, matrix=np.asarray(np.memmap(folder / _FILE, "<f4", "c", shape=shape)), book=book
        )
