"""Dual encoders in ONNX, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.batching.model import TokenSequence
from boundarymorph.inference.models import OnnxTextModel, embedded_encoder
from boundarymorph.inference.onnx import OnnxModel
from boundarymorph.retrieval.encoders.encoder import unit_vectors

_BGE_QUERY_PREFIX = "Represent this sentence for searching relevant passages: "


class OnnxDualEncoder(OnnxModel):
    """A `DualEncoder` for a BERT-like model whose embedding is the last hidden state of its first token."""

    def __init__(self, model: OnnxTextModel, dimension: int, query_prefix: str) -> None:
        super().__init__(model)
        self.dimension = dimension
        self._query_prefix = query_prefix

    @classmethod
    def embedded(cls, *, max_length: int = 512, threads: int | None = None) -> OnnxDualEncoder:
        """Load the encoder that comes with the service. Raises ModelUnavailable."""
        model = OnnxTextModel(embedded_encoder(), max_length=max_length, threads=threads)
        return cls(model, dimension=384, query_prefix=_BGE_QUERY_PREFIX)

    def tokenize_query(self, text: str) -> TokenSequence:
        return self.tokenize_documents([self._query_prefix + text])[0]

    def tokenize_documents(self, texts: Sequence[str]) -> list[TokenSequence]:
        return [
            TokenSequence(np.array(encoding.ids), truncated, np.array(encoding.type_ids))
            for encoding, truncated in self._model.encode_texts(texts)
        ]

    def run(self, texts: Sequence[TokenSequence]) -> NDArray[np.float32]:
        return unit_vectors(np.array([self._model.infer(text.ids, text.type_ids)[0] for text in texts]))
