"""The inverted index of a document store: segments of postings, in the store's SQLite file and transactions.

Documents are identified by sequence number, which always means the same version of a document. So segments never
change: a replaced or deleted document is recorded as dead, and left out when its segment is merged or rewritten.
"""

from __future__ import annotations

import sqlite3
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import CorruptIndex
from boundarymorph.retrieval.words.lexical import contributions, hashes, saturation, weight
from boundarymorph.retrieval.words.postings import (
    NOWHERE,
    SEGMENT_DOCUMENTS,
    Postings,
    WordSegment,
    assemble,
    build,
    chunks,
    find,
    merge,
    to_merge,
)

# The key of a chunk is its segment times 2**32 plus its first term.
SCHEMA = """
CREATE TABLE segments (
    segment INTEGER PRIMARY KEY AUTOINCREMENT,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    documents INTEGER NOT NULL,
    dead INTEGER NOT NULL
);
CREATE TABLE segment_documents (segment INTEGER PRIMARY KEY, sequences BLOB NOT NULL, lengths BLOB NOT NULL);
CREATE TABLE postings (key INTEGER PRIMARY KEY, chunk BLOB NOT NULL);
CREATE TABLE dead (number INTEGER PRIMARY KEY AUTOINCREMENT, sequence INTEGER NOT NULL UNIQUE);
"""
_TERMS = 2**32


@dataclass(frozen=True, slots=True)
class _Part:
    """A segment in one state of the index. alive: (n,); gone: ascending dead rows; length: living words."""

    segment: int
    sequences: NDArray[np.int64]
    lengths: NDArray[np.uint32]
    alive: NDArray[np.bool_]
    gone: NDArray[np.int64]
    length: int


@dataclass(frozen=True, slots=True)
class _Statistics:
    """All parts in order of sequence number, as of `version`; buried: the last number in the table `dead`."""

    version: tuple[int, ...]
    buried: int
    parts: Sequence[_Part]
    documents: int
    mean_length: float


