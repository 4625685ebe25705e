"""Looking up rows of the document table by id or by sequence number."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

_PARAMETERS = 500
LIVING = "embedding IS NOT NULL"
Key = TypeVar("Key")

# A covering index of what filters and rankings read of every document, without the texts.
SCHEMA = f"""
CREATE INDEX filtered ON documents (sequence, id, metadata) WHERE {LIVING};
"""


def select(connection: sqlite3.Connection, columns: str, ids: Iterable[str], *, where: str = LIVING) -> list[Any]:
    """Return the rows of the documents with these ids, unordered, without tombstones."""
    rows: list[Any] = []
    for part in _parts(ids):
        places = ",".join("?" * len(part))
        rows += connection.execute(f"SELECT {columns} FROM documents WHERE {where} AND id IN ({places})", part)  # noqa: S608
    return rows


def ids_of(connection: sqlite3.Connection, sequences: Iterable[int]) -> dict[int, str]:
    """Return the ids of the living documents with these sequence numbers, unordered; reads no documents."""
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
    """Return the embeddings of the living documents with these sequence numbers, unordered."""
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
    """Return sequence number and metadata of the living documents with these numbers, unordered."""
    rows: list[tuple[int, bytes]] = []
    for part in _parts(sequences):
        places = ",".join("?" * len(part))
        rows += connection.execute(
            f"SELECT sequence, metadata FROM documents INDEXED BY filtered WHERE {LIVING} AND sequence IN ({places})",  # noqa: S608
            part,
        )
    return rows


def last_sequence(connection: sqlite3.Connection) -> int:
    """Return the greatest sequence number of any write or deletion; 0 for none."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'documents'").fetchone()
    return int(row[0]) if row else 0


def purged(connection: sqlite3.Connection) -> int:
    """Return the sequence number up to which tombstones have been purged."""
    (sequence,) = connection.execute("SELECT value FROM meta WHERE key = 'purged'").fetchone()
    return int(sequence)


def _parts(keys: Iterable[Key]) -> Iterator[list[Key]]:
    remaining = iter(dict.fromkeys(keys))
    while part := list(islice(remaining, _PARAMETERS)):
        yield part
