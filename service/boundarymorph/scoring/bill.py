"""The cost of scores: what one request has spent, and the ledger that enforces ceilings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from boundarymorph.errors import CostCeiling
from boundarymorph.remote.wire import TokenCounts

NANO = 1_000_000_000  # sums are kept in billionths of the currency, so that rounding does not add up


class Amount(NamedTuple):
    """Tokens, read and written together, and their cost in billionths of the currency of the prices."""

    tokens: int = 0
    nanos: int = 0

    def plus(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.nanos + other.nanos)

    def minus(self, other: Amount) -> Amount:
        return Amount(self.tokens - other.tokens, self.nanos - other.nanos)

    @property
    def cost(self) -> float:
        """In the currency of the prices."""
        return self.nanos / NANO


NOTHING = Amount()


class Reservation(NamedTuple):
    """The most that an answer may cost, held until its cost is known. day: the day that it counts towards."""

    most: Amount
    day: str = ""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens read and of a million written."""

    read: float = 0.0
    written: float = 0.0

    def of(self, usage: TokenCounts) -> Amount:
        """Return the cost of this many tokens, rounded up."""
        nanos = math.ceil(1_000 * (usage.read * self.read + usage.written * self.written))
        return Amount(usage.read + usage.written, nanos)


@dataclass(slots=True)
class Bill:
    """What a request has spent.

    caller: the name of its key; usage: tokens, as far as known; spent: counted against the ceilings; reserved: for
    answers that are under way.
    """

    caller: str
    usage: TokenCounts = field(default_factory=TokenCounts)
    spent: Amount = NOTHING
    reserved: Amount = NOTHING


class Ledger(Protocol):
    """Enforces ceilings. Before a request is sent, the most that it may cost is reserved."""

    async def reserve(self, bill: Bill, most: Amount) -> Reservation:
        """Reserve an amount, or raise CostCeiling if it would exceed a ceiling."""

    async def settle(self, bill: Bill, reservation: Reservation, spent: Amount) -> None:
        """Replace the reserved amount by the amount spent."""

    async def close(self) -> None:
        """Close the connections."""


class OpenLedger:
    """A `Ledger` for a single user, with at most one ceiling.

    total: what has been spent or is reserved.
    """

    def __init__(self, most_cost: float | None = None) -> None:
        """most_cost: in the currency of the prices."""
        self.total = NOTHING
        self._most_cost = most_cost

    async def reserve(self, bill: Bill, most: Amount) -> Reservation:
        wanted = self.total.plus(most)
        if self._most_cost is not None and wanted.cost > self._most_cost:
            raise CostCeiling(
                f"{self.total.cost:.6g} of {self._most_cost:.6g} are spent or reserved, and the next answer may cost "
                f"{most.cost:.6g}; raise the limit to continue",
                retry_after=math.inf,
            )
        self.total, bill.reserved = wanted, bill.reserved.plus(most)
        return Reservation(most)

    async def settle(self, bill: Bill, reservation: Reservation, spent: Amount) -> None:
        self.total = self.total.minus(reservation.most).plus(spent)
        bill.reserved, bill.spent = bill.reserved.minus(reservation.most), bill.spent.plus(spent)

    async def close(self) -> None:
        pass
