"""Embeddings that are known already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Kind(StrEnum):
    """How a text was encoded: the two differ in their prefix."""

    QUERY = "query"
    DOCUMENT = "document"


@dataclass(frozen=True, slots=True)
class Space:
    """Where vectors are comparable. encoder: its name; dimension: d."""

    encoder: str
    kind: Kind
    dimension: int


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """vector: (d,) float32, bit by bit what the encoder gave; truncated: whether the text was cut to fit."""

    vector: NDArray[np.float32]
    truncated: bool = False


class EmbeddingCache(Protocol):
    """Embeddings of texts. Calls never raise: trouble is a miss, and counted."""

    async def read(self, space: Space, text_digests: Sequence[bytes]) -> list[Embedded | None]:
        """n embeddings in the order of the digests, None where there is none. The vectors are not to be written to."""

    async def write(self, space: Space, embeddings: Mapping[bytes, Embedded]) -> None:
        """Keep embeddings by the digests of their texts."""
