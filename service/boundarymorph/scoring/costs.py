"""What scores cost: trips to a scorer by price and time, and the bill of a language model."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np

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


LATEST, ENOUGH = 32, 8  # trips to a server that are remembered, and that are needed to tell their parts
FADES, FRESH = 600.0, 1.0  # seconds for which a trip is remembered, and after which trips are looked at again
CHEAP = 0.5  # documents that a trip may cost, besides its own, where rounds may be many
CHOOSING = 0.005  # seconds that a round takes besides its trip, at least
FEW, FEWER, MORE = 24, 2, 3  # calls up to which two rounds are enough, and the rounds of fewer and of more calls
IN_TIME = 0.8  # of the time until a deadline, which trips are planned to take
UNIT = 100  # documents that are billed as one
LONGEST, SHORTEST = 86_400.0, 1e-6  # seconds of a trip, and of a document in it, that are counted with
CHARACTERS_PER_TOKEN = 4  # of English text under the usual tokenizers

# cheap: the scorer runs here on a CPU, where a trip costs next to nothing besides its documents. dear: on a GPU or
# another machine. billed: it takes money for each started UNIT of documents.
Kind = Literal["cheap", "dear", "billed"]


@dataclass(frozen=True, slots=True)
class Price:
    """What a scorer takes in money: for a request, each started UNIT of its documents, and a thousand tokens."""

    request: float = 0.0
    unit: float = 0.0
    tokens: float = 0.0
    ceiling: float | None = None  # of the scores of a query

    def __bool__(self) -> bool:
        return bool(self.request or self.unit or self.tokens)


class Fare(NamedTuple):
    """What the trips of a selection cost. units: started UNITs of documents of each, None if none are billed; cost: in
    the currency of the prices, None if there are none."""

    trips: int
    units: int | None
    cost: float | None

    def plus(self, other: Fare) -> Fare:
        units = None if self.units is None or other.units is None else self.units + other.units
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        return Fare(self.trips + other.trips, units, cost)


class _Trip(NamedTuple):
    """One that is over. seconds: that it took; at: when it ended."""

    documents: int
    seconds: float
    at: float


class Clock:
    """Learns the time of a trip, as a fixed part and one for each document, of each server from its latest ones.

    Both are medians, so that a few slow trips change little: that of the slopes between any two trips (Theil 1950, Sen
    1968), and that of what is left. Of several servers the one in the middle counts, and the faster of two, so that a
    slow one among them changes no plan. Old trips are forgotten.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """now: in seconds."""
        self._now = now
        self._trips: dict[str | None, deque[_Trip]] = {}
        self._parts: tuple[float, float] | None = None
        self._until = -math.inf  # until when they are known

    def took(self, documents: int, seconds: float, server: str | None = None) -> None:
        """Learn from a trip. server: the one that it went to, None if there is no name for it or it went to several."""
        self._trips.setdefault(server, deque(maxlen=LATEST)).append(_Trip(documents, seconds, self._now()))
        if self._parts is None:
            self._until = -math.inf

    def parts(self) -> tuple[float, float] | None:
        """Return the seconds of a trip and of each document; None while the trips to most servers are too few or too
        much alike."""
        if (now := self._now()) >= self._until:
            self._parts, self._until = self._learned(now - FADES), now + FRESH
        return self._parts

    def _learned(self, since: float) -> tuple[float, float] | None:
        remembered = [[trip for trip in list(trips) if trip.at >= since] for trips in list(self._trips.values())]
        each_server = [trips for trips in remembered if trips]
        known = [parts for trips in each_server if (parts := _parts(trips)) is not None]
        if 2 * len(known) <= len(each_server):
            return None
        documents = float(np.median([trip.documents for trips in each_server for trip in trips]))
        known.sort(key=lambda parts: parts[0] + parts[1] * documents)
        return known[(len(known) - 1) // 2]


def _parts(trips: Sequence[_Trip]) -> tuple[float, float] | None:
    """Return what `Clock.parts` does, for trips to one server."""
    if len(trips) < ENOUGH:
        return None
    documents, seconds, _ = np.array(trips).T
    one, other = np.triu_indices(len(documents), 1)
    between = documents[other] - documents[one]
    apart = between != 0
    if np.count_nonzero(apart) < ENOUGH:
        return None
    each = max(0.0, float(np.median((seconds[other] - seconds[one])[apart] / between[apart])))
    return max(0.0, float(np.median(seconds - each * documents))), each


@dataclass(slots=True)
class Trips:
    """The trips to one scorer: their kind, price and time. full: documents that the scorer reads in one pass."""

    kind: Kind = "cheap"
    price: Price = field(default_factory=Price)
    clock: Clock = field(default_factory=Clock)
    full: int = 1

    def rounds(self, budget: int, seconds: float = math.inf, *, settles: bool = False) -> int | None:
        """Return in how many rounds to spend a budget, or None for many that grow (`selection.acquisition.growing`).

        seconds: until the deadline, in which all must fit. settles: whether the selection stops by itself, which takes
        many looks: one after each pass of a scorer that reads many documents in one. What is known of the time counts
        only where trips are dear, so that elsewhere the same request has the same rounds.
        """
        one_by_one = self.kind == "dear" and self.full == 1
        if self.kind == "cheap" or (settles and one_by_one):
            return None
        parts = self.clock.parts()
        if one_by_one and parts is not None and parts[0] + CHOOSING <= CHEAP * parts[1]:
            return None
        rounds = FEWER if self.kind == "billed" or budget <= FEW else MORE
        if self.full > 1:
            passes = -(-budget // self.full)
            rounds = passes if settles else min(rounds, passes)
        if parts is None or parts[0] == 0.0 or math.isinf(seconds):
            return rounds
        fixed, each = parts
        return max(1, min(rounds, int((IN_TIME * seconds - each * budget) / fixed)))

    def fitting(self, seconds: float) -> int:
        """Return how many documents one trip brings within so many seconds; 0 where trips are cheap or their time is
        not known."""
        parts = None if self.kind == "cheap" else self.clock.parts()
        if parts is None:
            return 0
        left = min(IN_TIME * seconds, LONGEST) - parts[0]
        return int(max(0.0, left) / max(parts[1], SHORTEST))

    def fare(self, query: str, texts: Sequence[str]) -> Fare:
        """Return what a trip with these texts costs; without any there is none. Tokens are estimated from characters;
        each pass has those of the query."""
        trips, units, price = int(bool(texts)), -(-len(texts) // UNIT), self.price
        queries = -(-len(texts) // self.full)
        tokens = (queries * len(query) + sum(map(len, texts))) / CHARACTERS_PER_TOKEN
        cost = price.request * trips + price.unit * units + price.tokens * tokens / 1_000
        return Fare(trips, units if self.kind == "billed" else None, cost if price else None)

    def affordable(self, spent: Fare, query: str, texts: Sequence[str]) -> int:
        """Return how many of the first texts one more trip can have under the ceiling of a query."""
        if self.price.ceiling is None:
            return len(texts)
        left = self.price.ceiling - (spent.cost or 0.0)
        return bisect_right(
            range(1, len(texts) + 1), left, key=lambda count: self.fare(query, texts[:count]).cost or 0.0
        )
