"""An encoder with a cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from boundarymorph.caching.interfaces import EmbeddingCache, Space, Vector, digest
from boundarymorph.caching.read_through import ReadThrough, Source
from boundarymorph.inference.models import identity_of
from boundarymorph.retrieval.encoders import Embeddings, Encoder

_Key = tuple[Space, bytes]


class CachingEncoder:
    """An `Encoder` that passes on only queries that are neither cached nor being encoded for another request.

    Documents are not cached: there are many, and usually each is encoded once.
    """

    def __init__(
        self,
        encoder: Encoder,
        cache: EmbeddingCache,
        *,
        writes: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """writes: see `KnownScores`. The caller closes the cache."""
        self._encoder = encoder
        self._cache = cache
        self._through: ReadThrough[_Key, Vector] = ReadThrough("embeddings", writes=writes, clock=clock)
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
        space = Space(name, self._encoder.dimension)

        async def read(wanted: Sequence[_Key]) -> Sequence[Vector | None]:
            return await self._cache.read(space, [text for _, text in wanted])

        async def compute(missing: Sequence[_Key]) -> Sequence[Vector]:
            return [await self._encoder.encode_query(text)]

        async def write(computed: Mapping[_Key, Vector]) -> None:
            if self.identity == space.encoder and self._encoder.dimension == space.dimension:
                await self._cache.write(space, {text: vector for (_, text), vector in computed.items()})

        (vector,) = await self._through.get([(space, digest(text))], Source(read, compute, write))
        return vector.copy()

    async def encode_documents(self, texts: Sequence[str]) -> Embeddings:
        return await self._encoder.encode_documents(texts)

    async def close(self) -> None:
        """Wait for pending writes, then close the encoder."""
        self._closed = True
        await self._through.drain()
        await self._encoder.close()
