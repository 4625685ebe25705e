"""An encoder that remembers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.caching.embeddings import Embedded, EmbeddingCache, Kind, Space
from boundarymorph.caching.keys import digest
from boundarymorph.caching.read_through import ReadThrough, Source, longest
from boundarymorph.retrieval.encoders import Embeddings, Encoder

_Key = tuple[Space, bytes]


class CachingEncoder:
    """An `Encoder` that asks another one only for what neither the cache nor another request has.

    Of a call in which some documents were cut, the longest are taken to be those; see `KnownScores`.
    """

    def __init__(
        self,
        encoder: Encoder,
        cache: EmbeddingCache,
        *,
        documents: bool = False,
        identity: Callable[[], str | None] | None = None,
        writes: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """documents: whether documents are cached as queries are; they come once as a rule, and are many. identity,
        writes: as of `KnownScores`. The caller closes the cache.
        """
        self._encoder = encoder
        self._embeddings = cache
        self._documents = documents
        self._identity = identity or (lambda: encoder.name)
        self._through: ReadThrough[_Key, Embedded] = ReadThrough("embeddings", writes=writes, clock=clock)
        self._closed = False

    @property
    def name(self) -> str:
        return self._encoder.name

    @property
    def dimension(self) -> int:
        return self._encoder.dimension

    async def check(self) -> None:
        """As `Encoder.check`: the encoder itself is asked, whatever the cache knows."""
        await self._encoder.check()

    async def encode_query(self, text: str) -> NDArray[np.float32]:
        self._check_open()
        if self._identity() is None:
            return await self._encoder.encode_query(text)

        async def encode(texts: Sequence[str]) -> Embeddings:
            (text,) = texts
            return Embeddings((await self._encoder.encode_query(text))[None])

        (embedded,) = await self._get(Kind.QUERY, [text], encode)
        return embedded.vector.copy()

    async def encode_documents(self, texts: Sequence[str]) -> Embeddings:
        self._check_open()
        if not self._documents or not texts or self._identity() is None:
            return await self._encoder.encode_documents(texts)
        embedded = await self._get(Kind.DOCUMENT, texts, self._encoder.encode_documents)
        return Embeddings(np.stack([one.vector for one in embedded]), sum(one.truncated for one in embedded))

    async def close(self) -> None:
        """Finish writing, then close the encoder."""
        self._closed = True
        await self._through.drain()
        await self._encoder.close()

    async def _get(
        self, kind: Kind, texts: Sequence[str], encode: Callable[[Sequence[str]], Awaitable[Embeddings]]
    ) -> list[Embedded]:
        name = self._identity()
        assert name is not None
        space = Space(name, kind, self._encoder.dimension)
        keys = [(space, digest(text)) for text in texts]
        by_key = dict(zip(keys, texts, strict=True))

        async def read(wanted: Sequence[_Key]) -> Sequence[Embedded | None]:
            return await self._embeddings.read(space, [text for _, text in wanted])

        async def compute(missing: Sequence[_Key]) -> Sequence[Embedded]:
            asked = [by_key[key] for key in missing]
            encoded = await encode(asked)
            cut = longest(asked, encoded.truncated)
            return [Embedded(vector, position in cut) for position, vector in enumerate(encoded.vectors)]

        async def write(computed: Mapping[_Key, Embedded]) -> None:
            if self._identity() == space.encoder and self._encoder.dimension == space.dimension:
                await self._embeddings.write(space, {text: embedded for (_, text), embedded in computed.items()})

        return await self._through.get(keys, Source(read, compute, write))

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the encoder is closed")
