"""What scores cost: the account of one request, and who keeps to the ceilings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from boundarymorph.errors import CostCeiling
from boundarymorph.remote.wire import Usage

NANO = 1_000_000_000  # parts of the currency that sums are kept in, so that no rounding adds up


class Amount(NamedTuple):
    """Tokens, read and written together, and what they cost in billionths of the currency of the prices."""

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


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a million tokens that a model reads, and that it writes."""

    read: float = 0.0
    written: float = 0.0

    def of(self, usage: Usage) -> Amount:
        """What this many tokens cost, rounded up."""
        nanos = math.ceil(1_000 * (usage.read * self.read + usage.written * self.written))
        return Amount(usage.read + usage.written, nanos)


@dataclass(slots=True)
class Bill:
    """What a request has spent. caller: the name of its key; usage: tokens, as far as they are known; spent: counted
    against the ceilings; reserved: for answers that are under way."""

    caller: str
    usage: Usage = field(default_factory=Usage)
    spent: Amount = NOTHING
    reserved: Amount = NOTHING


class Ledger(Protocol):
    """Who keeps to the ceilings. What is sent is reserved first, as the most that it may cost."""

    async def reserve(self, bill: Bill, most: Amount) -> None:
        """Raises CostCeiling where a ceiling would be passed, and then nothing is reserved."""

    async def settle(self, bill: Bill, most: Amount, spent: Amount) -> None:
        """Replace what was reserved by what was spent."""

    async def close(self) -> None:
        """Release the connections."""


class OpenLedger:
    """A `Ledger` for one user, with one ceiling or none.

    total: what has been spent, or is reserved.
    """

    def __init__(self, most_cost: float | None = None) -> None:
        """most_cost: in the currency of the prices."""
        self.total = NOTHING
        self._most_cost = most_cost

    async def reserve(self, bill: Bill, most: Amount) -> None:
        wanted = self.total.plus(most)
        if self._most_cost is not None and wanted.cost > self._most_cost:
            raise CostCeiling(
                f"{self.total.cost:.6g} of {self._most_cost:.6g} are spent or reserved, and the next answer may cost "
                f"{most.cost:.6g}; allow more to go on",
                retry_after=math.inf,
            )
        self.total, bill.reserved = wanted, bill.reserved.plus(most)

    async def settle(self, bill: Bill, most: Amount, spent: Amount) -> None:
        self.total = self.total.minus(most).plus(spent)
        bill.reserved, bill.spent = bill.reserved.minus(most), bill.spent.plus(spent)

    async def close(self) -> None:
        pass