def append(connection: sqlite3.Connection, sequences: Sequence[int], texts: Sequence[str]) -> None:
    """Add documents with ascending sequence numbers, greater than all before, in the caller's transaction."""
    for start in range(0, len(texts), SEGMENT_DOCUMENTS // 2):
        part = slice(start, start + SEGMENT_DOCUMENTS // 2)
        _write(connection, build(np.array(sequences[part], dtype=np.int64), [hashes(text) for text in texts[part]]))


def bury(connection: sqlite3.Connection, sequences: Sequence[int]) -> None:
    """Record that the documents with these sequence numbers were replaced or deleted."""
    segments = connection.execute("SELECT first, segment FROM segments ORDER BY first").fetchall()
    firsts = [first for first, _ in segments]
    per_segment = Counter(segments[bisect_right(firsts, sequence) - 1][1] for sequence in sequences)
    connection.executemany("INSERT INTO dead (sequence) VALUES (?)", ((sequence,) for sequence in sequences))
    connection.executemany(
        "UPDATE segments SET dead = dead + ? WHERE segment = ?",
        ((count, segment) for segment, count in per_segment.items()),
    )


def merge_segments(connection: sqlite3.Connection, dead_share: float = 0.5) -> None:
    """Merge segments until there are few, and none with more than this fraction of dead documents."""
    while True:
        rows = connection.execute(
            "SELECT segment, first, last, documents, dead FROM segments ORDER BY first"
        ).fetchall()
        part = to_merge([(documents, dead) for *_, documents, dead in rows], dead_share)
        if part is None:
            return
        old = [segment for segment, *_ in rows[part]]
        reach = (rows[part][0][1], rows[part][-1][2])
        dead = connection.execute("SELECT sequence FROM dead WHERE sequence BETWEEN ? AND ?", reach).fetchall()
        merged = merge([_read(connection, segment) for segment in old], np.array(dead, dtype=np.int64).ravel())
        for segment in old:
            connection.execute("DELETE FROM segments WHERE segment = ?", (segment,))
            connection.execute("DELETE FROM segment_documents WHERE segment = ?", (segment,))
            connection.execute("DELETE FROM postings WHERE key BETWEEN ? AND ?", _keys(segment))
        connection.execute("DELETE FROM dead WHERE sequence BETWEEN ? AND ?", reach)
        _write(connection, merged)


class LexicalReader:
    """BM25 over all documents of the index, with exact statistics of the living ones.

    Uses 13 bytes of memory per document. Thread-safe. Every call is given a connection in a transaction, whose state of
    the file it answers for.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._state = _Statistics((), 0, (), 0, 0.0)

    def scores(self, connection: sqlite3.Connection, query: str, sequences: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (n,) BM25 by n sequence numbers; 0 for those without a living document."""
        state = self._current(connection)
        order = np.argsort(sequences, kind="stable")
        ascending = sequences[order]
        found = np.zeros(len(sequences))
        edges = np.searchsorted(ascending, [part.sequences[0] for part in state.parts] or [0])
        chosen = []
        for part, start, end in zip(state.parts, edges, [*edges[1:], len(ascending)], strict=False):
            rows = np.searchsorted(part.sequences, ascending[start:end])
            rows = np.minimum(rows, len(part.sequences) - 1)
            there = (part.sequences[rows] == ascending[start:end]) & part.alive[rows]
            chosen.append((rows, there, start, end, saturation(part.lengths[rows], state.mean_length)))
        for amount, lists in self._weighted(connection, state, query):
            for postings, (rows, there, start, end, saturations) in zip(lists, chosen, strict=True):
                if len(postings.rows) and start < end:
                    places = np.minimum(np.searchsorted(postings.rows, rows.astype(np.uint16)), len(postings.rows) - 1)
                    counts = postings.counts[places] * (there & (postings.rows[places] == rows))
                    found[start:end] += contributions(amount, counts, saturations)
        scores = np.empty(len(sequences))
        scores[order] = found
        return scores

    def best(
        self,
        connection: sqlite3.Connection,
        query: str,
        depth: int,
        among: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return sequence numbers and scores of up to `depth` documents that contain words of the query, best first.

        among: ascending sequence numbers of the documents to consider; the statistics remain those of all documents.
        Ties are in order of sequence number.
        """
        state = self._current(connection)
        totals = [np.zeros(len(part.sequences)) for part in state.parts]
        saturations = [saturation(part.lengths, state.mean_length) for part in state.parts]
        for amount, lists in self._weighted(connection, state, query):
            for postings, total, part_saturations in zip(lists, totals, saturations, strict=True):
                rows = postings.rows.astype(np.intp)
                total[rows] += contributions(amount, postings.counts, part_saturations[rows])
        sequences, scores = [np.empty(0, np.int64)], [np.empty(0)]
        for part, total in zip(state.parts, totals, strict=True):
            candidates = np.flatnonzero((total > 0) & part.alive)
            if among is not None:
                candidates = candidates[_contains(among, part.sequences[candidates])]
            best = candidates[_highest(total[candidates], depth)]
            sequences.append(part.sequences[best])
            scores.append(total[best])
        every, values = np.concatenate(sequences), np.concatenate(scores)
        kept = _highest(values, depth)
        kept = kept[np.argsort(-values[kept], kind="stable")]
        return every[kept], values[kept]

    def _weighted(
        self, connection: sqlite3.Connection, state: _Statistics, query: str
    ) -> list[tuple[float, list[Postings]]]:
        """Return for each word of the query its weight and its postings in every part."""
        terms, times = np.unique(hashes(query), return_counts=True)
        weighted = []
        for term, repeated in zip(terms.tolist(), times.tolist(), strict=True):
            lists = [_postings(connection, part.segment, term) for part in state.parts]
            having = sum(
                len(postings.rows) - _shared(postings.rows, part.gone)
                for postings, part in zip(lists, state.parts, strict=True)
            )
            if having:
                weighted.append((repeated * weight(state.documents, having), lists))
        return weighted

    def _current(self, connection: sqlite3.Connection) -> _Statistics:
        version = tuple(
            seq for (seq,) in connection.execute("SELECT seq FROM sqlite_sequence ORDER BY name").fetchall()
        )
        with self._lock:
            if self._state.version != version:
                self._state = self._load(connection, version)
            return self._state

    def _load(self, connection: sqlite3.Connection, version: tuple[int, ...]) -> _Statistics:
        known = {part.segment: part for part in self._state.parts}
        recent = connection.execute(
            "SELECT number, sequence FROM dead WHERE number > ? ORDER BY sequence", (self._state.buried,)
        ).fetchall()
        buried = np.array([sequence for _, sequence in recent], dtype=np.int64)
        parts = []
        for row in connection.execute("SELECT segment, first, last, dead FROM segments ORDER BY first").fetchall():
            segment, first, last, dead = row
            part = known.get(segment) or _part(segment, *_documents(connection, segment))
            if len(part.gone) != dead:
                since = buried[np.searchsorted(buried, first) : np.searchsorted(buried, last, side="right")]
                if len(part.gone) + len(since) != dead:
                    every = connection.execute(
                        "SELECT sequence FROM dead WHERE sequence BETWEEN ? AND ?", (first, last)
                    )
                    part, since = _revived(part), np.array(every.fetchall(), dtype=np.int64).ravel()
                part = _without(part, since)
            parts.append(part)
        living = sum(len(part.alive) - len(part.gone) for part in parts)
        return _Statistics(
            version,
            max((number for number, _ in recent), default=self._state.buried),
            parts,
            living,
            sum(part.length for part in parts) / living if living else 0.0,
        )


def _part(segment: int, sequences: NDArray[np.int64], lengths: NDArray[np.uint32]) -> _Part:
    alive, gone = np.ones(len(sequences), np.bool_), np.empty(0, np.int64)
    return _Part(segment, sequences, lengths, alive, gone, int(lengths.sum(dtype=np.int64)))


def _revived(part: _Part) -> _Part:
    return _part(part.segment, part.sequences, part.lengths)


def _without(part: _Part, dead: NDArray[np.int64]) -> _Part:
    """Return the part with these of its documents dead as well."""
    alive = part.alive.copy()
    alive[np.searchsorted(part.sequences, dead)] = False
    length = int(part.lengths[alive].sum(dtype=np.int64))
    return _Part(part.segment, part.sequences, part.lengths, alive, np.flatnonzero(~alive), length)


def _write(connection: sqlite3.Connection, segment: WordSegment) -> None:
    if not len(segment.sequences):
        return
    reach = (int(segment.sequences[0]), int(segment.sequences[-1]))
    cursor = connection.execute(
        "INSERT INTO segments (first, last, documents, dead) VALUES (?, ?, ?, 0)", (*reach, len(segment.sequences))
    )
    number = cursor.lastrowid
    assert number is not None
    connection.execute(
        "INSERT INTO segment_documents VALUES (?, ?, ?)",
        (number, segment.sequences.astype("<i8").tobytes(), segment.lengths.astype("<u4").tobytes()),
    )
    connection.executemany(
        "INSERT INTO postings VALUES (?, ?)", ((number * _TERMS + term, chunk) for term, chunk in chunks(segment))
    )


def _read(connection: sqlite3.Connection, number: int) -> WordSegment:
    sequences, lengths = _documents(connection, number)
    pieces = connection.execute("SELECT chunk FROM postings WHERE key BETWEEN ? AND ? ORDER BY key", _keys(number))
    with _damage_named(number):
        return assemble(sequences, lengths, [chunk for (chunk,) in pieces])


def _documents(connection: sqlite3.Connection, number: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return sequence numbers, ascending, and lengths in words of the documents of a segment."""
    with _damage_named(number):
        sequences, lengths = connection.execute(
            "SELECT sequences, lengths FROM segment_documents WHERE segment = ?", (number,)
        ).fetchone()
        return np.frombuffer(sequences, "<i8"), np.frombuffer(lengths, "<u4")


def _postings(connection: sqlite3.Connection, number: int, term: int) -> Postings:
    row = connection.execute(
        "SELECT chunk FROM postings WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT 1",
        (number * _TERMS, number * _TERMS + term),
    ).fetchone()
    with _damage_named(number):
        return find(row[0], term) if row else NOWHERE


@contextmanager
def _damage_named(number: int) -> Iterator[None]:
    try:
        yield
    except (struct.error, TypeError, ValueError, IndexError) as error:
        raise CorruptIndex(
            f"the words of the index are damaged in segment {number}: {error}; restore or rebuild the index"
        ) from error


def _keys(number: int) -> tuple[int, int]:
    """Return the smallest and the greatest key that a chunk of this segment can have."""
    return number * _TERMS, (number + 1) * _TERMS - 1


def _shared(rows: NDArray[np.uint16], gone: NDArray[np.int64]) -> int:
    """Return how many of some rows are gone; both are ascending."""
    if not len(rows) or not len(gone):
        return 0
    places = np.minimum(np.searchsorted(rows, gone.astype(np.uint16)), len(rows) - 1)
    return int((rows[places] == gone).sum())


def _contains(ascending: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return (n,) which of n values are among the ascending ones."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    found: NDArray[np.bool_] = ascending[np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)] == values
    return found


def _highest(values: NDArray[np.float64], depth: int) -> NDArray[np.intp]:
    """Return ascending positions of the `depth` highest values; ties go to the earlier one."""
    if len(values) <= depth:
        return np.arange(len(values))
    threshold = np.partition(values, len(values) - depth)[len(values) - depth]
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)[: depth - len(above)]
    return np.sort(np.concatenate([above, equal]))
