"""Decide when a session stops: after its budget, or earlier when fewer calls are enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from boundarymorph.errors import InvalidInput
from boundarymorph.selection.bookkeeping import StopReason
from boundarymorph.selection.boundary import Division

LOOKS_TO_STOP = 2  # rounds in a row, because the smallest of many estimates is too small


@dataclass(frozen=True, slots=True)
class Budget:
    """Stop after a number of calls.

    Raises:
        InvalidInput: If the number is negative.
    """

    calls: int

    def __post_init__(self) -> None:
        if self.calls < 0:
            raise InvalidInput(f"the budget is {self.calls}; it must be 0 or more calls")

    def look(self, division: Division, *, enough_scores: bool) -> float:
        """Return the loss that counts at the start or after a round, infinite if none does.

        Args:
            division: The division of the state at that moment.
            enough_scores: Whether the known scores suffice to estimate a loss.
        """
        return math.inf

    def spends_all(self, division: Division) -> bool:
        """Return whether only the budget ends the calls."""
        return True

    def reaches_target(self, division: Division) -> bool:
        """Return whether the target of a search is reached."""
        return False

    def tolerates(self, looks: Sequence[float]) -> bool:
        """Return whether further calls are not worth making."""
        return False

    def reason(self, division: Division, spent: int, unscored: int, looks: Sequence[float]) -> StopReason | None:
        """Return why a session ends; None if it goes on.

        Args:
            division: The division of the present state.
            spent: The number of calls so far.
            unscored: The number of documents that could be asked.
            looks: The losses that `look` returned so far.
        """
        if division.decided:
            return StopReason.NOTHING_TO_DECIDE
        if self.reaches_target(division):
            return StopReason.FOUND if unscored else StopReason.POOL_EXHAUSTED
        if spent >= self.calls:
            return StopReason.BUDGET
        if not unscored:
            return StopReason.POOL_EXHAUSTED
        return StopReason.SETTLED if self.tolerates(looks) else None


@dataclass(frozen=True, slots=True)
class Tolerance(Budget):
    """Stop when the cautious loss is at most `loss` at the start or at two looks in a row."""

    loss: float

    def look(self, division: Division, *, enough_scores: bool) -> float:
        return division.cautious_loss() if enough_scores and not division.spends_on_order else math.inf

    def spends_all(self, division: Division) -> bool:
        return division.spends_on_order

    def tolerates(self, looks: Sequence[float]) -> bool:
        return max(looks[-LOOKS_TO_STOP:]) <= self.loss


@dataclass(frozen=True, slots=True)
class SearchTarget(Budget):
    """Stop when the target of `boundary.SearchBoundary` is reached with this probability."""

    probability: float

    def reaches_target(self, division: Division) -> bool:
        return division.found >= self.probability
