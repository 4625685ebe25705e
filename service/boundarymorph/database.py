"""Files: errors of the file system as our own, and a small SQLite file that belongs to something."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from boundarymorph.errors import StorageFull, StorageUnavailable

BUSY_SECONDS = 10.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
DAMAGED = "it is damaged: put back a copy of it, such as that of a snapshot, or move it away to go on without"


@contextmanager
def storage_errors(trouble: str) -> Iterator[None]:
    """Raise StorageFull or StorageUnavailable instead of an OSError; `trouble` begins the message."""
    try:
        yield
    except OSError as error:
        kind = StorageFull if error.errno in _FULL else StorageUnavailable
        raise kind(f"{trouble}: {error.strerror or error}") from error


def exists(path: Path) -> bool:
    """Whether a file or folder exists. Raises StorageUnavailable if that cannot be determined."""
    with storage_errors(str(path)):
        return path.exists()


def sync(path: Path) -> None:
    """Make a file, or the entries of a directory, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def bytes_of(folder: Path) -> int:
    """Return the size of all files in a folder; those that disappear are left out.

    Also left out are SQLite's `-shm` files, which come and go with readers.
    """
    size = 0
    with suppress(FileNotFoundError):  # the folder itself
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):
                if not path.name.endswith("-shm"):
                    size += path.stat().st_size
    return size


Thing = tuple[str, str, str, str]  # type, name, table and SQL of what is in a file of SQLite


def things_of(database: sqlite3.Connection) -> set[Thing]:
    """Return the tables, indexes, triggers and views of a database; white space in their SQL does not count."""
    rows = database.execute("select type, name, tbl_name, coalesce(sql, '') from sqlite_master")
    return {(kind, name, table, " ".join(sql.split())) for kind, name, table, sql in rows}


def foreign_thing(path: Path, schema: Sequence[str]) -> str | None:
    """Return what a file of SQLite has besides what these statements make; None if there is nothing else.

    A trigger or a view of somebody else's would be run with our statements. Reads only the schema, and makes no file
    beside this one. Raises sqlite3.DatabaseError.
    """
    with closing(sqlite3.connect(":memory:")) as made:
        for statement in schema:
            made.execute(statement)
        known = things_of(made)
    where = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(where, uri=True)) as database:
        foreign = sorted(things_of(database) - known)
    return f"{foreign[0][0]} {foreign[0][1]!r}" if foreign else None


class Database:
    """Opens the file for each use, so that it may go away in between. Methods may be called from any thread, and raise
    StorageUnavailable, and StorageFull on a full disk."""

    def __init__(self, path: Path, schema: Sequence[str], prepare: Callable[[], None]) -> None:
        """schema: statements that make what is missing; prepare: makes the folder of a new file."""
        self._path, self._schema, self._prepare = path, schema, prepare

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open or make the file for one transaction, all of which is kept, or nothing."""
        with self._errors():
            self._prepare()
            with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)) as database:
                database.execute("pragma trusted_schema = off")
                database.execute("begin immediate")
                for statement in self._schema:
                    database.execute(statement)
                yield database
                database.execute("commit")  # closing it rolls back what was not committed

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection | None]:
        """Open the file as it is; None if there is none."""
        with self._errors():
            if not self._path.exists():
                yield None
                return
            where = f"{self._path.absolute().as_uri()}?mode=rw"  # which reads what may not be written
            with closing(sqlite3.connect(where, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as database:
                database.execute("pragma trusted_schema = off")
                if database.execute("select 1 from sqlite_master where type = 'table'").fetchone() is None:
                    yield None  # whoever made the file came no further
                else:
                    yield database

    def copy_to(self, target: Path) -> None:
        """Copy one state into a new file, if there is any, but none that is damaged."""
        with self.opened() as database:
            if database is not None:
                with closing(sqlite3.connect(target)) as copy:
                    database.backup(copy)
                    (verdict,) = copy.execute("pragma quick_check(1)").fetchone()
                    if verdict != "ok":
                        raise sqlite3.DatabaseError(verdict.splitlines()[-1])

    def remove(self) -> None:
        """Delete the file, and what SQLite left beside it."""
        with self._errors():
            for end in ("-journal", ""):
                Path(f"{self._path}{end}").unlink(missing_ok=True)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with storage_errors(str(self._path)):
            try:
                yield
            except sqlite3.Error as error:
                full = getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
                said = f"{error}; {DAMAGED}" if type(error) is sqlite3.DatabaseError else error
                raise (StorageFull if full else StorageUnavailable)(f"{self._path}: {said}") from error
