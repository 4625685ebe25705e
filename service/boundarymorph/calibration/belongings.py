"""Files that belong to an index besides its documents: its description, its default for `distinct`, its judgements
(SQLite) and its calibrations (JSON)."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import orjson

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.database import Database
from boundarymorph.errors import InvalidInput, LimitExceeded, UnknownIndex

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def read(file: Path, name: str) -> Calibration | None:
    """Return the calibration in a file; None if there is no file. name: for messages.

    Raises InvalidInput for a damaged file or one of another version, and OSError.
    """
    try:
        return Calibration.of_json(orjson.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (orjson.JSONDecodeError, InvalidInput, AttributeError) as error:
        raise InvalidInput(f"the calibration {name!r} cannot be used: {error}") from None


def write(file: Path, content: bytes | Calibration) -> None:
    """Write a file, whole or not at all, in place of an earlier one. Raises OSError."""
    if isinstance(content, Calibration):
        content = orjson.dumps(content.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    scratch = file.with_name(f".{file.name}.{uuid4().hex}")
    try:
        scratch.write_bytes(content)
        os.replace(scratch, file)
    finally:
        scratch.unlink(missing_ok=True)


class CalibrationFolder:
    """Calibrations by name: NAME.json in one folder."""

    def __init__(self, path: Path, *, parents: bool = True) -> None:
        """path: need not exist before the first calibration is kept. parents: whether the folder that it is in is made,
        too."""
        self._path, self._parents = path, parents

    def get(self, name: str) -> Calibration | None:
        """Return the calibration of this name; None if there is none.

        Raises InvalidInput for what is no name, a damaged file or one of another version.
        """
        return read(self._file(name), name)

    def keep(self, calibration: Calibration) -> None:
        """Write it in place of an earlier one of the same name."""
        file = self._file(calibration.name)
        self._path.mkdir(parents=self._parents, exist_ok=True)
        write(file, calibration)

    def names(self) -> Sequence[str]:
        return sorted(file.stem for file in self._path.glob("*.json") if NAME.fullmatch(file.stem))

    def _file(self, name: str) -> Path:
        return self._path / f"{checked_name(name)}.json"


def checked_name(name: str) -> str:
    """Return a valid name of a calibration. Raises InvalidInput for any other."""
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is not a name of a calibration: up to 64 lower-case letters, digits, '.', '_' and '-'"
        )
    return name


SCHEMA = (
    """
create table if not exists judgments (
    number integer primary key, at real not null, query text not null, document text not null,
    grade real not null, caller text not null
)
""",
    "create index if not exists by_query on judgments (query)",
)
INSERT = "insert into judgments (at, query, document, grade, caller) values (?, ?, ?, ?, ?)"
# The grade is null in lines of 0.1.0 that were of clicks.
SELECT = """select number, query, document, grade from judgments where number > ? and grade is not null
order by number limit ?"""
ALL = -1  # as a limit of SQLite


@dataclass(frozen=True, slots=True)
class Event:
    """What somebody said of a document: a grade of 0 or more."""

    query: str
    document: str
    grade: float


class Feedback:
    """The events of an index, oldest first. Methods block and raise as those of `Database`. What only reads or deletes
    makes no file."""

    def __init__(self, path: Path, index: str, prepare: Callable[[], None]) -> None:
        """path: of the file, which need not exist; index: its name; prepare: makes the folder of a new file."""
        self._database, self._index = Database(path, SCHEMA, prepare), index
        self.copy_to = self._database.copy_to

    def add(self, events: Sequence[Event], caller: str, at: float, most: int) -> int:
        """Keep all events or none, and return how many the index has. most: as it may have, else LimitExceeded."""
        with self._database.writing() as database:
            before = _count(database)
            if before + len(events) > most:
                raise LimitExceeded(
                    f"the index {self._index!r} has {before:,} judgements of at most {most:,} "
                    "(calibration.judgments); calibrate with them and delete them"
                )
            rows = [(at, event.query, event.document, event.grade, caller) for event in events]
            database.executemany(INSERT, rows)
        return before + len(events)

    def count(self) -> int:
        with self._database.opened() as database:
            return 0 if database is None else _count(database)

    def events(self) -> Sequence[Event]:
        return [event for _, event in self.page(0, ALL)]

    def page(self, after: int, most: int) -> Sequence[tuple[int, Event]]:
        """Return the first events, at most so many, whose numbers come after this one, with their numbers."""
        with self._database.opened() as database:
            found = [] if database is None else database.execute(SELECT, (after, most)).fetchall()
        return [(number, Event(query, id, grade)) for number, query, id, grade in found]

    def delete(self, query: str | None = None) -> int:
        """Delete the events, or those of a query, and return how many there were. All of them on a full disk, too."""
        with self._database.opened() as database:
            if database is None:
                return 0
            if query is not None:
                return database.execute("delete from judgments where query = ?", (query,)).rowcount
            database.execute("pragma journal_mode = memory")  # needs no room; what a crash may damage was to go anyway
            return database.execute("delete from judgments").rowcount


def _count(database: sqlite3.Connection) -> int:
    found: int = database.execute("select count(*) from judgments").fetchone()[0]
    return found


def grades_of(events: Sequence[Event], given: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return grades by query and document from both: of events, the last one of a pair counts, and those given go
    before them."""
    found: defaultdict[str, dict[str, float]] = defaultdict(dict, {query: {} for query in given})
    for event in events:
        found[event.query][event.document] = event.grade
    for query, grades in given.items():
        found[query].update(grades)
    return dict(found)


