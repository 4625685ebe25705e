"""What is known of one of several equivalent servers: its state, and which requests it may get."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from boundarymorph.remote.peer import Busy, Flawed, Mismatch, OtherModel, Peer, Relayed, Unavailable

BACKOFF, MOST_BACKOFF = 1.0, 30.0  # seconds after the first failure, doubled after each further one
PAUSE, LONGEST_PAUSE = 0.25, 60.0  # seconds, if a busy server does not say how long, and if it says more
MISSES = 3  # callers in a row that stopped waiting


class State(Enum):
    """What is known of a server, and what it gets for that."""

    WORKS = "it answers: calls up to its limits, and a probe once `MISSES` callers in a row left before the answer"
    BUSY = "it asked for a pause: after that, one call at a time"
    OTHER = "it has another model than most: after 1, 2, 4 ... 30 s a probe, or one call if no other server is free"
    AWAY = "it failed: the same, and no say in which model is used"


SHOWN: dict[type, State] = {  # the state that an outcome of a request shows; any other shows nothing
    type(None): State.WORKS,
    Relayed: State.WORKS,
    Busy: State.BUSY,
    OtherModel: State.OTHER,
    Mismatch: State.AWAY,
    Unavailable: State.AWAY,
    Flawed: State.AWAY,  # if another server has answered the same call
}
P = TypeVar("P", bound=Peer)


@dataclass(slots=True, eq=False)
class Replica(Generic[P]):
    """A server.

    fault, since: the outcome that put it into its state, None if it works, and when; free_at: when it may be asked;
    failures, misses: in a row; begun: number of requests so far; running: the texts of those under way, by number;
    newest: the first request whose outcome counts; model: the one it last named; most_texts: under way at a time, None
    for any number; probe: the last one.
    """

    peer: P
    state: State = State.WORKS
    fault: Exception | None = None
    since: float = 0.0
    free_at: float = 0.0
    failures: int = 0
    misses: int = 0
    begun: int = 0
    running: dict[int, int] = field(default_factory=dict)
    newest: int = 1
    model: str | None = None
    most_texts: int | None = None
    probe: asyncio.Task[None] | None = None

    @property
    def works(self) -> bool:
        return self.state in (State.WORKS, State.BUSY)

    @property
    def doubted(self) -> bool:
        """Whether it gets probes, and calls only if no other server is free. A paid one does not: it is not probed."""
        return not self.peer.paid and (not self.works or self.misses >= MISSES)

    @property
    def texts(self) -> int:
        """Number of texts under way."""
        return sum(self.running.values())

    @property
    def on_trial(self) -> bool:
        """Whether a request is under way that will show whether it works again."""
        return self.state is not State.WORKS and any(number >= self.newest for number in self.running)

    def has_room(self, texts: int, requests: int) -> bool:
        """Whether it may get so many texts besides those under way. requests: most at a time."""
        if self.state is not State.WORKS:
            return not self.on_trial
        fits = self.most_texts is None or self.texts + texts <= self.most_texts
        return not self.running or (len(self.running) < requests and fits)

    def begin(self, texts: int) -> int:
        """Note that a request begins, and return its number."""
        self.begun += 1
        self.running[self.begun] = texts
        return self.begun

    def end(self, number: int) -> None:
        """Note that it has ended."""
        del self.running[number]

    def learn(self, number: int, outcome: Exception | None) -> State | None:
        """Return the state that the outcome of a request shows, None if it shows nothing new.

        An answer outdates the requests that began before its own, any other outcome all that are under way. A pause
        counts in any case.
        """
        shown = next((state for kind, state in SHOWN.items() if isinstance(outcome, kind)), None)
        if shown is None or (number < self.newest and shown is not State.BUSY):
            return None
        if shown is State.WORKS:
            self.newest = number
        return shown

    def become(self, state: State, fault: Exception | None, now: float) -> None:
        """Change the state. fault: unless it works."""
        self.state, self.fault, self.since, self.misses = state, fault, now, 0
        if state is State.WORKS:
            self.free_at, self.failures = 0.0, 0
            return
        self.newest = self.begun + 1
        if isinstance(fault, Busy):
            pause = PAUSE if fault.pause is None else min(fault.pause, LONGEST_PAUSE)
            self.free_at = max(self.free_at, now + pause)
        else:
            self.free_at = now + min(BACKOFF * 2 ** min(self.failures, 10), MOST_BACKOFF)
            self.failures += 1
        if state is State.AWAY:
            self.model = None  # it may return with another one
