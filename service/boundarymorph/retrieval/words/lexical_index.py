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
from boundarymorph.inference.executors import check_awaited
from boundarymorph.retrieval.vectors import are_among
from boundarymorph.retrieval.words.lexical import (
    PoolWords,
    contributions,
    query_terms,
    saturation,
    stem_numbers,
    weight,
)
from boundarymorph.retrieval.words.postings import (
    NOWHERE,
    SEGMENT_DOCUMENTS,
    Postings,
    WordSegment,
    assemble,
    build,
    chunks,
    find,
    find_stem,
    merge,
    to_merge,
)

# The key of a chunk is its segment times 2**32 plus its first stem.
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
_STEMS = 2**32


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


def append(connection: sqlite3.Connection, version: int, sequences: Sequence[int], texts: Sequence[str]) -> None:
    """Add documents with ascending sequence numbers, greater than all before, in the caller's transaction.

    version: of the words in this index, the same in every call.
    """
    for start in range(0, len(texts), SEGMENT_DOCUMENTS // 2):
        part = slice(start, start + SEGMENT_DOCUMENTS // 2)
        words = PoolWords.of(texts[part])
        numbers = np.array(sequences[part], dtype=np.int64)
        _write(connection, build(numbers, words.lengths, words.index_terms(version)))


def clear(connection: sqlite3.Connection) -> None:
    """Remove all documents, and keep counting segments and the dead, so that readers take none for an earlier one."""
    for table in ("segments", "segment_documents", "postings", "dead"):
        connection.execute(f"DELETE FROM {table}")  # noqa: S608


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
    """BM25 over all documents of the index, with exact statistics of the living ones, and the query's words they have.

    Uses 13 bytes of memory per document. Thread-safe. Every call is given a connection in a transaction, whose state of
    the file it answers for, and the version of the words there.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._state = _Statistics((), 0, (), 0, 0.0)

    def scores(
        self, connection: sqlite3.Connection, version: int, query: str, sequences: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return (n,) BM25 by n sequence numbers; 0 for those without a living document."""
        state = self._current(connection)
        located = [
            (places, rows, saturation(part.lengths[rows], state.mean_length))
            for part, places, rows in _located(state, sequences)
        ]
        scores = np.zeros(len(sequences))
        for amount, lists in self._weighted(connection, version, state, query):
            for postings, (places, rows, saturations) in zip(lists, located, strict=True):
                if len(postings.rows):
                    near = np.minimum(np.searchsorted(postings.rows, rows.astype(np.uint16)), len(postings.rows) - 1)
                    counts = postings.counts[near] * (postings.rows[near] == rows)
                    scores[places] += contributions(amount, counts, saturations)
        return scores

    def terms(self, connection: sqlite3.Connection, query: str, sequences: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return (w, n) which of the w `query_terms` the documents of n sequence numbers have; none if not living.

        The words must not be of version 1, which has no stems.
        """
        stems = stem_numbers(query_terms(query)).tolist()
        having = np.zeros((len(stems), len(sequences)), np.bool_)
        for part, places, rows in _located(self._current(connection), sequences):
            for stem, row in zip(stems, having, strict=True):
                check_awaited()
                among = np.zeros(len(part.sequences), np.bool_)
                among[_with_stem(connection, part.segment, stem)] = True
                row[places] = among[rows]
        return having

    def best(
        self,
        connection: sqlite3.Connection,
        version: int,
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
        for amount, lists in self._weighted(connection, version, state, query):
            for postings, total, part_saturations in zip(lists, totals, saturations, strict=True):
                rows = postings.rows.astype(np.intp)
                total[rows] += contributions(amount, postings.counts, part_saturations[rows])
        sequences, scores = [np.empty(0, np.int64)], [np.empty(0)]
        for part, total in zip(state.parts, totals, strict=True):
            candidates = np.flatnonzero((total > 0) & part.alive)
            if among is not None:
                candidates = candidates[are_among(part.sequences[candidates], among)]
            best = candidates[_highest(total[candidates], depth)]
            sequences.append(part.sequences[best])
            scores.append(total[best])
        every, values = np.concatenate(sequences), np.concatenate(scores)
        kept = _highest(values, depth)
        kept = kept[np.argsort(-values[kept], kind="stable")]
        return every[kept], values[kept]

    def _weighted(
        self, connection: sqlite3.Connection, version: int, state: _Statistics, query: str
    ) -> list[tuple[float, list[Postings]]]:
        """Return for each word of the query its weight and its postings in every part."""
        times = Counter(PoolWords.of([query]).index_terms(version).tolist())
        weighted = []
        for term in sorted(times, key=_by_word):
            check_awaited()
            lists = [_postings(connection, part.segment, term) for part in state.parts]
            having = sum(
                len(postings.rows) - _shared(postings.rows, part.gone)
                for postings, part in zip(lists, state.parts, strict=True)
            )
            if having:
                weighted.append((times[term] * weight(state.documents, having), lists))
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
                    part = _part(part.segment, part.sequences, part.lengths)
                    since = np.array(every.fetchall(), dtype=np.int64).ravel()
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


def _located(
    state: _Statistics, sequences: NDArray[np.int64]
) -> list[tuple[_Part, NDArray[np.intp], NDArray[np.intp]]]:
    """Return for every part which of n sequence numbers are of its living documents, and the rows of these."""
    order = np.argsort(sequences, kind="stable")
    ascending = sequences[order]
    edges = np.searchsorted(ascending, [part.sequences[0] for part in state.parts] or [0]).tolist()
    located = []
    for part, start, end in zip(state.parts, edges, [*edges[1:], len(ascending)], strict=False):
        rows = np.minimum(np.searchsorted(part.sequences, ascending[start:end]), len(part.sequences) - 1)
        there = (part.sequences[rows] == ascending[start:end]) & part.alive[rows]
        located.append((part, order[start:end][there], rows[there]))
    return located


def _by_word(term: int) -> tuple[int, int]:
    """Order terms by the hash of the word in every version, for sums that are the same to the last bit."""
    return term % _STEMS, term


def _part(segment: int, sequences: NDArray[np.int64], lengths: NDArray[np.uint32]) -> _Part:
    alive, gone = np.ones(len(sequences), np.bool_), np.empty(0, np.int64)
    return _Part(segment, sequences, lengths, alive, gone, int(lengths.sum(dtype=np.int64)))


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
        "INSERT INTO postings VALUES (?, ?)", ((number * _STEMS + stem, chunk) for stem, chunk in chunks(segment))
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
    chunk = _chunk(connection, number, term // _STEMS)
    with _damage_named(number):
        return NOWHERE if chunk is None else find(chunk, term)


def _with_stem(connection: sqlite3.Connection, number: int, stem: int) -> NDArray[np.uint16]:
    """Return the rows of the documents of a segment with a word of this stem, some repeatedly."""
    chunk = _chunk(connection, number, stem)
    with _damage_named(number):
        return NOWHERE.rows if chunk is None else find_stem(chunk, stem)


def _chunk(connection: sqlite3.Connection, number: int, stem: int) -> bytes | None:
    """Return the chunk of a segment in which a stem would be."""
    row = connection.execute(
        "SELECT chunk FROM postings WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT 1",
        (number * _STEMS, number * _STEMS + stem),
    ).fetchone()
    return row[0] if row else None


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
    return number * _STEMS, (number + 1) * _STEMS - 1


def _shared(rows: NDArray[np.uint16], gone: NDArray[np.int64]) -> int:
    """Return how many of some rows are gone; both are ascending."""
    if not len(rows) or not len(gone):
        return 0
    places = np.minimum(np.searchsorted(rows, gone.astype(np.uint16)), len(rows) - 1)
    return int((rows[places] == gone).sum())


def _highest(values: NDArray[np.float64], depth: int) -> NDArray[np.intp]:
    """Return ascending positions of the `depth` highest values; ties go to the earlier one."""
    if len(values) <= depth:
        return np.arange(len(values))
    threshold = np.partition(values, len(values) - depth)[len(values) - depth]
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)[: depth - len(above)]
    return np.sort(np.concatenate([above, equal]))
