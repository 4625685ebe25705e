"""Rows of the document table by id or by sequence number."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

_PARAMETERS = 500
LIVING = "embedding IS NOT NULL"
Key = TypeVar("Key")

# What filters and rankings read of every document lies together here, without the texts.
SCHEMA = f"""
CREATE INDEX filtered ON documents (sequence, id, metadata) WHERE {LIVING};
"""


def select(connection: sqlite3.Connection, columns: str, ids: Iterable[str], *, where: str = LIVING) -> list[Any]:
    """The rows of the documents of these ids, in no particular order; tombstones are left out."""
    rows: list[Any] = []
    for part in _parts(ids):
        places = ",".join("?" * len(part))
        rows += connection.execute(f"SELECT {columns} FROM documents WHERE {where} AND id IN ({places})", part)  # noqa: S608
    return rows


def ids_of(connection: sqlite3.Connection, sequences: Iterable[int]) -> dict[int, str]:
    """The ids of the documents of these sequence numbers that live, in no particular order; reads no documents."""
    ids: dict[int, str] = {}
    for part in _parts(sequences):
        places = ",".join("?" * len(part))
        ids.update(
            connection.execute(
                f"SELECT sequence, id FROM documents INDEXED BY filtered WHERE {LIVING} AND sequence IN ({places})",  # noqa: S608
                part,
            )
        )
    return ids


def embeddings_of(connection: sqlite3.Connection, sequences: Iterable[int]) -> list[bytes]:
    """The embeddings of the documents of these sequence numbers that live, in no particular order."""
    embeddings: list[bytes] = []
    for part in _parts(sequences):
        places = ",".join("?" * len(part))
        rows = connection.execute(
            f"SELECT embedding FROM documents WHERE {LIVING} AND sequence IN ({places})",  # noqa: S608
            part,
        )
        embeddings += [embedding for (embedding,) in rows]
    return embeddings


def metadata_of(connection: sqlite3.Connection, sequences: Iterable[int]) -> list[tuple[int, bytes]]:
    """Sequence number and metadata of the documents of these numbers that live, in no particular order."""
    rows: list[tuple[int, bytes]] = []
    for part in _parts(sequences):
        places = ",".join("?" * len(part))
        rows += connection.execute(
            f"SELECT sequence, metadata FROM documents INDEXED BY filtered WHERE {LIVING} AND sequence IN ({places})",  # noqa: S608
            part,
        )
    return rows


def last_sequence(connection: sqlite3.Connection) -> int:
    """The greatest sequence number that a write or deletion has taken; 0 for none."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'documents'").fetchone()
    return int(row[0]) if row else 0


def purged(connection: sqlite3.Connection) -> int:
    """The sequence number up to which deletions are forgotten."""
    (sequence,) = connection.execute("SELECT value FROM meta WHERE key = 'purged'").fetchone()
    return int(sequence)


def _parts(keys: Iterable[Key]) -> Iterator[list[Key]]:
    remaining = iter(dict.fromkeys(keys))
    while part := list(islice(remaining, _PARAMETERS)):
        yield part
