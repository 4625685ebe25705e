"""Segments of an inverted index: which of up to 65,536 documents contain a word, and how often. In memory, no I/O."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SEGMENT_DOCUMENTS = 65_536  # the range of a 16-bit row number
_FANOUT = 8
_CHUNK_POSTINGS = 8_192
_HEADER = struct.Struct("<IHH")
_WORD = np.uint64(2**32 - 1)  # the half of a term that is the hash of the word


@dataclass(frozen=True, slots=True)
class WordSegment:
    """n documents in order of sequence number, and their P (word, document) pairs.

    sequences: (n,) int64; lengths: (n,) uint32, in words. terms: (T,) uint64, as of `PoolWords.index_terms`, ascending;
    ends: (T,) int64, where the pairs of each term end. rows: (P,) uint16 documents, ascending within a term; counts:
    (P,) uint16, how often, at most 65,535.
    """

    sequences: NDArray[np.int64]
    lengths: NDArray[np.uint32]
    terms: NDArray[np.uint64]
    ends: NDArray[np.int64]
    rows: NDArray[np.uint16]
    counts: NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Postings:
    """The documents of a segment that contain one word. rows: (n,) uint16, ascending; counts: (n,) uint8 or uint16."""

    rows: NDArray[np.uint16]
    counts: NDArray[np.unsignedinteger]


NOWHERE = Postings(np.empty(0, np.uint16), np.empty(0, np.uint8))


def build(sequences: NDArray[np.int64], lengths: NDArray[np.integer], words: NDArray[np.uint64]) -> WordSegment:
    """Return the segment of n documents, at most SEGMENT_DOCUMENTS.

    lengths: (n,) how many words each document has; words: those of all, in order, as of `PoolWords.index_terms`.
    """
    terms, numbers = np.unique(words, return_inverse=True)
    pairs = numbers.astype(np.uint64) << np.uint64(16)
    pairs |= np.repeat(np.arange(len(lengths), dtype=np.uint64), lengths)
    pairs, counts = np.unique(pairs, return_counts=True)
    _, ends = _runs(pairs >> np.uint64(16))
    return WordSegment(
        sequences,
        lengths.astype(np.uint32),
        terms,
        ends,
        pairs.astype(np.uint16),
        np.minimum(counts, 65_535).astype("u2"),
    )


def merge(segments: Sequence[WordSegment], dead: NDArray[np.int64]) -> WordSegment:
    """Merge consecutive segments into one, without the documents whose sequence numbers are in `dead`."""
    living = [_without(segment, dead) for segment in segments]
    terms, rows, counts, offset = [], [], [], 0
    for segment in living:
        terms.append(np.repeat(segment.terms, np.diff(segment.ends, prepend=0)))
        rows.append(segment.rows + np.uint16(offset % SEGMENT_DOCUMENTS))
        counts.append(segment.counts)
        offset += len(segment.sequences)
    every = np.concatenate(terms)
    order = np.argsort(every, kind="stable")
    distinct, ends = _runs(every[order])
    return WordSegment(
        np.concatenate([segment.sequences for segment in living]),
        np.concatenate([segment.lengths for segment in living]),
        distinct,
        ends,
        np.concatenate(rows)[order],
        np.concatenate(counts)[order],
    )


def chunks(segment: WordSegment) -> Iterator[tuple[int, bytes]]:
    """Yield the pairs of a segment in chunks of a few pages, each with its first stem. No stem is in two chunks.

    Of terms whose lower half is 0, as in version 1, a chunk has only the upper half.
    """
    stems, lasts = _runs(segment.terms >> np.uint64(32))
    ends = segment.ends[lasts - 1]
    stem = first = start = 0
    while stem < len(stems):
        following = max(stem + 1, int(np.searchsorted(ends, start + _CHUNK_POSTINGS, side="right")))
        after, end = int(lasts[following - 1]), int(ends[following - 1])
        terms, counts = segment.terms[first:after], segment.counts[start:end]
        halves = not (terms & _WORD).any()
        width = 1 if counts.max() < 256 else 2
        yield (
            int(stems[stem]),
            b"".join(
                (
                    _HEADER.pack(after - first, width, not halves),
                    (terms >> np.uint64(32)).astype("<u4").tobytes() if halves else terms.astype("<u8").tobytes(),
                    (segment.ends[first:after] - start).astype("<u4").tobytes(),
                    segment.rows[start:end].astype("<u2").tobytes(),
                    counts.astype(f"<u{width}").tobytes(),
                )
            ),
        )
        stem, first, start = following, after, end


def find(chunk: bytes, term: int) -> Postings:
    """Return the postings of a term in the chunk where it would be."""
    terms, ends, rows, counts = _arrays(chunk)
    place = int(np.searchsorted(terms, np.uint64(term)))
    if place == len(terms) or terms[place] != term:
        return NOWHERE
    part = slice(int(ends[place - 1]) if place else 0, int(ends[place]))
    return Postings(rows[part], counts[part])


def find_stem(chunk: bytes, stem: int) -> NDArray[np.uint16]:
    """Return the rows of the documents with a word of this stem, some repeatedly, in the chunk where it would be."""
    terms, ends, rows, _ = _arrays(chunk)
    lowest = np.uint64(stem) << np.uint64(32)
    first, after = int(np.searchsorted(terms, lowest)), int(np.searchsorted(terms, lowest | _WORD, side="right"))
    return rows[ends[first - 1] if first else 0 : ends[after - 1] if after else 0]


def assemble(sequences: NDArray[np.int64], lengths: NDArray[np.uint32], pieces: Sequence[bytes]) -> WordSegment:
    """Reassemble the segment that was split into these `chunks`, in order."""
    terms, ends, rows, counts, offset = [], [], [], [], 0
    for piece in pieces:
        piece_terms, piece_ends, piece_rows, piece_counts = _arrays(piece)
        terms.append(piece_terms)
        ends.append(piece_ends.astype(np.int64) + offset)
        rows.append(piece_rows)
        counts.append(piece_counts.astype(np.uint16))
        offset += len(piece_rows)
    if not pieces:
        return WordSegment(sequences, lengths, *_runs(np.empty(0, np.uint64)), NOWHERE.rows, np.empty(0, np.uint16))
    return WordSegment(
        sequences, lengths, np.concatenate(terms), np.concatenate(ends), np.concatenate(rows), np.concatenate(counts)
    )


def to_merge(sizes: Sequence[tuple[int, int]], dead_share: float = 0.5) -> slice | None:
    """Return which segments to merge now, given the number of documents and of dead ones in each; None for none.

    A segment is merged with its successors once there are eight of its size class or smaller at the end, so that a
    document is rewritten once for every eightfold growth. One with more than `dead_share` dead documents is rewritten,
    together with its successor if the two are small.
    """
    for number, (documents, dead) in enumerate(sizes):
        if dead > dead_share * documents:
            living = sum(size - buried for size, buried in sizes[number : number + 2])
            return slice(number, number + (2 if 2 * living <= SEGMENT_DOCUMENTS else 1))
    written = [documents for documents, _ in sizes]
    for level in range(6):
        run = len(written)
        while run and written[run - 1] < min(_FANOUT ** (level + 1), SEGMENT_DOCUMENTS // 2):
            run -= 1
        tail = written[run:]
        if len(tail) >= _FANOUT or sum(tail) > SEGMENT_DOCUMENTS:
            fitting = int(np.searchsorted(np.cumsum(tail), SEGMENT_DOCUMENTS, side="right"))
            return slice(run, run + fitting)
    return None


def _without(segment: WordSegment, dead: NDArray[np.int64]) -> WordSegment:
    """Return a segment without these documents; some of its terms may have no documents left."""
    keep = ~np.isin(segment.sequences, dead, assume_unique=True)
    if keep.all():
        return segment
    pairs = keep[segment.rows]
    ends = np.concatenate([[0], np.cumsum(pairs)])[segment.ends]
    rows = (np.cumsum(keep) - 1).astype(np.uint16)[segment.rows[pairs]]
    return WordSegment(segment.sequences[keep], segment.lengths[keep], segment.terms, ends, rows, segment.counts[pairs])


def _runs(ascending: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the distinct values, and where the run of each ends."""
    last = np.flatnonzero(np.diff(ascending, append=ascending[-1:] + np.uint64(1)))
    return ascending[last], last + 1


def _arrays(
    chunk: bytes,
) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint16], NDArray[np.unsignedinteger]]:
    """Read terms, ends, rows and counts of a chunk."""
    number, width, whole = _HEADER.unpack_from(chunk)
    start = _HEADER.size
    if whole:
        terms = np.frombuffer(chunk, "<u8", number, start)
    else:
        terms = np.frombuffer(chunk, "<u4", number, start).astype(np.uint64) << np.uint64(32)
    start += (8 if whole else 4) * number
    ends = np.frombuffer(chunk, "<u4", number, start)
    pairs, start = int(ends[-1]), start + 4 * number
    rows = np.frombuffer(chunk, "<u2", pairs, start)
    return terms, ends, rows, np.frombuffer(chunk, f"<u{width}", pairs, start + 2 * pairs)
