"""Looking up rows of the document table by id or by sequence number."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from itertools import islice
from typing import Any

_PARAMETERS = 500
LIVING = "embedding IS NOT NULL"
COVERED = "documents INDEXED BY filtered"  # to read sequence, id and metadata without the documents

# A covering index of what filters and rankings read of every document, without the texts.
SCHEMA = f"""
CREATE INDEX filtered ON documents (sequence, id, metadata) WHERE {LIVING};
"""


def select(
    connection: sqlite3.Connection,
    columns: str,
    keys: Iterable[str] | Iterable[int],
    *,
    by: str = "id",
    table: str = "documents",
    where: str = LIVING,
) -> list[Any]:
    """Return columns of the documents with these keys, unordered, without tombstones. by: the column of the keys."""
    rows: list[Any] = []
    remaining = iter(dict.fromkeys(keys))
    while part := list(islice(remaining, _PARAMETERS)):
        places = ",".join("?" * len(part))
        rows += connection.execute(f"SELECT {columns} FROM {table} WHERE {where} AND {by} IN ({places})", part)  # noqa: S608
    return rows


def last_sequence(connection: sqlite3.Connection) -> int:
    """Return the greatest sequence number of any write or deletion; 0 for none."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'documents'").fetchone()
    return int(row[0]) if row else 0


def fact(connection: sqlite3.Connection, key: str) -> Any:
    """Return what the store keeps about itself under a key of its table `meta`; None if that is nothing."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None
