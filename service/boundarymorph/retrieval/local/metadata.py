"""Filter by the metadata of a document store.

There is a table of their values, and a cache of the matches of recent filters.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from threading import Lock
from typing import Any

import cachetools
import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.inference.concurrency import check_awaited
from boundarymorph.retrieval.filters import MAX_STRING, AllOf, AnyOf, Compare, Condition, Exists, Filter, Not, spellings
from boundarymorph.retrieval.local.sqlite_file import LIVING, interruptible, last_sequence, select

FEW = 2_000  # most writes since an answer for which their metadata are read one by one
_REMAINS = 10_000  # writes after which an answer is computed again, without deleted documents
_ENTRY_BYTES = 1_024  # memory of a filter, without its values
_EVERY = 2**62
_FIRST_LIMIT, _GROWTH = 250, 4
_READ_PER_CHECK = 8  # rows of an index that take the time of one document's metadata to read
_BETWEEN = "\x1f"  # the names of a path; no filter can contain it
# SQLite orders numbers before texts before bytes, so the bytes of other values come after both.
_NULL, _FALSE, _TRUE, _PRESENT = b"\0", b"\1", b"\2", b"\3"
_TESTS = {"gt": "value > ?", "gte": "value >= ?", "lt": "value < ?", "lte": "value <= ?"}
# The other end of a range, within a type. Numbers come first and need none below: SQLite uses one bound on each side.
_ENDS = {
    ("number", "g"): " AND value < ''",
    ("number", "l"): "",
    ("text", "g"): " AND value < x''",
    ("text", "l"): " AND value >= ''",
}
_SPARSE = 32  # ratio of a set's span to its size from which sorting is faster than a mask
_PIECE = 2**19  # characters that are parsed without a pause for other threads
_NONE = np.empty(0, np.int64)


def add(connection: sqlite3.Connection, documents: Iterable[tuple[int, bytes]]) -> None:
    """Write the values of new documents, in the caller's transaction.

    Documents come as sequence number and JSON metadata.
    """
    connection.executemany("INSERT OR IGNORE INTO field_values VALUES (?, ?, ?)", _rows(documents))


def remove(connection: sqlite3.Connection, sequences: Iterable[int]) -> None:
    """Remove the values of documents, which must still be in the document table.

    Their metadata are read from there.
    """
    rows = _rows(select(connection, "sequence, metadata", sequences, by="sequence"))
    connection.executemany("DELETE FROM field_values WHERE field = ? AND value = ? AND sequence = ?", rows)


def _rows(documents: Iterable[tuple[int, bytes]]) -> list[tuple[str, Any, int]]:
    """Return the rows of documents in an order in which writing them touches few pages."""
    rows = [(*each, sequence) for sequence, metadata in documents for each in _values(orjson.loads(metadata))]
    return sorted(rows, key=lambda row: row[0])


def _values(metadata: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field with each of its values; a field without a scalar is only present."""
    for name, value in metadata.items():
        field = above + name
        if len(field) > MAX_STRING or _BETWEEN in name:
            continue  # no filter can contain it
        elements = value if isinstance(value, list) else [value]
        scalars = [_stored(element) for element in elements if not isinstance(element, (dict, list))]
        for scalar in scalars or [_PRESENT]:
            yield field, scalar
        if isinstance(value, dict):
            yield from _values(value, field + _BETWEEN)


def _stored(value: object) -> Any:
    """Return the stored form of a scalar.

    A text ends at its first NUL, and at the greatest length of a filter's value.
    """
    if isinstance(value, str):
        return value.partition("\0")[0][: MAX_STRING + 1]
    if value is None or isinstance(value, bool):
        return {None: _NULL, False: _FALSE, True: _TRUE}[value]
    return float(value) if isinstance(value, int) and value >= 2**63 else value


def _matching(connection: sqlite3.Connection, condition: Condition, most: int = _EVERY) -> NDArray[np.int64] | None:
    """Return ascending sequence numbers of all documents that match.

    It is None if a comparison reads more than `most` rows.
    """
    check_awaited()
    match condition:
        case Exists(path):
            return _with_fields(connection, spellings(path), "TRUE", (), most)
        case Compare():
            return _comparing(connection, condition, most)
        case AllOf(parts):
            return _meeting_all(connection, parts, most)
        case AnyOf(parts):
            each = [_matching(connection, part, most) for part in parts]
            if any(found is None for found in each):
                return None
            return _ascending(np.concatenate([found for found in each if found is not None] or [_NONE]))
        case Not(part):
            living = _living(connection, most)
            found = None if living is None else _matching(connection, part)
            return None if living is None or found is None else np.setdiff1d(living, found, assume_unique=True)


def _comparing(connection: sqlite3.Connection, leaf: Compare, most: int) -> NDArray[np.int64] | None:
    values: tuple[Any, ...] = tuple(map(_stored, leaf.values))
    test = f"value IN ({', '.join('?' * len(values))})"
    if leaf.comparison != "in":
        test = _TESTS[leaf.comparison] + _ENDS[leaf.type, leaf.comparison[0]]
    paths, every = spellings(leaf.path), _NONE
    for number, names in enumerate(paths):
        found = _with_fields(connection, [names], test, values, most)
        if found is not None and number and len(found):  # the first path with a value counts
            before = _with_fields(connection, paths[:number], "TRUE", (), most)
            found = None if before is None else np.setdiff1d(found, before, assume_unique=True)
        if found is None:
            return None
        every = _ascending(np.concatenate([every, found])) if len(every) else found
    return every


