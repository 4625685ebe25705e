"""The tables of a document store, and migrating those of older files."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from boundarymorph.errors import CorruptIndex
from boundarymorph.retrieval.catalog import IndexConfiguration
from boundarymorph.retrieval.local import metadata_index
from boundarymorph.retrieval.local.lookup import LIVING, fact
from boundarymorph.retrieval.local.lookup import SCHEMA as LOOKUP_SCHEMA
from boundarymorph.retrieval.local.sqlite_file import SqliteFile, execute, storage_trouble
from boundarymorph.retrieval.words.lexical import WORDS_VERSION
from boundarymorph.retrieval.words.lexical_index import SCHEMA as LEXICAL_SCHEMA

SCHEMA_VERSION = 3
BATCH = 1_000  # documents per transaction of a long task, while other writers wait
REPLACED_KINDS = {"hnsw": "ivf", "sq8": "ivf"}  # kinds of earlier versions
_READABLE = (1, 2, SCHEMA_VERSION)
_APPLICATION = 0x424D4F52
_log = logging.getLogger(__name__)

# A row without an embedding is a tombstone. The embedding precedes the text, so that catching up does not read it.
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value);
CREATE TABLE documents (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    digest BLOB,
    embedding BLOB,
    title TEXT,
    text TEXT,
    metadata BLOB
);
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
        "words": WORDS_VERSION if lexical else None,
    }
    path.touch(exist_ok=False)  # the system's error is clearer than SQLite's
    with storage_trouble(path), closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(_SCHEMA + LOOKUP_SCHEMA + LEXICAL_SCHEMA + metadata_index.SCHEMA)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.execute(f"PRAGMA application_id={_APPLICATION}")
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def migrate(store: SqliteFile) -> None:
    """Migrate from schema version 1 (adds tables for words, empty) and from version 2 (adds the metadata index)."""
    with store.transaction() as connection:
        version = _read_version(store, connection)
    if version < SCHEMA_VERSION:
        _log.info("migrating %s from schema version %d to %d", store.path, version, SCHEMA_VERSION)
    if version == 1:
        with store.transaction("IMMEDIATE") as connection:
            if _read_version(store, connection) == 1:
                execute(connection, LOOKUP_SCHEMA + LEXICAL_SCHEMA)
                connection.execute("INSERT INTO meta VALUES ('words', NULL)")
                connection.execute("PRAGMA user_version=2")
    while version < SCHEMA_VERSION:
        version = _index_more_metadata(store)


def _index_more_metadata(store: SqliteFile) -> int:
    """Index a batch of metadata of a store of schema version 2; return its version afterwards."""
    with store.write() as connection:
        if _read_version(store, connection) == SCHEMA_VERSION:
            return SCHEMA_VERSION
        until = fact(connection, "metadata_until")
        if until is None:
            execute(connection, metadata_index.SCHEMA)
        rows = connection.execute(
            f"SELECT sequence, metadata FROM documents INDEXED BY filtered WHERE {LIVING} AND sequence > ? "  # noqa: S608
            "ORDER BY sequence LIMIT ?",
            (until or 0, BATCH),
        ).fetchall()
        metadata_index.add(connection, rows)
        if len(rows) == BATCH:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('metadata_until', ?)", (rows[-1][0],))
            return 2
        connection.execute("DELETE FROM meta WHERE key = 'metadata_until'")
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    return SCHEMA_VERSION


def _read_version(store: SqliteFile, connection: sqlite3.Connection) -> int:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise CorruptIndex(f"{store.path} is not an index of BoundaryMORPH")
    if version not in _READABLE:
        raise CorruptIndex(f"{store.path} has schema version {version}; this program reads version {SCHEMA_VERSION}")
    return int(version)


def configuration(connection: sqlite3.Connection, lexical: bool) -> IndexConfiguration:
    """Return what the store was created with. lexical: whether it has the words now."""
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    kind = meta.get("kind", "flat")
    return IndexConfiguration(
        meta["encoder"], meta["dimension"], meta["created"], REPLACED_KINDS.get(kind, kind), lexical
    )
