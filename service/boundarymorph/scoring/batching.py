"""A scorer that runs a cross-encoder in this process, in batches shared by all requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from boundarymorph.errors import ScorerFailed, ScorerUnavailable
from boundarymorph.inference.batching import Batcher
from boundarymorph.inference.models import ModelRole
from boundarymorph.scoring.scorer import CrossEncoder, Pair, Scores, TakesNoInstruction
from boundarymorph.telemetry import metrics

SCORER = ModelRole(
    name="scorer",
    item="pair",
    result="score",
    done="scored",
    dtype=np.float64,
    unavailable=ScorerUnavailable,
    failed=ScorerFailed,
    metrics=metrics.scorer_batches,
)


class BatchingScorer(Batcher[CrossEncoder, Pair]):
    """A `Scorer` that batches the pairs of all requests together; see `Batcher` for the order and the limits."""

    role = SCORER

    async def check(self) -> None:
        """Warm up with a batch of the largest size, then score a probe. Raises as `score` does."""
        await self.score("up", ["warm " * self.model.max_length] * self.full_batch())
        await self.score("probe", ["probe"])

    @property
    def takes_instruction(self) -> bool:
        return self.model.takes_instruction

    async def score(
        self,
        query: str,
        texts: Sequence[str],
        *,
        deadline: float | None = None,
        truncate: bool = True,
        instruction: str | None = None,
    ) -> Scores:
        """See `Scorer.score`. With truncate=False, raises TextTooLong before any work if a text would be
        truncated."""
        self.check_open()
        if not texts:
            return Scores(np.empty(0))
        if instruction is not None and not self.takes_instruction:
            raise TakesNoInstruction(self.name)
        results = await self.run(
            lambda: self.model.tokenize(query, texts, instruction),
            (len(query) + len(text) for text in texts),
            deadline=deadline,
            truncate=truncate,
        )
        return Scores(results.values, results.truncated)
