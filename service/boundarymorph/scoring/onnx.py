"""Cross-encoders in ONNX, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from boundarymorph.models import OnnxTextModel, embedded_cross_encoder
from boundarymorph.scoring.scorer import Scores


class OnnxCrossEncoder:
    """A `Scorer` for a cross-encoder with one logit a pair; the score is its sigmoid.

    Each pair is scored on its own, so its score never depends on what it is asked together with. Concurrent requests
    take turns pair by pair, and a cancelled one stops after the pairs that are running.
    """

    def __init__(self, model: OnnxTextModel) -> None:
        self._model = model

    @classmethod
    def embedded(cls, *, max_length: int = 512, threads: int | None = None) -> OnnxCrossEncoder:
        """The cross-encoder that comes with the service. Raises ModelUnavailable."""
        return cls(OnnxTextModel(embedded_cross_encoder(), max_length=max_length, threads=threads))

    @property
    def name(self) -> str:
        return f"{self._model.weights.name}/{self._model.max_length}"

    async def score(self, query: str, texts: Sequence[str]) -> Scores:
        answers = await self._model.each(partial(self._model.run, query), texts)
        logits = np.array([logit[0] for logit, _ in answers], dtype=np.float64)
        truncated = sum(cut for _, cut in answers)
        # Through logaddexp neither tail overflows, and a score near 0 keeps all its digits.
        return Scores(np.exp(-np.logaddexp(0.0, -logits)), truncated)

    async def close(self) -> None:
        await self._model.close()
