"""Turn errors of the filesystem into our own, and check the contents of SQLite files."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from boundarymorph.errors import StorageFull, StorageUnavailable

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def storage_errors(trouble: str) -> Iterator[None]:
    """Raise StorageFull or StorageUnavailable instead of an OSError.

    `trouble` is the beginning of the message.
    """
    try:
        yield
    except OSError as error:
        kind = StorageFull if error.errno in _FULL else StorageUnavailable
        raise kind(f"{trouble}: {error.strerror or error}") from error


def exists(path: Path) -> bool:
    with storage_errors(str(path)):
        return path.exists()


def sync(path: Path) -> None:
    """Flush a file, or the entries of a directory, so that they survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def hold_lock(path: Path, kind: int) -> Iterator[None]:
    """Hold a lock of `fcntl.flock` on a file or directory. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder.

    SQLite's `-shm` files do not count, because they come and go with readers.
    """
    size = 0
    with suppress(FileNotFoundError):  # the folder itself
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):
                if not path.name.endswith("-shm"):
                    size += path.stat().st_size
    return size


SchemaObject = tuple[str, str, str, str]  # type, name, table and SQL of an object in an SQLite file


def schema_objects(database: sqlite3.Connection) -> set[SchemaObject]:
    """Return the tables, indexes, triggers, and views of a database.

    White space in their SQL does not count.
    """
    rows = database.execute("select type, name, tbl_name, coalesce(sql, '') from sqlite_master")
    return {(kind, name, table, " ".join(sql.split())) for kind, name, table, sql in rows}


def foreign_object(path: Path, schema: Sequence[str]) -> str | None:
    """Return an object in an SQLite file that its schema does not create, or None.

    A foreign trigger, for example, would run with our statements. Reading creates no file beside this one.

    Raises:
        sqlite3.DatabaseError: If the file is not an intact database.
    """
    with closing(sqlite3.connect(":memory:")) as made:
        for statement in schema:
            made.execute(statement)
        known = schema_objects(made)
    where = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(where, uri=True)) as database:
        foreign = sorted(schema_objects(database) - known)
    return f"{foreign[0][0]} {foreign[0][1]!r}" if foreign else None
