"""Building the caches that the settings ask for."""

from __future__ import annotations

from boundarymorph.caching.caches import Caches
from boundarymorph.caching.memory import MemoryEmbeddingCache, MemoryScoreCache
from boundarymorph.settings import CacheSettings


def build_caches(chosen: CacheSettings) -> Caches:
    """Return caches in Redis, caches in this process, or none. Raises InvalidConfiguration for a malformed url."""
    if not chosen.enabled:
        return Caches()
    size, seconds = chosen.memory_bytes, chosen.seconds_to_live
    if chosen.url is None:
        return Caches(
            MemoryScoreCache(size, seconds_to_live=seconds), MemoryEmbeddingCache(size, seconds_to_live=seconds)
        )
    from boundarymorph.caching.link import RedisLink
    from boundarymorph.caching.redis import RedisEmbeddingCache, RedisScoreCache

    link = RedisLink(chosen.url.get_secret_value(), timeout=chosen.timeout_seconds)
    return Caches(
        RedisScoreCache(link, seconds_to_live=seconds, namespace=chosen.namespace),
        RedisEmbeddingCache(link, seconds_to_live=seconds, namespace=chosen.namespace),
        link,
    )