def _meeting_all(connection: sqlite3.Connection, parts: Iterable[Condition], most: int) -> NDArray[np.int64] | None:
    """Begin with the parts that few documents meet, and check the others on these."""
    remaining, limit = list(parts), min(_FIRST_LIMIT, most)
    if not remaining:
        return _living(connection, most)
    each = [_matching(connection, part, limit) for part in remaining]
    while all(found is None for found in each):
        if limit >= most:
            return None
        limit = min(_GROWTH * limit, most)
        each = [_matching(connection, part, limit) for part in remaining]
    met = reduce(_in_both, (found for found in each if found is not None))
    costly: list[Condition] = []
    for part in (part for part, found in zip(remaining, each, strict=True) if found is None):
        enough = _READ_PER_CHECK * len(met)
        further = _matching(connection, part, enough) if enough > _GROWTH * limit else None
        if further is None:
            costly.append(part)
        else:
            met = _in_both(met, further)
    if not costly:
        return met
    rows = select(connection, "sequence, metadata", met.tolist(), by="sequence")
    return np.sort(_meeting(rows, AllOf(frozenset(costly))))


def _in_both(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    return one[np.isin(one, other, assume_unique=True)]


def _meeting(rows: Iterable[tuple[int, bytes]], condition: Condition | Filter) -> NDArray[np.int64]:
    met = [sequence for sequence, metadata in rows if condition.matches(orjson.loads(metadata))]
    return np.array(met, dtype=np.int64)


def _with_fields(
    connection: sqlite3.Connection, paths: list[tuple[str, ...]], test: str, values: tuple[Any, ...], most: int
) -> NDArray[np.int64] | None:
    fields = [_BETWEEN.join(names) for names in paths]
    where = f"field_values WHERE field IN ({', '.join('?' * len(fields))}) AND {test}"
    found = _read(connection, where, (*fields, *values), most)
    return None if found is None else _ascending(found)


def _living(connection: sqlite3.Connection, most: int) -> NDArray[np.int64] | None:
    """Return ascending sequence numbers of all living documents, and perhaps others.

    It is None if there are more than `most`.
    """
    source = f"documents INDEXED BY living WHERE {LIVING}"
    ends = connection.execute(f"SELECT min(sequence) FROM {source} UNION ALL SELECT max(sequence) FROM {source}")  # noqa: S608
    (first,), (last,) = ends.fetchall()
    (rows,) = connection.execute("SELECT count(*) FROM documents").fetchone()
    if first is not None and most >= last - first + 1 <= 2 * rows:
        return np.arange(first, last + 1)
    return _read(connection, f"{source} ORDER BY sequence", (), most)


def _read(connection: sqlite3.Connection, source: str, values: tuple[Any, ...], most: int) -> NDArray[np.int64] | None:
    """Return sequence numbers in the order of the source, or None if there are more than `most`.

    They are read as one text for speed.
    """
    rows = f"SELECT sequence FROM {source} LIMIT ?"  # noqa: S608
    joined = f"SELECT count(*), group_concat(sequence, ' ') FROM ({rows})"  # noqa: S608
    count, text = connection.execute(joined, (*values, most + 1)).fetchone()
    return None if count > most else _numbers(text or "")


def _numbers(text: str) -> NDArray[np.int64]:
    pieces, start = [_NONE], 0
    while start < len(text):
        end = text.find(" ", start + _PIECE)
        end = len(text) if end < 0 else end
        pieces.append(np.fromstring(text[start:end], dtype=np.int64, sep=" "))
        start = end + 1
    return np.concatenate(pieces)


def _ascending(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    last = int(numbers.max(initial=0))
    if last > _SPARSE * len(numbers):
        return np.unique(numbers)
    mask = np.zeros(last + 1, dtype=np.bool_)
    mask[numbers] = True
    return np.flatnonzero(mask)


@dataclass(frozen=True, slots=True)
class _Matches:
    """The matches of a filter at write `until`; all of them were computed at write `full`."""

    sequences: NDArray[np.int64]
    until: int
    full: int
    bytes: int


class MatchingReader:
    """The documents that match a filter, cached for recent filters up to a bound of memory.

    Thread-safe.
    """

    def __init__(self, most_bytes: int) -> None:
        self._lock = Lock()
        self._known: cachetools.LRUCache[Filter, _Matches] = cachetools.LRUCache(most_bytes, lambda each: each.bytes)

    def sequences(self, connection: sqlite3.Connection, filter: Filter) -> NDArray[np.int64]:
        """Return ascending sequence numbers of all documents that match a filter.

        They are of the state of a transaction, and may include some deleted documents.

        Raises:
            CallerGone: If no caller waits for the answer any more.
        """
        last = last_sequence(connection)
        with self._lock:
            known = self._known.get(filter)
        if known is not None and known.until == last:
            return known.sequences
        with interruptible(connection):
            if known is not None and last - FEW <= known.until < last <= known.full + _REMAINS:
                since = connection.execute(
                    f"SELECT sequence, metadata FROM documents WHERE {LIVING} AND sequence > ? "  # noqa: S608
                    "ORDER BY sequence",
                    (known.until,),
                )
                found, full = np.concatenate([known.sequences, _meeting(since, filter)]), known.full
            else:
                every = _matching(connection, filter.condition)
                assert every is not None
                found, full = every, last
        found.flags.writeable = False
        if known is None or known.until < last:  # otherwise another thread has read a later state
            size = _ENTRY_BYTES + 2 * len(repr(filter.condition)) + found.nbytes
            with self._lock, suppress(ValueError):  # larger than the bound for all
                self._known[filter] = _Matches(found, last, full, size)
        return found
