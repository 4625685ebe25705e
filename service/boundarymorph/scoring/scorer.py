"""The scorer: whatever answers (query, document) with a relevance in [0, 1]."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError, ScorerUnavailable
from boundarymorph.scoring.bill import Amount, Bill


@dataclass(frozen=True, slots=True)
class Scores:
    """What a scorer made of n texts.

    values: (n,) float64 in [0, 1], in the order of the texts; NaN where the scorer answered without one, which of those
    here only a language model does. truncated: how many pairs were cut to fit. cached: how
    many values were known, or being computed for another request, so that the model was not asked for them. model: the
    name of the one that gave them, None where it cannot change. failure: why values are missing that the scorer was not
    able to give now; those that came are good nevertheless.
    """

    values: NDArray[np.float64]
    truncated: int = 0
    cached: int = 0
    model: str | None = None
    failure: BoundaryMorphError | None = None


def model_changed() -> ScorerUnavailable:
    """The error of a request some of whose scores are of one model and some of another, which do not compare."""
    message = "the scorer serves another model since this request began; try again"
    return ScorerUnavailable(message, public=message)


class Scorer(Protocol):
    """f_CE of the paper. A pair gets the same score whatever it is asked together with."""

    @property
    def name(self) -> str:
        """Model and precision: what a score may be cached under."""

    async def check(self) -> None:
        """Warm up and score a probe. Raises what `score` does."""

    async def score(self, query: str, texts: Sequence[str], *, deadline: float | None = None) -> Scores:
        """Score n texts against one query: all of them, or an error.

        deadline: the moment, on `time.monotonic()`, after which nobody waits for the answer any more.

        Raises Overloaded before any work was done, DeadlineExceeded, ScorerUnavailable or ScorerFailed.
        """

    async def close(self) -> None:
        """Release threads and connections; calls after this fail."""


@runtime_checkable
class PricedScorer(Scorer, Protocol):
    """A scorer whose calls cost money."""

    def most(self, query: str, text: str) -> Amount:
        """The most that the score of one pair may cost."""

    async def score_for(self, bill: Bill, query: str, texts: Sequence[str], *, deadline: float | None = None) -> Scores:
        """As `score`, charged to a request. Raises CostCeiling too."""
