"""The words of a document store: whether it has them, and how they are made where it was created without."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from boundarymorph.errors import CorruptIndex
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.lookup import LIVING
from boundarymorph.retrieval.local.schema import BATCH
from boundarymorph.retrieval.words.lexical import WORDS_VERSION
from boundarymorph.retrieval.words.lexical_index import append, bury, merge_segments

_EVERY_SEQUENCE = 2**63 - 1


def has_words(connection: sqlite3.Connection) -> bool:
    row = connection.execute("SELECT value FROM meta WHERE key = 'words'").fetchone()
    version = row[0] if row else None
    if version not in (None, WORDS_VERSION):
        raise CorruptIndex(
            f"the words of the index were made by version {version} of their rules and this program has "
            f"version {WORDS_VERSION}; build the index anew"
        )
    return version is not None


def words_until(connection: sqlite3.Connection) -> int:
    """The sequence number up to which the words of the documents are indexed."""
    if has_words(connection):
        return _EVERY_SEQUENCE
    row = connection.execute("SELECT value FROM meta WHERE key = 'words_until'").fetchone()
    return int(row[0]) if row else 0


def bury_words(connection: sqlite3.Connection, sequences: Sequence[int]) -> None:
    """Note for the index of the words, complete or not, that documents are replaced or deleted."""
    until = words_until(connection)
    bury(connection, [sequence for sequence in sequences if sequence <= until])


def index_more_words(connection: sqlite3.Connection) -> int | None:
    """One batch; how many documents are indexed then, None when the words were complete before it.

    Until the last batch has read all that was written meanwhile, writers only bury what it has indexed.
    """
    until = words_until(connection)
    if until == _EVERY_SEQUENCE:
        return None
    rows = connection.execute(
        f"SELECT sequence, id, title, text FROM documents WHERE {LIVING} AND sequence > ? "  # noqa: S608
        "ORDER BY sequence LIMIT ?",
        (until, BATCH),
    ).fetchall()
    contents = [Document(id, text, title).content for _, id, title, text in rows]
    append(connection, [sequence for sequence, *_ in rows], contents)
    merge_segments(connection)
    if len(rows) < BATCH:
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('words', ?)", (WORDS_VERSION,))
        connection.execute("DELETE FROM meta WHERE key = 'words_until'")
    else:
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('words_until', ?)", (rows[-1][0],))
    (done,) = connection.execute("SELECT coalesce(sum(documents - dead), 0) FROM segments").fetchone()
    return int(done)
