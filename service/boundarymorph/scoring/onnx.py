"""Cross-encoders in ONNX, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import sigmoid
from boundarymorph.inference.models import embedded_cross_encoder
from boundarymorph.inference.onnx import OnnxTextModel
from boundarymorph.scoring.scorer import Pair


class OnnxCrossEncoder(OnnxTextModel):
    """A `CrossEncoder` with one logit per pair; the score is its sigmoid."""

    takes_instruction = False

    @classmethod
    def embedded(cls, *, max_length: int = 512, threads: int | None = None) -> OnnxCrossEncoder:
        """Load the cross-encoder that comes with the service. Raises ModelUnavailable."""
        return cls(embedded_cross_encoder(), max_length=max_length, threads=threads)

    def tokenize(self, query: str, texts: Sequence[str], instruction: str | None = None) -> list[Pair]:
        return [
            Pair(np.array(encoding.ids), truncated, np.array(encoding.type_ids), query=query)
            for encoding, truncated in self.encode_pairs(query, texts)
        ]

    def run(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        return sigmoid(np.array([self.infer(pair.ids, pair.type_ids)[0] for pair in pairs], dtype=np.float64))
