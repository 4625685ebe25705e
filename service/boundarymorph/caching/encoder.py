"""An encoder that remembers the vectors of recent queries, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from boundarymorph.caching.interfaces import digest
from boundarymorph.caching.read_through import ReadThrough, Source
from boundarymorph.inference.models import identity_of
from boundarymorph.retrieval.encoders import Embeddings, Encoder
from boundarymorph.telemetry import metrics

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
