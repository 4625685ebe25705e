"""Build the caches of a process from its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from boundarymorph.caching.scores import MemoryScoreCache, ScoreCache
from boundarymorph.caching.vectors import CachingEncoder
from boundarymorph.settings import CacheSettings

if TYPE_CHECKING:  # so that a standalone scorer loads neither Redis nor an encoder
    from boundarymorph.caching.redis import RedisLink
    from boundarymorph.retrieval.encoders import Encoder


@dataclass(frozen=True)
class Caches:
    """A cache of scores, and the size of a cache of vectors.

    Attributes:
        scores: The cache of scores, if any.
        vector_bytes: Most bytes of the vectors of queries; 0 for no cache.
        link: The connection to Redis, which `close` closes.
    """

    scores: ScoreCache | None = None
    vector_bytes: int = 0
    link: RedisLink | None = None

    def before_encoder(self, encoder: Encoder) -> Encoder:
        return CachingEncoder(encoder, self.vector_bytes) if self.vector_bytes else encoder

    async def close(self) -> None:
        if self.link is not None:
            await self.link.close()


def build_caches(chosen: CacheSettings) -> Caches:
    """Return a cache in Redis, one in this process, or none.

    Raises:
        InvalidConfiguration: If the URL is malformed.
    """
    if not chosen.enabled:
        return Caches()
    size, seconds = chosen.memory_bytes, chosen.seconds_to_live
    if chosen.url is None:
        return Caches(MemoryScoreCache(size, seconds_to_live=seconds), size)
    from boundarymorph.caching.redis import RedisLink, RedisScoreCache

    link = RedisLink(chosen.url.get_secret_value(), timeout=chosen.timeout_seconds)
    return Caches(RedisScoreCache(link, seconds_to_live=seconds, namespace=chosen.namespace), size, link)
