"""The caches of a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boundarymorph.caching.embeddings import EmbeddingCache
from boundarymorph.caching.scores import ScoreCache

if TYPE_CHECKING:  # a scorer on its own loads neither Redis nor an encoder
    from boundarymorph.caching.link import RedisLink
    from boundarymorph.retrieval.encoders import Encoder


@dataclass(frozen=True)
class Caches:
    """Of scores and of embeddings, where there are any. link: to the Redis in which they are; `close` closes it."""

    scores: ScoreCache | None = None
    embeddings: EmbeddingCache | None = None
    link: RedisLink | None = None

    def before_encoder(self, encoder: Encoder, identity: Callable[[], str | None] | None = None) -> Encoder:
        """An encoder that remembers queries. identity: as of `KnownScores`."""
        if self.embeddings is None:
            return encoder
        from boundarymorph.caching.encoder import CachingEncoder

        return CachingEncoder(encoder, self.embeddings, identity=identity)

    async def close(self) -> None:
        """Release the connections; what was in this process is forgotten."""
        if self.link is not None:
            await self.link.close()
