"""What people said of answers: grades, and clicks with their rank. One SQLite file that processes share."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from boundarymorph.errors import LimitExceeded, StorageUnavailable

SCHEMA = """
create table if not exists judgments (
    number integer primary key, at real not null, place text not null, query text not null, document text not null,
    grade real, rank integer, clicked integer, caller text not null
);
create index if not exists by_place on judgments (place, query);
"""
INSERT = """
insert into judgments (at, place, query, document, grade, rank, clicked, caller) values (?, ?, ?, ?, ?, ?, ?, ?)
"""
DELETE = "delete from judgments where place = :place and (:query is null or query = :query)"
BUSY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Event:
    """A grade of 0 or more; or, with grade None, whether the document was clicked at the rank, from 1, where it was
    shown."""

    query: str
    document: str
    grade: float | None = None
    rank: int | None = None
    clicked: bool = False


class Feedback:
    """Events of indexes, oldest first. Methods block, may be called from any thread, and raise StorageUnavailable."""

    def __init__(self, path: Path, most: int) -> None:
        """path: of the file, which need not exist; most: events that are kept of an index."""
        self._path, self._most = path, most

    def add(self, index: str, events: Sequence[Event], caller: str, at: float) -> int:
        """Keep all events or none, and return how many the index has. Raises LimitExceeded."""
        with self._opened() as database:
            before = self._count(database, index)
            if before + len(events) > self._most:
                raise LimitExceeded(
                    f"the index {index!r} has {before:,} judgements of at most {self._most:,} (calibration.judgments); "
                    "calibrate with them and delete them"
                )
            rows = [
                (at, index, event.query, event.document, event.grade, event.rank, event.clicked, caller)
                for event in events
            ]
            database.executemany(INSERT, rows)
            return before + len(events)

    def count(self, index: str) -> int:
        with self._opened() as database:
            return self._count(database, index)

    def events(self, index: str) -> Sequence[Event]:
        with self._opened() as database:
            found = database.execute(
                "select query, document, grade, rank, clicked from judgments where place = ? order by number", (index,)
            )
            return [Event(query, id, grade, rank, bool(clicked)) for query, id, grade, rank, clicked in found]

    def delete(self, index: str, query: str | None = None) -> int:
        """Delete the events of an index, or of one of its queries, and return how many there were."""
        with self._opened() as database:
            return database.execute(DELETE, {"place": index, "query": query}).rowcount

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Raises StorageUnavailable."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Closing it rolls back what was not committed.
            with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)) as database:
                database.executescript(SCHEMA)
                database.execute("begin immediate")
                yield database
                database.execute("commit")
        except (OSError, sqlite3.Error) as error:
            raise StorageUnavailable(f"{self._path}: {error}") from error

    def _count(self, database: sqlite3.Connection, index: str) -> int:
        found: int = database.execute("select count(*) from judgments where place = ?", (index,)).fetchone()[0]
        return found


def examined(rank: int) -> float:
    """How likely people look at a rank: 1 over it."""
    return 1.0 / rank


def grades_of(events: Sequence[Event], believed: Mapping[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    """Grades by query and document; the last explicit one of a pair counts.

    Without one, clicks count as far as they say something: a document that was clicked is relevant; one that was not
    was seen and is not relevant, or was not seen, and then is as likely relevant as before. The mean over the times
    that it was shown is its grade, from 0 to 1 (the expectation step of Wang et al. 2018 for a position-based model).
    believed: how likely each is relevant, 1/2 where that is not known.
    """
    explicit: dict[tuple[str, str], float] = {}
    shown: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        pair = event.query, event.document
        if event.grade is not None:
            explicit[pair] = event.grade
        elif event.clicked:
            shown[pair].append(1.0)
        elif event.rank is not None:
            before, seen = believed.get(pair, 0.5), examined(event.rank)
            shown[pair].append(before * (1.0 - seen) / (1.0 - before * seen) if before * seen < 1.0 else 0.0)
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for query, document in {**shown, **explicit}:
        pair = query, document
        mean = sum(shown[pair]) / len(shown[pair]) if shown[pair] else 0.0
        found[query][document] = explicit.get(pair, mean)
    return dict(found)


def merged(
    events: Mapping[str, Mapping[str, float]], given: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Grades by query and document from both; those given go before those of events."""
    return {query: {**events.get(query, {}), **given.get(query, {})} for query in {**given, **events}}
