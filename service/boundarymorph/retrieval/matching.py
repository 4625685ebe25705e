"""Which documents of a store meet a filter, kept up to date from one question to the next."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.lookup import LIVING, ids_of, last_sequence, purged

_REMAINS = 10_000


@dataclass(slots=True)
class _Matched:
    """What is known of a filter.

    sequences: ascending, of documents written up to number `until` that met it, some of them gone since; fresh: how
    many there were when they were last read anew. ids: of those that lived at number `living_at`, in their order.
    """

    until: int = 0
    fresh: int = 0
    sequences: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    living_at: int = 0
    ids: dict[str, None] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


class MatchingReader:
    """The documents that meet a filter, remembered for the last few filters.

    Memory: 8 bytes a document and filter, and about 150 for each of up to `ids_kept` ids. Safe to share between
    threads; every call is given a connection within a transaction of its caller, whose view of the file it answers for.
    """

    def __init__(self, *, kept: int = 16, ids_kept: int = 1_000_000) -> None:
        self._kept = kept
        self._ids_kept = ids_kept
        self._lock = Lock()
        self._matched: OrderedDict[Filter, _Matched] = OrderedDict()

    def sequences(self, connection: sqlite3.Connection, filter: Filter) -> NDArray[np.int64]:
        """Ascending sequence numbers of all documents that meet a filter, and perhaps of some that are gone."""
        matched = self._remembered(filter)
        with matched.lock:
            return _sequences(connection, filter, matched)

    def ids(self, connection: sqlite3.Connection, filter: Filter) -> list[str]:
        """The ids of the documents that meet a filter, in the order of writing; the list is the caller's own."""
        matched = self._remembered(filter)
        with matched.lock:
            sequences, last = _sequences(connection, filter, matched), last_sequence(connection)
            # Another thread may have asked of a later state; forgotten deletions cannot be caught up with.
            if not purged(connection) <= matched.living_at <= last:
                matched.living_at, matched.ids = 0, {}
            if matched.living_at < last:
                ids = dict(matched.ids)
                if matched.living_at:
                    for (id,) in connection.execute(
                        "SELECT id FROM documents WHERE sequence > ?", (matched.living_at,)
                    ):
                        ids.pop(id, None)
                new = sequences[np.searchsorted(sequences, matched.living_at, side="right") :].tolist()
                living = ids_of(connection, new)
                ids.update((living[sequence], None) for sequence in new if sequence in living)
                matched.ids, matched.living_at = ids, last
            found = list(matched.ids)
        self._forget_ids()
        return found

    def _remembered(self, filter: Filter) -> _Matched:
        with self._lock:
            matched = self._matched.pop(filter, None) or _Matched()
            self._matched[filter] = matched
            while len(self._matched) > self._kept:
                self._matched.popitem(last=False)
            return matched

    def _forget_ids(self) -> None:
        """Of the filters that were not asked for lately, until there are few enough in all."""
        with self._lock:
            total = 0
            for matched in reversed(self._matched.values()):
                total += len(matched.ids)
                if total > self._ids_kept and matched.lock.acquire(blocking=False):
                    matched.living_at, matched.ids = 0, {}
                    matched.lock.release()


def _sequences(connection: sqlite3.Connection, filter: Filter, matched: _Matched) -> NDArray[np.int64]:
    last = last_sequence(connection)
    if len(matched.sequences) > 2 * matched.fresh + _REMAINS:
        matched.until, matched.sequences = 0, np.empty(0, np.int64)
    if matched.until < last:
        condition = filter.sql("CAST(metadata AS TEXT)")
        found = connection.execute(
            "SELECT sequence FROM documents INDEXED BY filtered "  # noqa: S608
            f"WHERE {LIVING} AND sequence > ? AND {condition.text} ORDER BY sequence",
            (matched.until, *condition.parameters),
        )
        written = np.fromiter((sequence for (sequence,) in found), dtype=np.int64)
        if matched.until == 0:
            matched.fresh = len(written)
        matched.sequences, matched.until = np.concatenate([matched.sequences, written]), last
        matched.sequences.flags.writeable = False
    return matched.sequences[: np.searchsorted(matched.sequences, last, side="right")]
