"""Caches in this process: least recently used first out, bounded in bytes.

What an entry takes is estimated, a little more than CPython needs. For use on one event loop.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from sys import getsizeof
from typing import Generic, TypeVar

from boundarymorph.caching import metrics
from boundarymorph.caching.embeddings import Embedded, Space
from boundarymorph.caching.keys import digest
from boundarymorph.caching.scores import FIELDS, SECONDS_TO_LIVE, Remembered, kept_name

_QUERY_BYTES = 550
_SCORE_BYTES = 200
_EMBEDDING_BYTES = 600

Value = TypeVar("Value")


@dataclass(slots=True)
class _Entry(Generic[Value]):
    value: Value
    size: int
    expires: float


class _Lru(Generic[Value]):
    """Values by key, at most `max_bytes` of them, each until it expires."""

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._entries: OrderedDict[bytes, _Entry[Value]] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Value | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires <= self._clock():
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: bytes, value: Value, size: int, expires: float) -> None:
        """expires: on the clock."""
        if key in self._entries:
            self._remove(key)
        self._entries[key] = _Entry(value, size, expires)
        self.size += size
        while self.size > self._max_bytes:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: bytes) -> None:
        self.size -= self._entries.pop(key).size


@dataclass(slots=True)
class _Query:
    """The scores of one query in order of writing, when they expire, and what their document ids take."""

    expires: float
    scores: dict[bytes, Remembered] = field(default_factory=dict)
    id_bytes: int = 0

    def put(self, text: bytes, remembered: Remembered) -> None:
        self.drop(text)
        if remembered.document is not None and kept_name(remembered.document) is None:
            remembered = replace(remembered, document=None)
        self.scores[text] = remembered
        self.id_bytes += _length(remembered)

    def drop(self, text: bytes) -> None:
        replaced = self.scores.pop(text, None)
        if replaced is not None:
            self.id_bytes -= _length(replaced)

    @property
    def size(self) -> int:
        return _QUERY_BYTES + len(self.scores) * _SCORE_BYTES + self.id_bytes


class MemoryScoreCache:
    """A `ScoreCache` in this process; queries go as a whole. seconds_to_live: since the first write of the query."""

    def __init__(
        self,
        max_bytes: int = 64 * 2**20,
        *,
        seconds_to_live: float = SECONDS_TO_LIVE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queries: _Lru[_Query] = _Lru(max_bytes, clock)
        self._seconds_to_live = seconds_to_live
        self._clock = clock

    @property
    def kept_bytes(self) -> int:
        """What is kept takes about so much."""
        return self._queries.size

    async def recall(self, model: str, query: str) -> Mapping[bytes, Remembered]:
        known = self._queries.get(digest(model, query))
        recalled = {} if known is None else dict(known.scores)
        metrics.recalled.inc(len(recalled))
        return recalled

    async def read(self, model: str, query: str, text_digests: Sequence[bytes]) -> list[Remembered | None]:
        known = self._queries.get(digest(model, query))
        found = [None if known is None else known.scores.get(text) for text in text_digests]
        missing = found.count(None)
        metrics.count_lookups("scores", hit=len(found) - missing, miss=missing)
        return found

    async def write(self, model: str, query: str, scores: Mapping[bytes, Remembered]) -> None:
        if not scores:
            return
        key = digest(model, query)
        known = self._queries.get(key) or _Query(self._clock() + self._seconds_to_live)
        for text, remembered in scores.items():
            known.put(text, remembered)
        while len(known.scores) > FIELDS:
            known.drop(next(iter(known.scores)))
        self._queries.put(key, known, known.size, known.expires)
        metrics.writes.labels("scores", "ok").inc(len(scores))


class MemoryEmbeddingCache:
    """An `EmbeddingCache` in this process. seconds_to_live: since the embedding was written."""

    def __init__(
        self,
        max_bytes: int = 64 * 2**20,
        *,
        seconds_to_live: float = SECONDS_TO_LIVE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._embeddings: _Lru[Embedded] = _Lru(max_bytes, clock)
        self._seconds_to_live = seconds_to_live
        self._clock = clock

    @property
    def kept_bytes(self) -> int:
        """What is kept takes about so much."""
        return self._embeddings.size

    async def read(self, space: Space, text_digests: Sequence[bytes]) -> list[Embedded | None]:
        prefix = _prefix(space)
        found = [self._embeddings.get(prefix + text) for text in text_digests]
        missing = found.count(None)
        metrics.count_lookups("embeddings", hit=len(found) - missing, miss=missing)
        return found

    async def write(self, space: Space, embeddings: Mapping[bytes, Embedded]) -> None:
        prefix, expires = _prefix(space), self._clock() + self._seconds_to_live
        for text, embedded in embeddings.items():
            vector = embedded.vector.copy()  # the caller may hand out the other one, or a row of a large array
            vector.flags.writeable = False
            kept = Embedded(vector, embedded.truncated)
            self._embeddings.put(prefix + text, kept, _EMBEDDING_BYTES + vector.nbytes, expires)
        metrics.writes.labels("embeddings", "ok").inc(len(embeddings))


def _prefix(space: Space) -> bytes:
    return digest(space.encoder, space.kind, str(space.dimension))


def _length(remembered: Remembered) -> int:
    return 0 if remembered.document is None else getsizeof(remembered.document)
