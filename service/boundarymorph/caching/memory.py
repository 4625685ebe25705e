"""Caches in this process: LRU, bounded in bytes.

The size of a value is an estimate, slightly more than CPython needs. For use on one event loop.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from sys import getsizeof
from typing import Generic, TypeVar

from cachetools import TLRUCache

from boundarymorph.caching.interfaces import FIELDS, SECONDS_TO_LIVE, CachedScore, Space, Vector, digest, kept_name
from boundarymorph.telemetry import metrics

_QUERY_BYTES = 550
_SCORE_BYTES = 200
_EMBEDDING_BYTES = 600

Value = TypeVar("Value")


class _MemoryCache(ABC, Generic[Value]):
    """Values by key, at most `max_bytes` in total, each until it expires."""

    def __init__(
        self,
        max_bytes: int = 64 * 2**20,
        *,
        seconds_to_live: float = SECONDS_TO_LIVE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds_to_live = seconds_to_live
        self._values = TLRUCache(max_bytes, self._expires, clock, self._size)

    @property
    def kept_bytes(self) -> int:
        """Estimated size of what is stored."""
        return int(self._values.currsize)

    def _expires(self, key: bytes, value: Value, now: float) -> float:
        return now + self._seconds_to_live

    @staticmethod
    @abstractmethod
    def _size(value: Value) -> int:
        """Return the estimated size of a value in bytes."""

    def _get(self, key: bytes) -> Value | None:
        found: Value | None = self._values.get(key)
        return found

    def _put(self, key: bytes, value: Value) -> None:
        with suppress(ValueError):  # larger than the whole cache
            self._values[key] = value


@dataclass(slots=True)
class _Query:
    """The scores of one query in the order written, and when they expire."""

    expires: float
    scores: dict[bytes, CachedScore] = field(default_factory=dict)


class MemoryScoreCache(_MemoryCache[_Query]):
    """A `ScoreCache` in this process; evicts whole queries. seconds_to_live: since the first write of the query."""

    async def recall(self, model: str, query: str) -> Mapping[bytes, CachedScore]:
        known = self._get(digest(model, query))
        return {} if known is None else dict(known.scores)

    async def read(self, model: str, query: str, text_digests: Sequence[bytes]) -> list[CachedScore | None]:
        known = self._get(digest(model, query))
        return metrics.counted("scores", [None if known is None else known.scores.get(text) for text in text_digests])

    async def write(self, model: str, query: str, scores: Mapping[bytes, CachedScore]) -> None:
        if not scores:
            return
        key = digest(model, query)
        known = self._values.pop(key, None) or _Query(self._values.timer() + self._seconds_to_live)
        for text, cached in scores.items():
            known.scores.pop(text, None)
            kept = kept_name(cached.document) is not None
            known.scores[text] = cached if kept else replace(cached, document=None)
        for text in list(known.scores)[:-FIELDS]:
            del known.scores[text]
        self._put(key, known)
        metrics.cache_writes.labels("scores", "ok").inc(len(scores))

    def _expires(self, key: bytes, value: _Query, now: float) -> float:
        return value.expires

    @staticmethod
    def _size(value: _Query) -> int:
        ids = (score.document for score in value.scores.values() if score.document is not None)
        return _QUERY_BYTES + len(value.scores) * _SCORE_BYTES + sum(map(getsizeof, ids))


class MemoryEmbeddingCache(_MemoryCache[Vector]):
    """An `EmbeddingCache` in this process. seconds_to_live: since the embedding was written."""

    async def read(self, space: Space, text_digests: Sequence[bytes]) -> list[Vector | None]:
        return metrics.counted("embeddings", [self._get(space.digest + text) for text in text_digests])

    async def write(self, space: Space, embeddings: Mapping[bytes, Vector]) -> None:
        for text, embedding in embeddings.items():
            vector = embedding.copy()  # callers may modify theirs, and it may be a row of a large array
            vector.flags.writeable = False
            self._put(space.digest + text, vector)
        metrics.cache_writes.labels("embeddings", "ok").inc(len(embeddings))

    @staticmethod
    def _size(value: Vector) -> int:
        return _EMBEDDING_BYTES + value.nbytes
