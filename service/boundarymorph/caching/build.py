"""Building the caches that the settings ask for."""

from __future__ import annotations

from hashlib import blake2b

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
    secret = b"" if chosen.secret is None else blake2b(chosen.secret.get_secret_value().encode()).digest()
    return Caches(
        RedisScoreCache(link, seconds_to_live=seconds, namespace=chosen.namespace, secret=secret),
        RedisEmbeddingCache(link, seconds_to_live=seconds, namespace=chosen.namespace, secret=secret),
        link,
    )
