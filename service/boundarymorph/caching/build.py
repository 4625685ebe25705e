"""The caches of a process, as the settings ask for them: of scores, and of the vectors of recent queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from sys import getsizeof
from typing import TYPE_CHECKING

import numpy as np
from cachetools import LRUCache, TLRUCache
from numpy.typing import NDArray

from boundarymorph.caching.known import (
    FIELDS,
    SECONDS_TO_LIVE,
    CachedScore,
    ReadThrough,
    ScoreCache,
    Source,
    digest,
    kept_name,
)
from boundarymorph.inference.models import identity_of
from boundarymorph.settings import CacheSettings
from boundarymorph.telemetry import metrics

if TYPE_CHECKING:  # a standalone scorer loads neither Redis nor an encoder
    from boundarymorph.caching.redis import RedisLink
    from boundarymorph.retrieval.encoders import Embeddings, Encoder

_QUERY_BYTES = 550
_SCORE_BYTES = 200


@dataclass(slots=True)
class _Query:
    """The scores of one query in the order written, and when they expire."""

    expires: float
    scores: dict[bytes, CachedScore] = field(default_factory=dict)


class MemoryScoreCache:
    """A `ScoreCache` in this process, for use on one event loop; it evicts whole queries, least recently used first.

    max_bytes: an estimate, slightly more than CPython needs. seconds_to_live: since the first write of a query.
    """

    def __init__(
        self,
        max_bytes: int = 64 * 2**20,
        *,
        seconds_to_live: float = SECONDS_TO_LIVE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds_to_live, self._clock = seconds_to_live, clock
        self._queries: TLRUCache[bytes, _Query] = TLRUCache(
            max_bytes, lambda key, query, now: query.expires, clock, _size
        )

    async def recall(self, model: str, query: str) -> Mapping[bytes, CachedScore]:
        return dict(self._known(model, query))

    async def read(self, model: str, query: str, text_digests: Sequence[bytes]) -> list[CachedScore | None]:
        known = self._known(model, query)
        return metrics.counted("scores", [known.get(text) for text in text_digests])

    async def write(self, model: str, query: str, scores: Mapping[bytes, CachedScore]) -> None:
        if not scores:
            return
        key = digest(model, query)
        known = self._queries.pop(key, None) or _Query(self._clock() + self._seconds_to_live)
        for text, cached in scores.items():
            known.scores.pop(text, None)
            kept = kept_name(cached.document) is not None
            known.scores[text] = cached if kept else replace(cached, document=None)
        for text in list(known.scores)[:-FIELDS]:
            del known.scores[text]
        with suppress(ValueError):  # larger than the whole cache
            self._queries[key] = known
        metrics.cache_writes.labels("scores", "ok").inc(len(scores))

    def _known(self, model: str, query: str) -> Mapping[bytes, CachedScore]:
        found: _Query | None = self._queries.get(digest(model, query))
        return {} if found is None else found.scores


def _size(query: _Query) -> int:
    ids = (score.document for score in query.scores.values() if score.document is not None)
    return _QUERY_BYTES + len(query.scores) * _SCORE_BYTES + sum(map(getsizeof, ids))


Vector = NDArray[np.float32]
_Key = tuple[str, int, bytes]  # model, dimension, digest of the text
_ENTRY_BYTES = 600  # of a vector besides its numbers


class CachingEncoder:
    """An `Encoder` that passes on only queries that are neither cached nor being encoded for another request.

    Documents are not cached: there are many, and usually each is encoded once.
    """

    def __init__(self, encoder: Encoder, max_bytes: int = 64 * 2**20) -> None:
        self._encoder = encoder
        self._cache: LRUCache[_Key, Vector] = LRUCache(max_bytes, lambda vector: _ENTRY_BYTES + vector.nbytes)
        self._through: ReadThrough[_Key, Vector] = ReadThrough("embeddings")
        self._closed = False

    @property
    def name(self) -> str:
        return self._encoder.name

    @property
    def identity(self) -> str | None:
        """The name under which vectors are kept; None while it is unknown."""
        return identity_of(self._encoder)

    @property
    def dimension(self) -> int:
        return self._encoder.dimension

    async def check(self) -> None:
        """Check the encoder itself, whatever is cached."""
        await self._encoder.check()

    async def encode_query(self, text: str) -> Vector:
        if self._closed:
            raise RuntimeError("the encoder is closed")
        name = self.identity
        if name is None:
            return await self._encoder.encode_query(text)
        model = name, self._encoder.dimension

        async def read(wanted: Sequence[_Key]) -> Sequence[Vector | None]:
            return metrics.counted("embeddings", [self._cache.get(key) for key in wanted])

        async def compute(missing: Sequence[_Key]) -> Sequence[Vector]:
            return [await self._encoder.encode_query(text)]

        async def write(computed: Mapping[_Key, Vector]) -> None:
            if (self.identity, self._encoder.dimension) == model:
                for key, vector in computed.items():
                    with suppress(ValueError):  # larger than the whole cache
                        self._cache[key] = vector.copy()  # theirs may be a row of a large array
                metrics.cache_writes.labels("embeddings", "ok").inc(len(computed))

        (vector,) = await self._through.get([(*model, digest(text))], Source(read, compute, write))
        return vector.copy()

    async def encode_documents(self, texts: Sequence[str]) -> Embeddings:
        return await self._encoder.encode_documents(texts)

    async def close(self) -> None:
        """Wait for pending writes, then close the encoder."""
        self._closed = True
        await self._through.drain()
        await self._encoder.close()


@dataclass(frozen=True)
class Caches:
    """A cache of scores, or None, and most bytes of the queries' vectors, 0 for none.

    link: to the Redis that holds the scores; `close` closes it.
    """

    scores: ScoreCache | None = None
    vector_bytes: int = 0
    link: RedisLink | None = None

    def before_encoder(self, encoder: Encoder) -> Encoder:
        """Return an encoder that caches queries."""
        return CachingEncoder(encoder, self.vector_bytes) if self.vector_bytes else encoder

    async def close(self) -> None:
        """Close the connections; what was cached in this process is lost."""
        if self.link is not None:
            await self.link.close()


def build_caches(chosen: CacheSettings) -> Caches:
    """Return a cache in Redis, one in this process, or none. Raises InvalidConfiguration for a malformed url."""
    if not chosen.enabled:
        return Caches()
    size, seconds = chosen.memory_bytes, chosen.seconds_to_live
    if chosen.url is None:
        return Caches(MemoryScoreCache(size, seconds_to_live=seconds), size)
    from boundarymorph.caching.redis import RedisLink, RedisScoreCache

    link = RedisLink(chosen.url.get_secret_value(), timeout=chosen.timeout_seconds)
    return Caches(RedisScoreCache(link, seconds_to_live=seconds, namespace=chosen.namespace), size, link)
