"""Which documents of a store meet a filter, kept up to date from one question to the next."""

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

REMEMBERED_BYTES = 64 * 2**20
_REMAINS = 10_000
_READS = 64
_SCANNED_PER_LOOKUP = 4  # documents whose metadata are read in order in the time that one takes by its number
_AMONG = "sequence IN (SELECT value FROM json_each(?))"
_FILTER_BYTES = 1_024  # of a filter's own, beside its values


@dataclass(slots=True)
class _Matched:
    """What is known of a filter.

    sequences: ascending, of documents written up to number `until` that met it, some of them gone since; reads: the
    last few values of `until`; fresh: how many there were when they were last read anew; own_bytes, counted: of the
    filter, and of all that is known of it, in its reader's memory.
    """

    until: int = 0
    reads: deque[int] = field(default_factory=lambda: deque(maxlen=_READS))
    fresh: int = 0
    sequences: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    own_bytes: int = 0
    counted: int = 0
    lock: Lock = field(default_factory=Lock)


class MatchingReader:
    """The documents that meet a filter, remembered for the filters that were asked for last.

    Memory: 8 bytes a document and filter, and the filter, up to a bound; the last answer is kept however large it is.
    Safe to share between threads; every call is given a connection within a transaction of its caller, whose view of
    the file it answers for.
    """

    def __init__(self, *, most_bytes: int = REMEMBERED_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = Lock()
        self._matched: OrderedDict[Filter, _Matched] = OrderedDict()

    def sequences(self, connection: sqlite3.Connection, filter: Filter) -> NDArray[np.int64]:
        """Ascending sequence numbers of all documents that meet a filter, and perhaps of some that are gone."""
        with self._lock:
            matched = self._matched.setdefault(filter, _Matched())
            self._matched.move_to_end(filter)
        with matched.lock:
            found = _sequences(connection, filter, matched)
        self._account(filter, matched)
        return found

    def _account(self, filter: Filter, matched: _Matched) -> None:
        """Count what a filter takes now, and forget the ones asked for longest ago while all take too much."""
        with self._lock:
            if self._matched.get(filter) is not matched:
                return  # forgotten meanwhile
            if matched.own_bytes == 0:
                matched.own_bytes = _FILTER_BYTES + 2 * len(repr(filter.condition))
            self._bytes -= matched.counted
            matched.counted = matched.own_bytes + matched.sequences.nbytes
            self._bytes += matched.counted
            while self._bytes > self._most_bytes and len(self._matched) > 1:
                self._bytes -= self._matched.popitem(last=False)[1].counted


def _sequences(connection: sqlite3.Connection, filter: Filter, matched: _Matched) -> NDArray[np.int64]:
    last = last_sequence(connection)
    if last < matched.until:  # another thread has read a later state, in which documents of this one are replaced
        known = max((until for until in matched.reads if until <= last), default=0)
        before = matched.sequences[: np.searchsorted(matched.sequences, known, side="right")]
        return np.concatenate([before, _written(connection, filter, known, last)])
    if len(matched.sequences) > 2 * matched.fresh + _REMAINS:
        matched.until, matched.sequences = 0, np.empty(0, np.int64)
        matched.reads.clear()
    if matched.until < last:
        written = _written(connection, filter, matched.until, last)
        if matched.until == 0:
            matched.fresh = len(written)
        matched.sequences, matched.until = np.concatenate([matched.sequences, written]), last
        matched.sequences.flags.writeable = False
        matched.reads.append(last)
    return matched.sequences


def _written(connection: sqlite3.Connection, filter: Filter, after: int, last: int) -> NDArray[np.int64]:
    """Ascending sequence numbers of the documents written after one number, up to the last, that meet a filter."""
    condition = filter.sql("CAST(metadata AS TEXT)")
    among = candidates(connection, filter.condition, after, (last - after) // _SCANNED_PER_LOOKUP)
    which, bound = ("sequence > ?", after) if among is None else (_AMONG, orjson.dumps(among.tolist()).decode())
    found = connection.execute(
        "SELECT sequence FROM documents INDEXED BY filtered "  # noqa: S608
        f"WHERE {LIVING} AND {which} AND {condition.text} ORDER BY sequence",
        (bound, *condition.parameters),
    )
    return np.fromiter((sequence for (sequence,) in found), dtype=np.int64)
