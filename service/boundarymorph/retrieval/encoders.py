"""Dual encoders: texts and queries to unit vectors of one space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.models import OnnxTextModel, embedded_encoder

_BGE_QUERY_PREFIX = "Represent this sentence for searching relevant passages: "


@dataclass(frozen=True, slots=True)
class Embeddings:
    """vectors: (n, d) float32 unit rows, in the order of the texts; truncated: how many texts were cut to fit."""

    vectors: NDArray[np.float32]
    truncated: int = 0


class Encoder(Protocol):
    """Maps queries and documents to one space. A text's embedding never depends on what it is encoded together with."""

    @property
    def name(self) -> str:
        """Model and precision: an index answers text queries only through the encoder that it was built with."""

    @property
    def dimension(self) -> int:
        """d, the length of the vectors."""

    async def encode_query(self, text: str) -> NDArray[np.float32]:
        """(d,) unit vector of a query."""

    async def encode_documents(self, texts: Sequence[str]) -> Embeddings:
        """(n, d) unit rows for n documents."""

    async def close(self) -> None:
        """Release threads and connections; calls after this fail."""


class OnnxEncoder:
    """An `Encoder` for a BERT-like model in ONNX whose embedding is the last hidden state of its first token."""

    def __init__(self, model: OnnxTextModel, dimension: int, query_prefix: str) -> None:
        self._model = model
        self._dimension = dimension
        self._query_prefix = query_prefix

    @classmethod
    def embedded(cls, *, max_length: int = 512, threads: int | None = None) -> OnnxEncoder:
        """The encoder that comes with the service. Raises ModelUnavailable."""
        model = OnnxTextModel(embedded_encoder(), max_length=max_length, threads=threads)
        return cls(model, dimension=384, query_prefix=_BGE_QUERY_PREFIX)

    @property
    def name(self) -> str:
        return f"{self._model.weights.name}/{self._model.max_length}"

    @property
    def dimension(self) -> int:
        return self._dimension

    async def encode_query(self, text: str) -> NDArray[np.float32]:
        ((vector, _),) = await self._model.each(self._encode, [self._query_prefix + text])
        return vector

    async def encode_documents(self, texts: Sequence[str]) -> Embeddings:
        encoded = await self._model.each(self._encode, texts)
        vectors = np.empty((len(texts), self._dimension), dtype=np.float32)
        for row, (vector, _) in enumerate(encoded):
            vectors[row] = vector
        return Embeddings(vectors, truncated=sum(cut for _, cut in encoded))

    async def close(self) -> None:
        await self._model.close()

    def _encode(self, text: str) -> tuple[NDArray[np.float32], bool]:
        hidden, truncated = self._model.run(text)
        first = hidden[0].astype(np.float64)
        return (first / np.linalg.norm(first)).astype(np.float32), truncated