FOLDER = "belongings"  # in the folder of an index
JUDGMENTS, DEFAULT, DESCRIPTION, NAMED = "judgments.sqlite3", "calibration.json", "description.txt", "calibrations"
DISTINCT = "distinct.txt"
_FILES = "|".join(re.escape(file) for file in (JUDGMENTS, DEFAULT, DESCRIPTION, DISTINCT))
_FILE = re.compile(rf"{FOLDER}/({_FILES}|{NAMED}/{NAME.pattern}\.json)")


def is_one_of_them(path: str) -> bool:
    """Whether a path in the folder of an index is that of a file of `Belongings`."""
    return _FILE.fullmatch(path) is not None


class Belongings:
    """The description, judgements and calibrations of one index, in one folder, whatever the index is called.

    The default of the index has the name of the index; others have names of their own. Methods block and raise OSError.
    """

    def __init__(self, folder: Path, index: str, *, within_index: bool = True) -> None:
        """folder: need not exist. within_index: whether it is within the folder of the index, which does."""
        self.index, self._folder, self._within = index, folder, within_index
        self.judgments = Feedback(folder / JUDGMENTS, index, self._make)
        self._named = CalibrationFolder(folder / NAMED, parents=not within_index)

    def description(self) -> str | None:
        """Return what the documents are, in somebody's words; None if nobody has said it."""
        return self._text(DESCRIPTION)

    def describe(self, text: str) -> None:
        """Keep a description in place of an earlier one; empty for none. Raises UnknownIndex if the index is gone."""
        self._keep(DESCRIPTION, text)

    def distinct(self) -> str | None:
        """Return the field of the metadata by which selections are distinct if a request does not say otherwise."""
        return self._text(DISTINCT)

    def distinguish(self, field: str) -> None:
        """Keep the field of `distinct`; empty for none. Raises UnknownIndex if the index is gone."""
        self._keep(DISTINCT, field)

    def calibration(self, name: str | None = None) -> Calibration | None:
        """Return the calibration of this name, or the default of the index; None if there is none.

        Raises InvalidInput for what is no name, and for a calibration that cannot be read.
        """
        is_default = name is None or name == self.index
        found = read(self._folder / DEFAULT, self.index) if is_default else self._named.get(str(name))
        return None if found is None else replace(found, name=name or self.index, index=self.index)

    def keep(self, made: Calibration) -> None:
        """Write a calibration in place of an earlier one of its name. Raises UnknownIndex if the index is gone."""
        with self._of_an_index():
            if made.name == self.index:
                write(self._folder / DEFAULT, made)
            else:
                self._named.keep(made)

    def names(self) -> Sequence[str]:
        """Return the names of the calibrations."""
        return [*([self.index] if (self._folder / DEFAULT).exists() else []), *self._named.names()]

    def copy_to(self, target: Path) -> None:
        """Copy everything, each file whole, into a new folder, which is made if there is anything."""
        if not self._folder.exists():
            return
        (target / NAMED).mkdir(parents=True)
        self.judgments.copy_to(target / JUDGMENTS)
        for file in (DEFAULT, DESCRIPTION, DISTINCT, *(f"{NAMED}/{name}.json" for name in self._named.names())):
            with suppress(FileNotFoundError):
                shutil.copyfile(self._folder / file, target / file)

    def _text(self, file: str) -> str | None:
        try:
            return (self._folder / file).read_text("utf-8", errors="replace").strip() or None
        except FileNotFoundError:
            return None

    def _keep(self, file: str, text: str) -> None:
        with self._of_an_index():
            if text:
                write(self._folder / file, text.encode())
            else:
                (self._folder / file).unlink(missing_ok=True)

    @contextmanager
    def _of_an_index(self) -> Iterator[None]:
        """Write within the folder. Raises UnknownIndex if it goes away before or meanwhile, as the index is deleted."""
        self._make()
        try:
            yield
        except FileNotFoundError:
            raise _unknown(self.index) from None

    def _make(self) -> None:
        try:
            self._folder.mkdir(parents=not self._within, exist_ok=True)
        except FileNotFoundError:
            raise _unknown(self.index) from None


def _unknown(index: str) -> UnknownIndex:
    """Return the error of an index that does not exist."""
    return UnknownIndex(f"there is no index {index!r}")
