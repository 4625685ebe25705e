"""Dual encoders in ONNX, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.models import TokenSequence, embedded_encoder
from boundarymorph.inference.onnx import OnnxTextModel
from boundarymorph.retrieval.encoders.encoder import unit_vectors

_BGE_QUERY_PREFIX = "Represent this sentence for searching relevant passages: "


class OnnxDualEncoder(OnnxTextModel):
    """The `DualEncoder` that comes with the service. An embedding is the last hidden state of the first token."""

    dimension = 384

    @classmethod
    def embedded(cls, *, max_length: int = 512, threads: int | None = None) -> OnnxDualEncoder:
        """Load it. Raises ModelUnavailable."""
        return cls(embedded_encoder(), max_length=max_length, threads=threads)

    def tokenize_query(self, text: str) -> TokenSequence:
        return self.tokenize_documents([_BGE_QUERY_PREFIX + text])[0]

    def tokenize_documents(self, texts: Sequence[str]) -> list[TokenSequence]:
        return [
            TokenSequence(np.array(encoding.ids), truncated, np.array(encoding.type_ids))
            for encoding, truncated in self.encode_texts(texts)
        ]

    def run(self, texts: Sequence[TokenSequence]) -> NDArray[np.float32]:
        return unit_vectors(np.array([self.infer(text.ids, text.type_ids)[0] for text in texts]))
