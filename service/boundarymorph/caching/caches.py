"""The caches of a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from boundarymorph.caching.embeddings import EmbeddingCache
from boundarymorph.caching.scores import ScoreCache

if TYPE_CHECKING:  # a scorer on its own loads neither Redis nor an encoder
    from boundarymorph.caching.link import RedisLink
    from boundarymorph.retrieval.encoders import Encoder


class Caches:
    """Of scores and of embeddings, where there are any."""

    def __init__(
        self,
        scores: ScoreCache | None = None,
        embeddings: EmbeddingCache | None = None,
        link: RedisLink | None = None,
    ) -> None:
        """scores: for the selector. link: to the Redis in which they are; `close` closes it."""
        self.scores, self._embeddings, self._link = scores, embeddings, link

    def before_encoder(self, encoder: Encoder, identity: Callable[[], str | None] | None = None) -> Encoder:
        """An encoder that remembers queries. identity: as of `KnownScores`."""
        if self._embeddings is None:
            return encoder
        from boundarymorph.caching.encoder import CachingEncoder

        return CachingEncoder(encoder, self._embeddings, identity=identity)

    async def close(self) -> None:
        """Release the connections; what was in this process is forgotten."""
        if self._link is not None:
            await self._link.close()
