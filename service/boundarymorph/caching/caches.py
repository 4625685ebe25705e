"""The caches of a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boundarymorph.caching.embeddings import EmbeddingCache
from boundarymorph.caching.scores import ScoreCache

if TYPE_CHECKING:  # a standalone scorer loads neither Redis nor an encoder
    from boundarymorph.caching.link import RedisLink
    from boundarymorph.retrieval.encoders import Encoder


@dataclass(frozen=True)
class Caches:
    """Caches of scores and of embeddings, or None. link: to the Redis that holds them; `close` closes it."""

    scores: ScoreCache | None = None
    embeddings: EmbeddingCache | None = None
    link: RedisLink | None = None

    def before_encoder(self, encoder: Encoder, identity: Callable[[], str | None] | None = None) -> Encoder:
        """Return an encoder that caches queries. identity: see `KnownScores`."""
        if self.embeddings is None:
            return encoder
        from boundarymorph.caching.encoder import CachingEncoder

        return CachingEncoder(encoder, self.embeddings, identity=identity)

    async def close(self) -> None:
        """Close the connections; what was cached in this process is lost."""
        if self.link is not None:
            await self.link.close()
