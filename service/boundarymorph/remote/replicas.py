"""Which of several servers to ask next."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

BACKOFF = 0.25  # seconds after the first failure, doubled with each further one
MOST_BACKOFF = 2.0  # seconds
LONGEST_HOLD = 60.0  # seconds, whatever a server asks for
MISSES = 3  # callers in a row whose time ended before an answer came, after which a server should be probed


@dataclass(frozen=True, slots=True)
class Wait:
    """Why none can be asked now.

    busy: whether one that works is free when a request under way has ended; hold: seconds until the first that asked
    for a pause may be asked again, None where none did. Without either there is only a recovery to wait for.
    """

    busy: bool
    hold: float | None


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request under way: where, with how many texts, since when, and whether it is to show that a server is back."""

    index: int
    texts: int
    began: float
    trial: bool


@dataclass(slots=True)
class _Replica:
    requests: int = 0
    trials: int = 0
    texts: int = 0
    free_at: float = 0.0
    ejected: bool = False  # the last thing known of it is a failure
    probed: bool = False  # but it has been found to be back since
    held: bool = False  # the last thing known of it is that it asked for a pause
    fault_at: float = 0.0
    failures: int = 0
    misses: int = 0  # callers in a row whose time ended before it answered


class Replicas:
    """What is known of `count` servers that answer alike, and what is under way at each.

    One that failed is ejected for a while, one that asked for a pause gets it; after that it gets a single request
    until that has succeeded. As long as others do the work, one that failed should be probed before it gets any.

    A caller's deadline says something about the caller only. Where several in a row end without an answer, the server
    is asked after all others and should be probed; what comes of the probe decides.

    clock: seconds; seed: of the choice among equals.
    """

    def __init__(self, count: int, *, requests: int = 64, clock: Callable[[], float], seed: int = 0) -> None:
        """requests: most under way at a time at one server."""
        self._replicas = [_Replica() for _ in range(count)]
        self._most_requests = requests
        self._most_texts: list[int | None] = [None] * count
        self._clock = clock
        self._random = random.Random(seed)  # noqa: S311 - nothing secret about it

    def limit(self, index: int, texts: int | None) -> None:
        """How many texts a server takes at a time; None for any number."""
        self._most_texts[index] = texts

    def pick(self, texts: int, exclude: Collection[int] = ()) -> int | Wait:
        """Of those that may be asked, the one with the fewest texts under way, or what there is to wait for."""
        now = self._clock()
        known = [(index, replica) for index, replica in enumerate(self._replicas) if index not in exclude]
        free = [index for index, replica in known if now >= replica.free_at and self._has_room(index, texts)]
        if free:
            sound = [index for index in free if self._is_sound(self._replicas[index])]
            least = min(self._replicas[index].texts for index in sound or free)
            return self._random.choice([index for index in sound or free if self._replicas[index].texts == least])
        holds = [replica.free_at - now for _, replica in known if replica.held and replica.free_at > now]
        busy = any(now >= replica.free_at and not replica.ejected for _, replica in known)
        return Wait(busy, min(holds, default=None))

    def to_probe(self) -> list[int]:
        """Those that failed a while ago, or let several callers in a row wait in vain, and that are not being tried."""
        now = self._clock()
        return [
            index
            for index, replica in enumerate(self._replicas)
            if not self._is_sound(replica) and now >= replica.free_at and replica.trials == 0
        ]

    def probed(self, index: int) -> None:
        """Nothing more speaks against it: it may be tried even where others do the work."""
        replica = self._replicas[index]
        replica.probed, replica.misses = replica.ejected, 0

    def readmit(self, index: int) -> None:
        """What was held against it holds no longer."""
        replica = self._replicas[index]
        replica.ejected = replica.probed = replica.held = False
        replica.free_at, replica.failures, replica.misses = 0.0, 0, 0

    def any_works(self) -> bool:
        """Whether the last thing known of one of them is not a failure."""
        return not all(replica.ejected for replica in self._replicas)

    def begin(self, index: int, texts: int) -> Ticket:
        """A request is on its way."""
        replica = self._replicas[index]
        ticket = Ticket(index, texts, self._clock(), replica.ejected or replica.held)
        replica.requests += 1
        replica.texts += texts
        replica.trials += ticket.trial
        return ticket

    def end(self, ticket: Ticket) -> None:
        """The request is over, whatever became of it."""
        replica = self._replicas[ticket.index]
        replica.requests -= 1
        replica.texts -= ticket.texts
        replica.trials -= ticket.trial

    def succeeded(self, ticket: Ticket) -> bool:
        """It answered; whether that settles what was held against it, as only a later request can."""
        replica, now = self._replicas[ticket.index], self._clock()
        replica.misses = 0
        if ticket.began < replica.fault_at or (replica.held and now < replica.free_at):
            return False
        self.readmit(ticket.index)
        return True

    def failed(self, index: int) -> None:
        """It cannot be reached or does not work: leave it alone, for longer each time."""
        replica, now = self._replicas[index], self._clock()
        if replica.ejected and now < replica.free_at:
            return  # the end of a request that began before this outage was noticed
        replica.ejected, replica.probed, replica.held = True, False, False
        replica.fault_at = now
        replica.free_at = now + self._backoff(replica)

    def paused(self, index: int, seconds: float | None) -> float:
        """It has too much to do. seconds: for how long it asked to be left alone, if it did; for how long it is."""
        replica, now = self._replicas[index], self._clock()
        left = replica.free_at - now
        if seconds is None:
            seconds = left if left > 0 else self._backoff(replica)
        seconds = min(seconds, LONGEST_HOLD)
        replica.free_at = max(replica.free_at, now + seconds)
        replica.ejected, replica.probed, replica.held = False, False, True
        replica.fault_at, replica.misses = now, 0
        return max(left, seconds)

    def missed(self, index: int) -> None:
        """A caller's time ended before it answered."""
        self._replicas[index].misses += 1

    @staticmethod
    def _is_sound(replica: _Replica) -> bool:
        """Whether it may get work that others can do as well."""
        return (not replica.ejected or replica.probed) and replica.misses < MISSES

    def _has_room(self, index: int, texts: int) -> bool:
        replica, most_texts = self._replicas[index], self._most_texts[index]
        if replica.ejected or replica.held:
            return replica.trials == 0
        if replica.requests == 0:
            return True
        return replica.requests < self._most_requests and (most_texts is None or replica.texts + texts <= most_texts)

    @staticmethod
    def _backoff(replica: _Replica) -> float:
        replica.failures += 1
        return float(min(BACKOFF * 2 ** (replica.failures - 1), MOST_BACKOFF))
