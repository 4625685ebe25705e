"""The tables of a document store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from boundarymorph.errors import CorruptIndex
from boundarymorph.retrieval.catalog import IndexConfiguration
from boundarymorph.retrieval.local import metadata
from boundarymorph.retrieval.local.lookup import LIVING
from boundarymorph.retrieval.local.sqlite_file import SqliteFile, storage_trouble

SCHEMA_VERSION = 4
_APPLICATION = 0x424D4F52

# A row without an embedding is a tombstone. The text is last, so that catching up and filters do not read it.
_SCHEMA = f"""
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
        connection.executescript(_SCHEMA + metadata.SCHEMA)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.execute(f"PRAGMA application_id={_APPLICATION}")
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def check(store: SqliteFile) -> None:
    """Raise CorruptIndex unless the file is an index of the present schema version."""
    with store.transaction() as connection:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise CorruptIndex(f"{store.path} is not an index of BoundaryMORPH")
    if version != SCHEMA_VERSION:
        raise CorruptIndex(
            f"{store.path} has schema version {version} and this program reads version {SCHEMA_VERSION}; build the "
            "index anew"
        )


def configuration(connection: sqlite3.Connection) -> IndexConfiguration:
    """Return what the store was created with, and whether its words are indexed now."""
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    return IndexConfiguration(
        meta["encoder"], meta["dimension"], meta["created"], meta["kind"], meta["words"] is not None
    )
