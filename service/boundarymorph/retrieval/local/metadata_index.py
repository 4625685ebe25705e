"""The metadata index of a document store: which documents have a value in a field, in the store's SQLite file.

A term is a hash of the path of a field and one of its values. Terms only narrow a filter down: the metadata of each
candidate are checked afterwards, so a hash collision costs a comparison but never changes an answer.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.retrieval.filters import MAX_STRING, AllOf, AnyOf, Compare, Condition, Scalar, spellings
from boundarymorph.retrieval.local.lookup import COVERED, select

MOST_TERMS = 256  # per document
UNINDEXED = -1  # the only term of a document with more values than that, which any filter may match

SCHEMA = """
CREATE TABLE terms (
    term INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    PRIMARY KEY (term, sequence)
) WITHOUT ROWID;
"""

_DOUBLE = struct.Struct("<d")
_FIRST_LIMIT, _GROWTH = 1_000, 8


def terms_of(metadata: bytes) -> set[int]:
    """Return the terms of one document's stored JSON metadata: one for each value that a filter can contain."""
    terms: set[int] = set()
    for path, value in _values(orjson.loads(metadata)):
        # A filter compares strings up to their first NUL, and contains none that is longer than this.
        if isinstance(value, str) and len(value.partition("\0")[0]) > MAX_STRING:
            continue
        terms.add(_term(path, value))
        if len(terms) > MOST_TERMS:
            return {UNINDEXED}
    return terms


def add(connection: sqlite3.Connection, documents: Iterable[tuple[int, bytes]]) -> None:
    """Index new documents, by sequence number and metadata, in the caller's transaction."""
    connection.executemany("INSERT INTO terms VALUES (?, ?)", sorted(_rows(documents)))


def remove(connection: sqlite3.Connection, sequences: Iterable[int]) -> None:
    """Remove documents. Must be called while they are still in the document table, which has their metadata."""
    rows = sorted(_rows(select(connection, "sequence, metadata", sequences, by="sequence", table=COVERED)))
    connection.executemany("DELETE FROM terms WHERE term = ? AND sequence = ?", rows)


def candidates(connection: sqlite3.Connection, condition: Condition, after: int, most: int) -> NDArray[np.int64] | None:
    """Return ascending sequence numbers greater than `after` that include all documents that match a condition.

    None if the terms cannot narrow the condition down to `most` documents, as for a range or for `not`. The work is
    proportional to the number of candidates, not to the number of documents.
    """
    limit = min(_FIRST_LIMIT, most)
    while (found := _narrowed(connection, condition, after, limit)) is None and limit < most:
        limit = min(_GROWTH * limit, most)
    return found


def _narrowed(connection: sqlite3.Connection, condition: Condition, after: int, limit: int) -> NDArray[np.int64] | None:
    """Do the same as `candidates`. Each part of a condition reads at most `limit` + 1 rows of the index."""
    match condition:
        case Compare(path, _, "in", values):
            terms = [_term(names, value) for names in spellings(path) for value in values]
            return _having(connection, terms, after, limit)
        case AllOf(parts):
            each = [_narrowed(connection, part, after, limit) for part in parts]
            return min((found for found in each if found is not None), key=len, default=None)
        case AnyOf(parts):
            found = [np.empty(0, np.int64)]
            for part in parts:
                if (of_part := _narrowed(connection, part, after, limit)) is None:
                    return None
                found.append(of_part)
            union = np.unique(np.concatenate(found))
            return union if len(union) <= limit else None
        case _:
            return None


def _having(connection: sqlite3.Connection, terms: list[int], after: int, limit: int) -> NDArray[np.int64] | None:
    places = ",".join("?" * (len(terms) + 1))
    rows = connection.execute(
        f"SELECT sequence FROM terms WHERE term IN ({places}) AND sequence > ? LIMIT ?",  # noqa: S608
        (UNINDEXED, *terms, after, limit + 1),
    ).fetchall()
    return np.unique(np.array(rows, dtype=np.int64)) if len(rows) <= limit else None


def _rows(documents: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, int]]:
    for sequence, metadata in documents:
        for term in terms_of(metadata):
            yield term, sequence


def _values(metadata: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Scalar]]:
    """Yield every value, including those in nested objects and lists, with the path of its field."""
    for name, value in metadata.items():
        path = (*above, name)
        if len(name) > MAX_STRING:
            continue  # no filter can contain this field
        if isinstance(value, dict):
            yield from _values(value, path)
        else:
            for element in value if isinstance(value, list) else (value,):
                if not isinstance(element, (dict, list)):
                    yield path, element


def _term(path: tuple[str, ...], value: Scalar) -> int:
    """Return the term. Equal values have equal terms: 1 and 1.0, 0.0 and -0.0, strings that are equal up to a NUL."""
    if isinstance(value, str):
        return crc32(value.partition("\0")[0].encode(), _hash(path, "text"))
    if value is None or isinstance(value, bool):
        return _hash(path, str(value))
    return crc32(_DOUBLE.pack(float(value) + 0.0), _hash(path, "number"))


@lru_cache(maxsize=1_024)
def _hash(path: tuple[str, ...], type: str) -> int:
    return crc32(orjson.dumps((*path, type)))
