"""Embeddings that are known already."""

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
    """Where vectors of queries are comparable. encoder: its name; dimension: d."""

    encoder: str
    dimension: int

    @property
    def digest(self) -> bytes:
        """Stands for it in keys."""
        return digest(self.encoder, "query", str(self.dimension))


class EmbeddingCache(Protocol):
    """Embeddings of queries, bit for bit those of the encoder. Calls never raise: trouble is a miss, and counted."""

    async def read(self, space: Space, text_digests: Sequence[bytes]) -> list[Vector | None]:
        """n embeddings in the order of the digests, None where there is none. They are not to be written to."""

    async def write(self, space: Space, embeddings: Mapping[bytes, Vector]) -> None:
        """Keep embeddings by the digests of their texts."""
