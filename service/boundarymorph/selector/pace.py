"""How many documents a round may have, so that its scores are back before the deadline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

FIRST_GUESS = 1e-4  # seconds a character: a tenth of a second for an abstract
MOST_CHARACTERS = 2_048  # of a text that count: most cross-encoders cut it at 512 tokens
OVERHEAD = 50  # characters that a document counts beside its text
SHARE = 0.5  # of the time that is left, which a round may be expected to take


class Pace:
    """What the scorer took for a character lately, in the rounds of all selections, its queue included."""

    def __init__(self) -> None:
        self._seconds = FIRST_GUESS

    def at_most(self, documents: int, seconds: float) -> int:
        """So many documents, or fewer where not even short ones are likely to be scored in half of these seconds."""
        return max(1, int(min(documents, self._characters(seconds) / OVERHEAD)))

    def fitting(self, texts: Sequence[str], seconds: float) -> int:
        """How many of these texts, from the first, are likely to be scored in half of these seconds; at least 1."""
        allowed = self._characters(seconds)
        return max(1, sum(total <= allowed for total in accumulate(map(_counted, texts))))

    def took(self, texts: Sequence[str], seconds: float) -> None:
        """Learn from a round. Half of the way there in ratio, so that a wrong estimate is left soon, up or down."""
        self._seconds = math.sqrt(self._seconds * _rate(texts, seconds))

    def exceeded(self, texts: Sequence[str], seconds: float) -> None:
        """Learn from a round that was not back after so many seconds."""
        self._seconds = max(self._seconds, _rate(texts, seconds))

    def _characters(self, seconds: float) -> float:
        return SHARE * seconds / self._seconds


def _rate(texts: Sequence[str], seconds: float) -> float:
    return max(seconds, 1e-6) / sum(map(_counted, texts))


def _counted(text: str) -> int:
    return OVERHEAD + min(len(text), MOST_CHARACTERS)
