"""The encoder: whatever maps queries and documents to unit vectors of one space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Embeddings:
    """vectors: (n, d) float32 unit rows, in the order of the texts; truncated: how many texts were cut to fit; encoder:
    the full name of what made them, where another process tells it."""

    vectors: NDArray[np.float32]
    truncated: int = 0
    encoder: str | None = None


class Encoder(Protocol):
    """Maps queries and documents to one space. A text's embedding never depends on what it is encoded together with."""

    @property
    def name(self) -> str:
        """Model and precision: an index answers text queries only through the encoder that it was built with."""

    @property
    def dimension(self) -> int:
        """d, the length of the vectors."""

    async def check(self) -> None:
        """Warm up and encode a probe; name and dimension are known after that. Raises what `encode_query` does."""

    async def encode_query(self, text: str) -> NDArray[np.float32]:
        """(d,) unit vector of a query. Raises Overloaded, EncoderUnavailable or EncoderFailed."""

    async def encode_documents(self, texts: Sequence[str]) -> Embeddings:
        """(n, d) unit rows for n documents: all of them, or an error as of `encode_query`."""

    async def close(self) -> None:
        """Release threads and connections; calls after this fail."""
