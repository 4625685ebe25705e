"""The words of a document store: whether they are indexed, and indexing them later."""

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
            f"the words of the index were made by version {version} of the rules and this program has "
            f"version {WORDS_VERSION}; rebuild the index"
        )
    return version is not None


def words_until(connection: sqlite3.Connection) -> int:
    """Return the sequence number up to which the words of the documents are indexed."""
    if has_words(connection):
        return _EVERY_SEQUENCE
    row = connection.execute("SELECT value FROM meta WHERE key = 'words_until'").fetchone()
    return int(row[0]) if row else 0


def bury_words(connection: sqlite3.Connection, sequences: Sequence[int]) -> None:
    """Record in the index of the words, complete or not, that documents were replaced or deleted."""
    until = words_until(connection)
    bury(connection, [sequence for sequence in sequences if sequence <= until])


def index_more_words(connection: sqlite3.Connection) -> int | None:
    """Index one batch; return the number of indexed documents, or None if the index was already complete.

    Until the last batch has caught up with all writes, writers only record deletions in what it has indexed.
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
