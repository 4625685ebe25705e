"""Which documents of a store meet a filter, kept up to date from one question to the next."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.lookup import LIVING, last_sequence

_REMAINS = 10_000
_READS = 64


@dataclass(slots=True)
class _Matched:
    """What is known of a filter.

    sequences: ascending, of documents written up to number `until` that met it, some of them gone since; reads: the
    last few values of `until`; fresh: how many there were when they were last read anew.
    """

    until: int = 0
    reads: deque[int] = field(default_factory=lambda: deque(maxlen=_READS))
    fresh: int = 0
    sequences: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    lock: Lock = field(default_factory=Lock)


class MatchingReader:
    """The documents that meet a filter, remembered for the last few filters.

    Memory: 8 bytes a document and filter. Safe to share between threads; every call is given a connection within a
    transaction of its caller, whose view of the file it answers for.
    """

    def __init__(self, *, kept: int = 16) -> None:
        self._kept = kept
        self._lock = Lock()
        self._matched: OrderedDict[Filter, _Matched] = OrderedDict()

    def sequences(self, connection: sqlite3.Connection, filter: Filter) -> NDArray[np.int64]:
        """Ascending sequence numbers of all documents that meet a filter, and perhaps of some that are gone."""
        matched = self._remembered(filter)
        with matched.lock:
            return _sequences(connection, filter, matched)

    def _remembered(self, filter: Filter) -> _Matched:
        with self._lock:
            matched = self._matched.pop(filter, None) or _Matched()
            self._matched[filter] = matched
            while len(self._matched) > self._kept:
                self._matched.popitem(last=False)
            return matched


def _sequences(connection: sqlite3.Connection, filter: Filter, matched: _Matched) -> NDArray[np.int64]:
    last = last_sequence(connection)
    if last < matched.until:  # another thread has read a later state, in which documents of this one are replaced
        known = max((until for until in matched.reads if until <= last), default=0)
        before = matched.sequences[: np.searchsorted(matched.sequences, known, side="right")]
        return np.concatenate([before, _written(connection, filter, known)])
    if len(matched.sequences) > 2 * matched.fresh + _REMAINS:
        matched.until, matched.sequences = 0, np.empty(0, np.int64)
        matched.reads.clear()
    if matched.until < last:
        written = _written(connection, filter, matched.until)
        if matched.until == 0:
            matched.fresh = len(written)
        matched.sequences, matched.until = np.concatenate([matched.sequences, written]), last
        matched.sequences.flags.writeable = False
        matched.reads.append(last)
    return matched.sequences


def _written(connection: sqlite3.Connection, filter: Filter, after: int) -> NDArray[np.int64]:
    """Ascending sequence numbers of the documents written after a number that meet a filter."""
    condition = filter.sql("CAST(metadata AS TEXT)")
    found = connection.execute(
        "SELECT sequence FROM documents INDEXED BY filtered "  # noqa: S608
        f"WHERE {LIVING} AND sequence > ? AND {condition.text} ORDER BY sequence",
        (after, *condition.parameters),
    )
    return np.fromiter((sequence for (sequence,) in found), dtype=np.int64)
