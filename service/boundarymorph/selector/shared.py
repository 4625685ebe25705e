"""Hold the state that the selections of a process share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from boundarymorph.inference.concurrency import FairExecutor
from boundarymorph.selection.pool import Trust

FIRST_GUESS = 1e-4  # seconds per character: a tenth of a second for an abstract
MOST_CHARACTERS = 2_048  # characters that count: most cross-encoders cut texts at 512 tokens
OVERHEAD = 50  # characters added for each document
SHARE = 0.5  # largest share of the remaining time that a round may be expected to take


class Pace:
    """The scorer's recent seconds per character, which limit rounds so that they end in time.

    They are measured over the rounds of all selections, with queueing.
    """

    def __init__(self) -> None:
        self._seconds = FIRST_GUESS

    def limit(self, documents: int, seconds: float) -> int:
        """Return `documents`, or fewer if even short ones would take too long.

        They should be scored in half of these seconds.
        """
        return max(1, int(min(documents, self._characters(seconds) / OVERHEAD)))

    def count_fitting(self, texts: Sequence[str], seconds: float) -> int:
        """Return how many of the first texts are likely to be scored in half of these seconds.

        It is at least 1.
        """
        allowed = self._characters(seconds)
        return max(1, sum(total <= allowed for total in accumulate(map(_counted, texts))))

    def record(self, texts: Sequence[str], seconds: float) -> None:
        """Learn from a round, by half of the ratio, so that a wrong estimate is soon corrected."""
        self._seconds = math.sqrt(self._seconds * _rate(texts, seconds))

    def record_timeout(self, texts: Sequence[str], seconds: float) -> None:
        """Learn from a round that was not finished after `seconds`."""
        self._seconds = max(self._seconds, _rate(texts, seconds))

    def _characters(self, seconds: float) -> float:
        return SHARE * seconds / self._seconds


def _rate(texts: Sequence[str], seconds: float) -> float:
    return max(seconds, 1e-6) / sum(map(_counted, texts))


def _counted(text: str) -> int:
    return OVERHEAD + min(len(text), MOST_CHARACTERS)


@dataclass(slots=True)
class SharedState:
    """The state that the selections of a process share.

    Attributes:
        executor: The threads for long work.
        trust: The trust that is declared for the scorer.
        full: The number of documents that the scorer reads in one pass.
        pace: The scorer's recent pace.
        running: The number of selections in progress.
    """

    executor: FairExecutor
    trust: Trust | None = None
    full: int = 1
    pace: Pace = field(default_factory=Pace)
    running: int = 0
