"""How many documents and bytes the indexes of a directory hold, without counting again what has not changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from boundarymorph.errors import BoundaryMorphError, UnknownIndex
from boundarymorph.retrieval.catalog import UNREADABLE, IndexDescription, IndexTotals

Files = dict[Path, tuple[int, int]]
SETTLED = 2.0  # seconds after a change; a second change that soon may leave the same size and time


class Totals:
    """Adds up indexes. One is described again only if its files have changed lately, or if it could not be read."""

    def __init__(self, describe: Callable[[str], IndexDescription], clock: Callable[[], float] = time.time) -> None:
        """describe: returns the summary of an index, or raises BoundaryMorphError. clock: that of the file system."""
        self._describe = describe
        self._clock = clock
        self._known: dict[Path, tuple[Files, IndexDescription]] = {}

    def of(self, folders: Iterable[Path]) -> dict[str, IndexTotals]:
        """Return the totals of the indexes in these folders, by kind. Not for several threads at once."""
        known, self._known = self._known, {}
        totals: dict[str, IndexTotals] = {}
        for folder in folders:
            kind, count, files = UNREADABLE, 0, Files()
            settled = (self._clock() - SETTLED) * 1e9
            try:
                files = files_of(folder)
                before, info = known.get(folder, (None, None))
                if info is None or before != files:
                    info = self._describe(folder.name)
                if all(changed < settled for _, changed in files.values()):
                    self._known[folder] = files, info
                kind, count = info.kind, info.count
            except UnknownIndex:  # deleted meanwhile
                continue
            except (BoundaryMorphError, OSError):
                pass
            totals[kind] = totals.get(kind, IndexTotals()).plus(count, sum(size for size, _ in files.values()))
        return totals


def files_of(folder: Path) -> Files:
    """Return size in bytes and time of change in ns of all files in a folder; those that disappear are left out.

    Also left out are SQLite's `-shm` files, which come and go with readers.
    """
    files = {}
    with suppress(FileNotFoundError):  # the folder itself
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):
                if not path.name.endswith("-shm"):
                    status = path.stat()
                    files[path] = status.st_size, status.st_mtime_ns
    return files
