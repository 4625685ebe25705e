"""Looking up rows of the document table by id or by sequence number."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import orjson

from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.pieces import STOP, first_piece, size_of

_PARAMETERS = 500
LIVING = "embedding IS NOT NULL"
COVERED = "documents INDEXED BY living"  # to read sequence and id without the documents


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


def documents(connection: sqlite3.Connection, ids: Sequence[str], *, texts: bool) -> dict[str, Document]:
    """See `Index.documents`."""
    columns = "id, text, title, metadata" if texts else "id, '', NULL, metadata"
    return first_piece(lambda few: {row[0]: _document(row) for row in select(connection, columns, few)}, ids)


def page(connection: sqlite3.Connection, after: str, most: int, size: int) -> list[Document]:
    """See `Paged.page`."""
    found: list[Document] = []
    for row in connection.execute(
        f"SELECT id, text, title, metadata FROM documents WHERE {LIVING} AND id > ? ORDER BY id LIMIT ?",  # noqa: S608
        (after, most),
    ):
        found.append(_document(row))
        size -= size_of(found[-1])
        if size <= 0:
            break
    return found


def outlines(connection: sqlite3.Connection, most: int) -> list[tuple[int, Mapping[str, Any]]]:
    """See `Paged.outlines`."""
    found: list[tuple[int, Mapping[str, Any]]] = []
    read = 0
    for characters, metadata in connection.execute(
        "SELECT characters(text) + characters(coalesce(title, '')), metadata "  # noqa: S608
        f"FROM documents WHERE {LIVING} ORDER BY id LIMIT ?",
        (most,),
    ):
        found.append((characters, orjson.loads(metadata)))
        read += characters + len(metadata)
        if read >= STOP:
            break
    return found


def last_sequence(connection: sqlite3.Connection) -> int:
    """Return the greatest sequence number of any write or deletion; 0 for none."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'documents'").fetchone()
    return int(row[0]) if row else 0


def fact(connection: sqlite3.Connection, key: str) -> Any:
    """Return what the store keeps about itself under a key of its table `meta`; None if that is nothing."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


def _document(row: tuple[str, str, str | None, bytes]) -> Document:
    id, text, title, metadata = row
    return Document(id, text, title, orjson.loads(metadata))
