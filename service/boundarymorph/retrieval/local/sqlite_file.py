"""Share a SQLite file in WAL mode between threads and processes.

This has its connections, transactions, log, and tables.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from boundarymorph.database import exists
from boundarymorph.errors import CorruptIndex, StorageFull, StorageUnavailable, UnknownIndex
from boundarymorph.inference.concurrency import CallerGone, check_awaited, is_abandoned
from boundarymorph.retrieval.interfaces import IndexConfiguration

_LOG_PATIENCE = 2.0  # seconds that a write waits for readers of the log
_PATIENCE = 30.0  # seconds that a write waits for another writer
_IDLE_CONNECTIONS = 8  # connections to keep open for later calls, with two descriptors each
_CACHE_KIB = 2_000  # KiB of pages, per connection
_STEPS = 10_000  # steps of SQLite's virtual machine, some 0.1 ms, between checks whether a caller still waits
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_NOT_UTF8 = ("Could not decode to UTF-8", "user-defined function raised exception")  # ours read a text
_FULL = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")  # the latter for the shared-memory file of WAL mode
_TROUBLE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")
_log = logging.getLogger(__name__)
_NO_PLACE = ("SQLITE_IOERR_SHM", "SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_READONLY")  # for the shared-memory file
_State = tuple[int, int, int]
LIVING = "embedding IS NOT NULL"
COVERED = "documents INDEXED BY living"  # to read sequence and id without the documents
_PARAMETERS = 500
SCHEMA_VERSION = 4
_APPLICATION = 0x424D4F52
# A row without an embedding is a tombstone. The text is last, so that catching up and filters do not read it.
SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value)",
    """CREATE TABLE documents (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    digest BLOB,
    embedding BLOB,
    metadata BLOB,
    title TEXT,
    text TEXT
)""",
    f"CREATE INDEX living ON documents (sequence, id) WHERE {LIVING}",
    "CREATE INDEX tombstones ON documents (sequence) WHERE embedding IS NULL",
    """CREATE TABLE field_values (
    field TEXT NOT NULL,
    value NOT NULL,
    sequence INTEGER NOT NULL,
    PRIMARY KEY (field, value, sequence)
) WITHOUT ROWID""",
)


class _ThreadConnection(threading.local):
    connection: sqlite3.Connection | None = None  # the connection of this thread within `one_state`


class SqliteFile:
    """Durable transactions on one file. Thread-safe; readers never wait for writers.

    Raises UnknownIndex once the file is deleted, CorruptIndex, StorageUnavailable or StorageFull.
    """

    log_bytes = 4 * 2**20  # bytes of SQLite's write-ahead log above which a write empties it

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log_due = self.log_bytes
        self._writing = threading.Lock()
        self._held = _ThreadConnection()
        self._idle: deque[sqlite3.Connection] = deque()
        self._most_idle = _IDLE_CONNECTIONS
        self._closed = False

    def check_file(self) -> None:
        with self.transaction() as connection:
            connection.execute("PRAGMA schema_version").fetchone()

    @contextmanager
    def one_state(self) -> Iterator[None]:
        """Let this thread read a single state within the block.

        Meanwhile, SQLite cannot empty its log.
        """
        with self.transaction() as connection:
            before, self._held.connection = self._held.connection, connection
            try:
                yield
            finally:
                self._held.connection = before

    @contextmanager
    def transaction(self, kind: str = "DEFERRED") -> Iterator[sqlite3.Connection]:
        """Yield a connection for one transaction, and translate SQLite's errors."""
        if self._closed or not exists(self.path):  # through an open connection a deleted file could still be read
            raise UnknownIndex(f"the index in {self.path} no longer exists", public="the index no longer exists")
        if kind == "DEFERRED" and (held := self._held.connection) is not None:
            yield held
            return
        with storage_trouble(self.path):
            try:
                connection = self._connection()
            except sqlite3.OperationalError as error:
                if kind != "DEFERRED" or not error.sqlite_errorname.startswith(_NO_PLACE):
                    raise
                with _settled(self.path, error) as connection:
                    _warn(self.path, str(error))
                    _prepare(connection)
                    yield connection
                return
            try:
                connection.execute(f"BEGIN {kind}")
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
            if len(self._idle) < self._most_idle:
                self._idle.append(connection)
            else:
                connection.close()
            if self._closed or not self._most_idle:
                self._close_idle()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction that writes, then empty the log if it has grown too long."""
        with self._writing:
            with self.transaction("IMMEDIATE") as connection:
                yield connection
            self._bound_log()

    def empty_log(self) -> bool:
        """Move the content of SQLite's log into the file.

        Returns False if concurrent reads blocked that too long.
        """
        with suppress(sqlite3.Error), closing(self._connect(_LOG_PATIENCE)) as connection:
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not busy
        return False

    def release(self) -> None:
        """Close the connections, and from now on each at the end of its call."""
        self._most_idle = 0
        self._close_idle()

    def close(self) -> None:
        """Close the connections as `release` does, and let later calls raise UnknownIndex."""
        self.release()
        self._closed = True

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _bound_log(self) -> None:
        """Empty the write-ahead log if it is too long.

        A read that outlasts the patience lets it grow once more.
        """
        with suppress(OSError):  # the log may be gone
            if (size := Path(f"{self.path}-wal").stat().st_size) >= self._log_due:
                self._log_due = self.log_bytes if self.empty_log() else size + self.log_bytes

    def _connection(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect(_PATIENCE)

    def _connect(self, patience: float) -> sqlite3.Connection:
        """Return a new connection that waits this many seconds for locks, and can be read."""
        location = f"{self.path.absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(
            location, uri=True, timeout=patience, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA synchronous=FULL")
            _prepare(connection)
            connection.execute("PRAGMA schema_version").fetchone()  # this opens the log
        except BaseException:
            connection.close()
            raise
        return connection


@lru_cache  # once, however often the file is opened and read
def _warn(path: Path, trouble: str) -> None:
    _log.warning("%s can be read but not written: %s; is the disk full or read-only?", path, trouble)


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.create_function("characters", 1, len, deterministic=True)  # SQLite's own length ends at a NUL


@contextmanager
def interruptible(connection: sqlite3.Connection) -> Iterator[None]:
    """Interrupt the connection's work in the block when no caller waits for it any more.

    Raises:
        CallerGone: After the interruption.
    """
    check_awaited()
    connection.set_progress_handler(is_abandoned, _STEPS)
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_INTERRUPT":
            raise
        raise CallerGone from error
    finally:
        connection.set_progress_handler(None, 0)


@contextmanager
def storage_trouble(path: Path) -> Iterator[None]:
    try:
        yield
    except orjson.JSONDecodeError as error:
        raise CorruptIndex(
            f"{path} is damaged: it has metadata that are not JSON; restore or rebuild the index"
        ) from error
    except sqlite3.DatabaseError as error:
        if not path.exists():
            raise UnknownIndex(f"the index in {path} no longer exists", public="the index no longer exists") from error
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(_DAMAGE) or "no such table" in str(error):
            raise CorruptIndex(f"{path} is damaged: {error}; restore or rebuild the index") from error
        if str(error).startswith(_NOT_UTF8):  # the error would show the text
            raise CorruptIndex(f"{path} is damaged: a text is not UTF-8; restore or rebuild the index") from None
        if name in _FULL:
            raise StorageFull(f"{path}: {error}; free some space and try again") from error
        if name.startswith(_TROUBLE):
            raise StorageUnavailable(f"{path}: {error}") from error
        raise


@contextmanager
def _settled(path: Path, trouble: sqlite3.Error) -> Iterator[sqlite3.Connection]:
    """Yield a connection that reads the file as it is, without log and locks.

    This works only while all writes are in the file.

    Raises:
        StorageUnavailable: If there are writes in the log or the file changes.
        sqlite3.Error: `trouble`, if the file is gone.
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
    """Return values that change with a write to the file; None if there is a log, or no file."""
    log = Path(f"{path}-wal")
    try:
        if log.exists() and log.stat().st_size:
            return None
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def create_file(path: Path, *, encoder: str | None, dimension: int, kind: str, lexical: bool) -> None:
    """Create the file, which must not exist.

    Raises OSError, and the errors of `storage_trouble`.
    """
    meta = {
        "encoder": encoder,
        "dimension": dimension,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "purged": 0,
        "kind": kind,
        "words": 1 if lexical else None,
    }
    path.touch(exist_ok=False)  # the system's error is clearer than SQLite's
    with storage_trouble(path), closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        for statement in SCHEMA:
            connection.execute(statement)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.execute(f"PRAGMA application_id={_APPLICATION}")
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def configuration(path: Path, connection: sqlite3.Connection) -> IndexConfiguration:
    """Return the configuration with which a store was created.

    Raises:
        CorruptIndex: Unless it is of the present schema version.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise CorruptIndex(f"{path} is not an index of BoundaryMORPH")
    if version != SCHEMA_VERSION:
        raise CorruptIndex(
            f"{path} has schema version {version} and this program reads version {SCHEMA_VERSION}; build the index anew"
        )
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    match meta:
        case {
            "encoder": str() | None as encoder,
            "dimension": int() as dimension,
            "created": str() as created,
            "kind": str() as kind,
            "words": int() | None as words,
        }:
            return IndexConfiguration(encoder, dimension, created, kind, words is not None)
    raise CorruptIndex(f"{path} is damaged: its table 'meta' does not say what the index is; restore or rebuild it")


def select(
    connection: sqlite3.Connection, columns: str, keys: Iterable[str] | Iterable[int], *, by: str = "id"
) -> list[Any]:
    """Return columns of the documents with these keys, unordered, without tombstones.

    `by` is the column of the keys.
    """
    rows: list[Any] = []
    remaining = iter(dict.fromkeys(keys))
    while part := list(islice(remaining, _PARAMETERS)):
        places = ",".join("?" * len(part))
        rows += connection.execute(f"SELECT {columns} FROM documents WHERE {LIVING} AND {by} IN ({places})", part)  # noqa: S608
    return rows


def last_sequence(connection: sqlite3.Connection) -> int:
    """Return the greatest sequence number of any write or deletion; 0 for none."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'documents'").fetchone()
    return int(row[0]) if row else 0


def fact(connection: sqlite3.Connection, key: str) -> Any:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None
