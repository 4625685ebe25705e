"""What scores cost: the account of one request, and who keeps to the ceilings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

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
    """A `Ledger` without ceilings."""

    async def reserve(self, bill: Bill, most: Amount) -> None:
        bill.reserved = bill.reserved.plus(most)

    async def settle(self, bill: Bill, most: Amount, spent: Amount) -> None:
        bill.reserved, bill.spent = bill.reserved.minus(most), bill.spent.plus(spent)

    async def close(self) -> None:
        pass
