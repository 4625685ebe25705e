"""The tables of a document store, and looking up their rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from boundarymorph.errors import CorruptIndex
from boundarymorph.retrieval.catalog import IndexConfiguration
from boundarymorph.retrieval.local.sqlite_file import storage_trouble

LIVING = "embedding IS NOT NULL"
COVERED = "documents INDEXED BY living"  # to read sequence and id without the documents
_PARAMETERS = 500
SCHEMA_VERSION = 4
_APPLICATION = 0x424D4F52

# A row without an embedding is a tombstone. The text is last, so that catching up and filters do not read it.
SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value);
CREATE TABLE documents (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    digest BLOB,
    embedding BLOB,
    metadata BLOB,
    title TEXT,
    text TEXT
);
CREATE INDEX living ON documents (sequence, id) WHERE {LIVING};
CREATE INDEX tombstones ON documents (sequence) WHERE embedding IS NULL;
CREATE TABLE field_values (
    field TEXT NOT NULL,
    value NOT NULL,
    sequence INTEGER NOT NULL,
    PRIMARY KEY (field, value, sequence)
) WITHOUT ROWID;
"""


def create(path: Path, *, encoder: str | None, dimension: int, kind: str, lexical: bool) -> None:
    """Create the file, which must not exist. Raises OSError, and what `storage_trouble` raises."""
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
        connection.executescript(SCHEMA)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.execute(f"PRAGMA application_id={_APPLICATION}")
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def configuration(path: Path, connection: sqlite3.Connection) -> IndexConfiguration:
    """Return what a store was created with, and whether its words are indexed now. Raises CorruptIndex unless it is one
    of the present schema version."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise CorruptIndex(f"{path} is not an index of BoundaryMORPH")
    if version != SCHEMA_VERSION:
        raise CorruptIndex(
            f"{path} has schema version {version} and this program reads version {SCHEMA_VERSION}; build the index anew"
        )
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    return IndexConfiguration(
        meta["encoder"], meta["dimension"], meta["created"], meta["kind"], meta["words"] is not None
    )


def select(
    connection: sqlite3.Connection,
    columns: str,
    keys: Iterable[str] | Iterable[int],
    *,
    by: str = "id",
) -> list[Any]:
    """Return columns of the documents with these keys, unordered, without tombstones. by: the column of the keys."""
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
    """Return what the store keeps about itself under a key of its table `meta`; None if that is nothing."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None
