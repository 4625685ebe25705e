"""A scorer that runs a cross-encoder in this process, in batches shared by all requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from boundarymorph.errors import ScorerFailed, ScorerUnavailable
from boundarymorph.inference.batching.batcher import Batcher
from boundarymorph.inference.batching.model import ModelRole
from boundarymorph.inference.loading import Loading
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


class LoadingScorer(Loading[BatchingScorer]):
    """A `Scorer`; raises ScorerUnavailable until its model is loaded."""

    def __init__(self, load: Callable[[], BatchingScorer]) -> None:
        super().__init__(load, ScorerUnavailable)

    @property
    def name(self) -> str:
        """The model's; until it is loaded a placeholder, under which nothing is cached."""
        return self.identity or "loading"

    @property
    def model(self) -> CrossEncoder:
        return self.loaded.model

    @property
    def takes_instruction(self) -> bool:
        """Whether the model takes one; it may, until it is loaded."""
        return self._loaded is None or self._loaded.takes_instruction

    async def score(
        self, query: str, texts: Sequence[str], *, deadline: float | None = None, instruction: str | None = None
    ) -> Scores:
        return await self.loaded.score(query, texts, deadline=deadline, instruction=instruction)
