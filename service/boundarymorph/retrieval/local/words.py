"""The words of a document store: by which rules they are indexed, and indexing them later or anew."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from boundarymorph.errors import CorruptIndex
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.lookup import LIVING, fact
from boundarymorph.retrieval.local.schema import BATCH
from boundarymorph.retrieval.words.lexical import READABLE_VERSIONS, WORDS_VERSION
from boundarymorph.retrieval.words.lexical_index import append, bury, clear, merge_segments

_EVERY_SEQUENCE = 2**63 - 1
# Up to which number an index in the making by the present rules has come; earlier programs said words_until.
_UNTIL = f"words_{WORDS_VERSION}_until"


def words_version(connection: sqlite3.Connection) -> int | None:
    """Return the version of the rules by which the words are indexed, None if they are not, or not all yet.

    Raises CorruptIndex for a version that this program cannot read.
    """
    version: int | None = fact(connection, "words")
    if version not in (None, *READABLE_VERSIONS):
        raise CorruptIndex(
            f"the words of the index were made by version {version} of the rules and this program has "
            f"version {WORDS_VERSION}; rebuild the index"
        )
    return version


def words_until(connection: sqlite3.Connection) -> int:
    """Return the sequence number up to which the words of the documents are indexed."""
    until: int = _EVERY_SEQUENCE if words_version(connection) else fact(connection, _UNTIL) or 0
    return until


def bury_words(connection: sqlite3.Connection, sequences: Sequence[int]) -> None:
    """Record in the index of the words, complete or not, that documents were replaced or deleted."""
    until = words_until(connection)
    bury(connection, [sequence for sequence in sequences if sequence <= until])


def index_more_words(connection: sqlite3.Connection) -> int | None:
    """Index one batch; return the number of indexed documents, or None if the index was already complete.

    Until the last batch has caught up with all writes, writers only record deletions in what it has indexed. The first
    batch removes the words of an earlier version.
    """
    if words_version(connection) == WORDS_VERSION:
        return None
    until = fact(connection, _UNTIL) or 0
    if until == 0:
        clear(connection)
        connection.execute("DELETE FROM meta WHERE key IN ('words', 'words_until')")
    rows = connection.execute(
        f"SELECT sequence, id, title, text FROM documents WHERE {LIVING} AND sequence > ? "  # noqa: S608
        "ORDER BY sequence LIMIT ?",
        (until, BATCH),
    ).fetchall()
    contents = [Document(id, text, title).content for _, id, title, text in rows]
    append(connection, WORDS_VERSION, [sequence for sequence, *_ in rows], contents)
    merge_segments(connection)
    if len(rows) < BATCH:
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('words', ?)", (WORDS_VERSION,))
        connection.execute("DELETE FROM meta WHERE key = ?", (_UNTIL,))
    else:
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_UNTIL, rows[-1][0]))
    (done,) = connection.execute("SELECT coalesce(sum(documents - dead), 0) FROM segments").fetchone()
    return int(done)
