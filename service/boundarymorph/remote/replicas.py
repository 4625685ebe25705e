"""Choosing which of several servers to call next."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

BACKOFF = 0.25  # seconds after the first failure, doubled after each further one
MOST_BACKOFF = 2.0  # seconds
LONGEST_HOLD = 60.0  # seconds, even if a server asks for more
MISSES = 3  # callers in a row that stopped waiting, after which a server should be probed


@dataclass(frozen=True, slots=True)
class Wait:
    """Why no server can be called now.

    busy: whether a working server will be free when a request ends; hold: seconds until the first server that asked for
    a pause can be called again, None if none did. With neither, only a server's recovery can help.
    """

    busy: bool
    hold: float | None


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request under way: where, with how many texts, since when, and whether it is the trial of a server."""

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
    ejected: bool = False  # the last known event is a failure
    probed: bool = False  # a probe has succeeded since
    held: bool = False  # the last known event is that it asked for a pause
    fault_at: float = 0.0
    failures: int = 0
    misses: int = 0  # callers in a row that stopped waiting for it


class Replicas:
    """The state of `count` equivalent servers, and the requests under way at each.

    A server that fails is ejected for a while, and one that asks for a pause gets it; afterwards it gets a single
    request at a time until one succeeds. While others do the work, an ejected server should be probed first.

    A missed deadline alone says little about a server. After several in a row, a server is chosen only if no other is
    free, and should be probed; the probe decides.

    clock: seconds; seed: for the choice among equals.
    """

    def __init__(self, count: int, *, requests: int = 64, clock: Callable[[], float], seed: int = 0) -> None:
        """requests: most concurrent requests to one server."""
        self._replicas = [_Replica() for _ in range(count)]
        self._most_requests = requests
        self._most_texts: list[int | None] = [None] * count
        self._clock = clock
        self._random = random.Random(seed)  # noqa: S311 - not used for secrets

    def limit(self, index: int, texts: int | None) -> None:
        """Set how many texts a server takes at a time; None for any number."""
        self._most_texts[index] = texts

    def pick(self, texts: int, exclude: Collection[int] = ()) -> int | Wait:
        """Return the server with the fewest texts under way among those that can be called, or what to wait for."""
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
        """Return the servers to probe: ejected a while ago or missed several times, and without a trial under way."""
        now = self._clock()
        return [
            index
            for index, replica in enumerate(self._replicas)
            if not self._is_sound(replica) and now >= replica.free_at and replica.trials == 0
        ]

    def probed(self, index: int) -> None:
        """Record a probe that found no fault: the server may be tried even while others do the work."""
        replica = self._replicas[index]
        replica.probed, replica.misses = replica.ejected, 0

    def readmit(self, index: int) -> None:
        """Clear all faults of a server."""
        replica = self._replicas[index]
        replica.ejected = replica.probed = replica.held = False
        replica.free_at, replica.failures, replica.misses = 0.0, 0, 0

    def any_works(self) -> bool:
        """Whether any server's last known event is not a failure."""
        return not all(replica.ejected for replica in self._replicas)

    def begin(self, index: int, texts: int) -> Ticket:
        """Record the start of a request."""
        replica = self._replicas[index]
        ticket = Ticket(index, texts, self._clock(), replica.ejected or replica.held)
        replica.requests += 1
        replica.texts += texts
        replica.trials += ticket.trial
        return ticket

    def end(self, ticket: Ticket) -> None:
        """Record the end of a request, whatever its outcome."""
        replica = self._replicas[ticket.index]
        replica.requests -= 1
        replica.texts -= ticket.texts
        replica.trials -= ticket.trial

    def succeeded(self, ticket: Ticket) -> bool:
        """Record an answer; return whether it clears the server's faults, as only a request begun after them can."""
        replica, now = self._replicas[ticket.index], self._clock()
        replica.misses = 0
        if ticket.began < replica.fault_at or (replica.held and now < replica.free_at):
            return False
        self.readmit(ticket.index)
        return True

    def failed(self, index: int) -> None:
        """Record a failure: eject the server, for longer each time."""
        replica, now = self._replicas[index], self._clock()
        if replica.ejected and now < replica.free_at:
            return  # a request that began before this outage was known
        replica.ejected, replica.probed, replica.held = True, False, False
        replica.fault_at = now
        replica.free_at = now + self._backoff(replica)

    def paused(self, index: int, seconds: float | None) -> float:
        """Record an overload. seconds: the pause it asked for, if any. Returns the pause that it gets."""
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
        """Record that a caller stopped waiting for a server."""
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
