"""Reading a SQLite file in WAL mode where SQLite cannot: a full or read-only disk has no place for its log."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from boundarymorph.errors import StorageUnavailable

NO_PLACE = (
    "SQLITE_IOERR_SHM",
    "SQLITE_FULL",
    "SQLITE_CANTOPEN",
    "SQLITE_READONLY",
)  # errors of opening without that place
_State = tuple[int, int, int]


@contextmanager
def reading(path: Path, trouble: sqlite3.Error) -> Iterator[sqlite3.Connection]:
    """Yield a connection that reads the file as it is, without log and locks.

    That is right only while all writes are in the file and nobody adds to it. A writer begins with a log and changes
    the time of the file, so both are compared before and after. trouble: why SQLite could not read it otherwise. Raises
    StorageUnavailable if there are writes in the log, and at the end if the file has changed; `trouble` if it is gone.
    """
    before = _state(path)
    if before is None and not path.exists():
        raise trouble
    if before is None:
        raise StorageUnavailable(
            f"{path}: {trouble}; its latest writes are in {path.name}-wal, which SQLite can read only where it may "
            "write: free some space, or make the disk writable"
        ) from trouble
    try:
        location = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(location, uri=True, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            yield connection
    finally:
        if not path.exists():
            raise trouble
        if _state(path) != before:
            raise StorageUnavailable(f"{path} was written while it was read from a full or read-only disk; try again")


def _state(path: Path) -> _State | None:
    """Return what changes with a write to the file; None if there is a log, or no file."""
    log = Path(f"{path}-wal")
    try:
        if log.exists() and log.stat().st_size:
            return None
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
