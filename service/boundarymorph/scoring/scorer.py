"""The scorer: whatever answers (query, document) with a relevance in [0, 1]."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Scores:
    """values: (n,) float64 in [0, 1], in the order of the texts; truncated: how many pairs were cut to fit; cached: how
    many of the values were known, or being computed for another request, so that the model was not asked for them."""

    values: NDArray[np.float64]
    truncated: int = 0
    cached: int = 0


class Scorer(Protocol):
    """f_CE of the paper. A pair gets the same score whatever it is asked together with."""

    @property
    def name(self) -> str:
        """Model and precision: what a score may be cached under."""

    async def check(self) -> None:
        """Warm up and score a canary. Raises what `score` does."""

    async def score(self, query: str, texts: Sequence[str], *, deadline: float | None = None) -> Scores:
        """Score n texts against one query: all of them, or an error.

        deadline: the moment, on `time.monotonic()`, after which nobody waits for the answer any more.

        Raises Overloaded before any work was done, DeadlineExceeded, ScorerUnavailable or ScorerFailed.
        """

    async def close(self) -> None:
        """Release threads and connections; calls after this fail."""
