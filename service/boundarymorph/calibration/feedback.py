"""What people said of answers, in one SQLite file an index, for many processes."""

from __future__ import annotations

import errno
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from boundarymorph.errors import LimitExceeded, StorageFull, StorageUnavailable

SCHEMA = (
    """
create table if not exists judgments (
    number integer primary key, at real not null, query text not null, document text not null,
    grade real, caller text not null
)
""",
    "create index if not exists by_query on judgments (query)",
)
INSERT = "insert into judgments (at, query, document, grade, caller) values (?, ?, ?, ?, ?)"
SELECT = """select number, query, document, grade from judgments where number > ? and grade is not null
order by number limit ?"""
BUSY_SECONDS = 10.0
ALL = -1  # as a limit of SQLite


@dataclass(frozen=True, slots=True)
class Event:
    """What somebody said of a document: a grade of 0 or more."""

    query: str
    document: str
    grade: float


class Feedback:
    """The events of an index, oldest first. Methods block, may be called from any thread, and raise StorageUnavailable,
    and StorageFull on a full disk. What only reads or deletes makes no file."""

    def __init__(self, path: Path, index: str, prepare: Callable[[], None]) -> None:
        """path: of the file, which need not exist; index: its name; prepare: makes the folder of a new file."""
        self._path, self._index, self._prepare = path, index, prepare

    def add(self, events: Sequence[Event], caller: str, at: float, most: int) -> int:
        """Keep all events or none, and return how many the index has. most: as it may have, else LimitExceeded."""
        with self._errors():
            self._prepare()
            with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)) as database:
                database.execute("begin immediate")
                for statement in SCHEMA:
                    database.execute(statement)
                before = _count(database)
                if before + len(events) > most:
                    raise LimitExceeded(
                        f"the index {self._index!r} has {before:,} judgements of at most {most:,} "
                        "(calibration.judgments); calibrate with them and delete them"
                    )
                rows = [(at, event.query, event.document, event.grade, caller) for event in events]
                database.executemany(INSERT, rows)
                database.execute("commit")  # closing it rolls back what was not committed
        return before + len(events)

    def count(self) -> int:
        with self._opened() as database:
            return 0 if database is None else _count(database)

    def events(self) -> Sequence[Event]:
        return [event for _, event in self.page(0, ALL)]

    def page(self, after: int, most: int) -> Sequence[tuple[int, Event]]:
        """Return the first events, at most so many, whose numbers come after this one, with their numbers."""
        with self._opened() as database:
            found = [] if database is None else database.execute(SELECT, (after, most)).fetchall()
        return [(number, Event(query, id, grade)) for number, query, id, grade in found]

    def delete(self, query: str | None = None) -> int:
        """Delete the events, or those of a query, and return how many there were. All of them on a full disk, too."""
        with self._opened() as database:
            if database is None:
                return 0
            if query is not None:
                return database.execute("delete from judgments where query = ?", (query,)).rowcount
            database.execute("pragma journal_mode = memory")  # needs no room; what a crash may damage was to go anyway
            return database.execute("delete from judgments").rowcount

    def copy_to(self, target: Path) -> None:
        """Copy one state of the events into a new file, if there are any."""
        with self._opened() as database:
            if database is not None:
                with closing(sqlite3.connect(target)) as copy:
                    database.backup(copy)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection | None]:
        """Open the file as it is; None if there is none."""
        with self._errors():
            if not self._path.exists():
                yield None
                return
            where = f"{self._path.absolute().as_uri()}?mode=rw"  # which reads what may not be written
            with closing(sqlite3.connect(where, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as database:
                if database.execute("select 1 from sqlite_master where name = 'judgments'").fetchone() is None:
                    yield None  # whoever made the file came no further
                else:
                    yield database

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            full = getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
            raise (StorageFull if full else StorageUnavailable)(f"{self._path}: {error}") from error
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise (StorageFull if full else StorageUnavailable)(f"{self._path}: {error}") from error


def _count(database: sqlite3.Connection) -> int:
    found: int = database.execute("select count(*) from judgments").fetchone()[0]
    return found


def grades_of(events: Sequence[Event]) -> dict[str, dict[str, float]]:
    """Return grades by query and document; the last one of a pair counts."""
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for event in events:
        found[event.query][event.document] = event.grade
    return dict(found)


def merged(
    events: Mapping[str, Mapping[str, float]], given: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Return grades by query and document from both; those given go before those of events."""
    return {query: {**events.get(query, {}), **given.get(query, {})} for query in {**given, **events}}
