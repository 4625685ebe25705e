"""A cross-encoder of this process that is loaded after its other parts are built."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from boundarymorph.errors import ScorerUnavailable
from boundarymorph.inference.loading import Loading
from boundarymorph.scoring.batching import BatchingScorer
from boundarymorph.scoring.cross_encoder import CrossEncoder
from boundarymorph.scoring.scorer import Scores


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
        return self.loaded.takes_instruction

    async def score(
        self, query: str, texts: Sequence[str], *, deadline: float | None = None, instruction: str | None = None
    ) -> Scores:
        return await self.loaded.score(query, texts, deadline=deadline, instruction=instruction)
