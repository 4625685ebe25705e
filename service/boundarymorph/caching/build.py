"""The caches of a process, as the settings ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from boundarymorph.caching.interfaces import EmbeddingCache, ScoreCache
from boundarymorph.caching.memory import MemoryEmbeddingCache, MemoryScoreCache
from boundarymorph.settings import CacheSettings

if TYPE_CHECKING:  # a standalone scorer loads neither Redis nor an encoder
    from boundarymorph.caching.link import RedisLink
    from boundarymorph.retrieval.encoders import Encoder


@dataclass(frozen=True)
class Caches:
    """Caches of scores and of embeddings, or None. link: to the Redis that holds them; `close` closes it."""

    scores: ScoreCache | None = None
    embeddings: EmbeddingCache | None = None
    link: RedisLink | None = None

    def before_encoder(self, encoder: Encoder) -> Encoder:
        """Return an encoder that caches queries."""
        if self.embeddings is None:
            return encoder
        from boundarymorph.caching.encoder import CachingEncoder

        return CachingEncoder(encoder, self.embeddings)

    async def close(self) -> None:
        """Close the connections; what was cached in this process is lost."""
        if self.link is not None:
            await self.link.close()


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
