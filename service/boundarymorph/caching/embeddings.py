"""The interface of a cache of embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.caching.keys import digest

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Space:
    """Vectors of the same space are comparable. encoder: its name; dimension: d."""

    encoder: str
    dimension: int

    @property
    def digest(self) -> bytes:
        """Identifies the space in keys."""
        return digest(self.encoder, "query", str(self.dimension))


class EmbeddingCache(Protocol):
    """Embeddings of queries, bit for bit those of the encoder. Calls never raise: an error counts as a miss."""

    async def read(self, space: Space, text_digests: Sequence[bytes]) -> list[Vector | None]:
        """Return n read-only embeddings in the order of the digests, None for each that is missing."""

    async def write(self, space: Space, embeddings: Mapping[bytes, Vector]) -> None:
        """Store embeddings by the digests of their texts."""
