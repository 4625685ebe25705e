"""A cache of the documents that match each filter, updated incrementally."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.local.lookup import LIVING, last_sequence
from boundarymorph.retrieval.local.metadata_index import candidates
from boundarymorph.retrieval.local.sqlite_file import interruptible

FILTER_BYTES = 64 * 2**20
_REMAINS = 10_000
_READS = 64
_PAGE = 10_000  # sequence numbers whose documents are compared at a time; who gives up loses no more than that
_SCANNED_PER_LOOKUP = 4  # metadata read in order in the time of one lookup by sequence number
_BETWEEN = "sequence > ? AND sequence <= ?"
_AMONG = "sequence IN (SELECT value FROM json_each(?))"
_ENTRY_BYTES = 1_024  # memory of a filter, without its values


@dataclass(slots=True)
class _Matched:
    """The cached matches of a filter, which may still be incomplete if whoever wanted them gave up.

    sequences: ascending, of documents written up to number `until` that matched, some since deleted or replaced; reads:
    the last few values of `until`; fresh: number of matches at the last full read, up to number `full`; own_bytes,
    counted: memory of the filter, and of the whole entry.
    """

    until: int = 0
    reads: deque[int] = field(default_factory=lambda: deque(maxlen=_READS))
    fresh: int = 0
    full: int = 0
    sequences: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    own_bytes: int = 0
    counted: int = 0
    lock: Lock = field(default_factory=Lock)


class MatchingReader:
    """The documents that match a filter, cached for recent filters.

    Memory: 8 bytes per document and filter, plus the filters, up to a bound; the latest entry is always kept.
    Thread-safe. Every call is given a connection in a transaction, whose state of the file it answers for.
    """

    def __init__(self, *, most_bytes: int = FILTER_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = Lock()
        self._matched: OrderedDict[Filter, _Matched] = OrderedDict()

    def sequences(self, connection: sqlite3.Connection, filter: Filter) -> NDArray[np.int64]:
        """Return ascending sequence numbers of all documents that match a filter, and perhaps of some deleted ones."""
        with self._lock:
            matched = self._matched.setdefault(filter, _Matched())
            self._matched.move_to_end(filter)
        try:
            with matched.lock, interruptible(connection):
                return _sequences(connection, filter, matched)
        finally:
            self._account(filter, matched)

    def _account(self, filter: Filter, matched: _Matched) -> None:
        """Update the memory of an entry, and evict the least recently used ones while the total is too large."""
        with self._lock:
            if self._matched.get(filter) is not matched:
                return  # evicted in the meantime
            if matched.own_bytes == 0:
                matched.own_bytes = _ENTRY_BYTES + 2 * len(repr(filter.condition))
            self._bytes -= matched.counted
            matched.counted = matched.own_bytes + matched.sequences.nbytes
            self._bytes += matched.counted
            while self._bytes > self._most_bytes and len(self._matched) > 1:
                self._bytes -= self._matched.popitem(last=False)[1].counted


def _sequences(connection: sqlite3.Connection, filter: Filter, matched: _Matched) -> NDArray[np.int64]:
    last = last_sequence(connection)
    if last < matched.until:  # another thread has read a later state, in which documents of ours may be replaced
        known = max((until for until in matched.reads if until <= last), default=0)
        before = matched.sequences[: np.searchsorted(matched.sequences, known, side="right")]
        return np.concatenate([before, _written(connection, filter, known, last, None)])
    if len(matched.sequences) > 2 * matched.fresh + _REMAINS:
        matched.until, matched.sequences = 0, np.empty(0, np.int64)
        matched.reads.clear()
    if matched.until == 0:
        matched.full = last
    if matched.until < last:
        among = candidates(connection, filter.condition, matched.until, (last - matched.until) // _SCANNED_PER_LOOKUP)
        while matched.until < last:
            page = last if among is not None else min(last, matched.until + _PAGE)
            written = _written(connection, filter, matched.until, page, among)
            matched.sequences, matched.until = np.concatenate([matched.sequences, written]), page
            matched.sequences.flags.writeable = False
            if page <= matched.full:
                matched.fresh = len(matched.sequences)
        matched.reads.append(last)
    return matched.sequences


def _written(
    connection: sqlite3.Connection, filter: Filter, after: int, last: int, among: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """Return ascending sequence numbers of the matching documents written after one number, up to the last. among:
    those that may match; None for all."""
    condition = filter.sql("CAST(metadata AS TEXT)")
    which, bounds = (_BETWEEN, (after, last)) if among is None else (_AMONG, (orjson.dumps(among.tolist()).decode(),))
    found = connection.execute(
        "SELECT sequence FROM documents INDEXED BY filtered "  # noqa: S608
        f"WHERE {LIVING} AND {which} AND {condition.text} ORDER BY sequence",
        (*bounds, *condition.parameters),
    )
    return np.fromiter((sequence for (sequence,) in found), dtype=np.int64)
