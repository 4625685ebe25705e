"""The size of a round such that its scores arrive before the deadline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

FIRST_GUESS = 1e-4  # seconds a character: a tenth of a second for an abstract
MOST_CHARACTERS = 2_048  # counted of a text: most cross-encoders cut it at 512 tokens
OVERHEAD = 50  # characters added for each document
SHARE = 0.5  # of the remaining time that a round is expected to take at most


class Pace:
    """The scorer's recent seconds per character, over the rounds of all selections, queueing included."""

    def __init__(self) -> None:
        self._seconds = FIRST_GUESS

    def at_most(self, documents: int, seconds: float) -> int:
        """Return `documents`, or fewer if not even short ones are likely to be scored in half of these seconds."""
        return max(1, int(min(documents, self._characters(seconds) / OVERHEAD)))

    def fitting(self, texts: Sequence[str], seconds: float) -> int:
        """Return how many of the first texts are likely to be scored in half of these seconds; at least 1."""
        allowed = self._characters(seconds)
        return max(1, sum(total <= allowed for total in accumulate(map(_counted, texts))))

    def took(self, texts: Sequence[str], seconds: float) -> None:
        """Learn from a round, by half of the ratio, so that a wrong estimate is soon corrected in either direction."""
        self._seconds = math.sqrt(self._seconds * _rate(texts, seconds))

    def exceeded(self, texts: Sequence[str], seconds: float) -> None:
        """Learn from a round that was not finished after so many seconds."""
        self._seconds = max(self._seconds, _rate(texts, seconds))

    def _characters(self, seconds: float) -> float:
        return SHARE * seconds / self._seconds


def _rate(texts: Sequence[str], seconds: float) -> float:
    return max(seconds, 1e-6) / sum(map(_counted, texts))


def _counted(text: str) -> int:
    return OVERHEAD + min(len(text), MOST_CHARACTERS)
