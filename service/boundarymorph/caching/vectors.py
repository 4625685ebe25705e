"""Cache the vectors of queries in the memory of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boundarymorph.caching.scores import digest
from boundarymorph.inference.models import identity_of
from boundarymorph.telemetry import metrics

if TYPE_CHECKING:  # the library does not have these
    from cachetools import LRUCache

    from boundarymorph.retrieval.encoders import Embeddings, Encoder

Vector = NDArray[np.float32]
_VectorKey = tuple[str, int, bytes]  # model, dimension, digest of the text
_ENTRY_BYTES = 600  # bytes that a cached vector takes in addition to its numbers


class CachingEncoder:
    """An `Encoder` that caches vectors of queries and encodes each query once at a time."""

    def __init__(self, encoder: Encoder, max_bytes: int = 64 * 2**20) -> None:
        from cachetools import LRUCache

        self._encoder = encoder
        self._cache: LRUCache[_VectorKey, Vector] = LRUCache(max_bytes, lambda vector: _ENTRY_BYTES + vector.nbytes)
        self._flights: dict[_VectorKey, asyncio.Future[Vector | None]] = {}  # None of a request that was cancelled
        self._closed = False

    @property
    def name(self) -> str:
        return self._encoder.name

    @property
    def identity(self) -> str | None:
        """The name under which vectors are cached, or None while it is unknown."""
        return identity_of(self._encoder)

    @property
    def dimension(self) -> int:
        return self._encoder.dimension

    async def check(self) -> None:
        await self._encoder.check()

    async def encode_query(self, text: str, caller: str = "") -> Vector:
        if self._closed:
            raise RuntimeError("the encoder is closed")
        name = self.identity
        if name is None:
            return await self._encoder.encode_query(text, caller)
        key = name, self._encoder.dimension, digest(text)
        [known] = metrics.record_lookups("embeddings", [self._cache.get(key)])
        while known is None and (flight := self._flights.get(key)) is not None:
            known = await asyncio.shield(flight)
        return (await self._encoded(key, text, caller) if known is None else known).copy()

    async def _encoded(self, key: _VectorKey, text: str, caller: str) -> Vector:
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        vector: Vector | None = None
        try:
            vector = await self._encoder.encode_query(text, caller)
        except Exception as error:
            flight.set_exception(error)
            flight.exception()  # no other request may want it
            raise
        finally:
            del self._flights[key]
            if not flight.done():
                flight.set_result(vector)
        if (self.identity, self._encoder.dimension) == key[:2]:
            with suppress(ValueError):  # larger than the whole cache
                self._cache[key] = vector.copy()  # a copy, because it may be a row of a large array
            metrics.cache_writes.labels("embeddings", "ok").inc()
        return vector

    async def encode_documents(self, texts: Sequence[str], caller: str = "") -> Embeddings:
        return await self._encoder.encode_documents(texts, caller)

    async def close(self) -> None:
        self._closed = True
        await self._encoder.close()
