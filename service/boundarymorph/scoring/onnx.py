"""Cross-encoders in ONNX, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.models import OnnxTextModel, embedded_cross_encoder
from boundarymorph.scoring.cross_encoder import Pair, sigmoid


class OnnxCrossEncoder:
    """A `CrossEncoder` with one logit a pair; the score is its sigmoid.

    Each pair is run on its own, so its score never depends on what it is batched with, and the cores are kept busy by
    pairs side by side.
    """

    backend = "onnx-cpu"
    batch_tokens = 1
    side_by_side = True
    pads = False

    def __init__(self, model: OnnxTextModel) -> None:
        self._model = model

    @classmethod
    def embedded(cls, *, max_length: int = 512, threads: int | None = None) -> OnnxCrossEncoder:
        """The cross-encoder that comes with the service. Raises ModelUnavailable."""
        return cls(OnnxTextModel(embedded_cross_encoder(), max_length=max_length, threads=threads))

    @property
    def name(self) -> str:
        return f"{self._model.weights.name}/{self.max_length}"

    @property
    def max_length(self) -> int:
        return self._model.max_length

    @property
    def lanes(self) -> int:
        return self._model.threads

    def tokenize(self, query: str, texts: Sequence[str]) -> list[Pair]:
        return [
            Pair(np.array(encoding.ids), query, truncated, np.array(encoding.type_ids))
            for encoding, truncated in self._model.encode_pairs(query, texts)
        ]

    def run(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        return sigmoid(np.array([self._model.infer(pair.ids, pair.type_ids)[0] for pair in pairs], dtype=np.float64))

    def close(self) -> None:
        """Nothing to release: the model's own threads were never used."""
