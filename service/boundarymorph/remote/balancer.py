"""Calling one of several equivalent servers: which one, what happens if it fails, and which model they serve."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from boundarymorph.errors import BoundaryMorphError, DeadlineExceeded, InvalidConfiguration, Overloaded
from boundarymorph.inference.concurrency import Deadline, together
from boundarymorph.remote.peer import Busy, Flawed, Mismatch, OtherModel, Peer, Refused, Relayed, Unavailable

ATTEMPTS = 3  # per call, plus one for each server; few, so that retries add little to an overload
OnChange = Callable[[str, bool], None]
Answer = TypeVar("Answer")
log = logging.getLogger(__name__)


def ignore_change(endpoint: str, works: bool) -> None:
    """An `OnChange` that does nothing."""


@dataclass(frozen=True, slots=True)
class Role:
    """What the servers are to us.

    name: in messages; unavailable, failed: errors raised if none can work now, or if another try will not help; done,
    results: in messages, what they do to texts, and what they return.
    """

    name: str
    unavailable: type[BoundaryMorphError]
    failed: type[BoundaryMorphError]
    done: str = "answered"
    results: str = "answers"

    def error(self, outcome: Unavailable | Refused, note: str = "") -> BoundaryMorphError:
        """Return the error that callers get for this outcome. note: added to the message."""
        kind = self.failed if isinstance(outcome, Refused) else self.unavailable
        if isinstance(outcome, Flawed) and outcome.kind is not None:
            kind = outcome.kind
        return kind(f"{outcome}{note}")


BACKOFF, MOST_BACKOFF = 1.0, 30.0  # seconds after the first failure, doubled after each further one
PAUSE, LONGEST_PAUSE = 0.25, 10.0  # seconds, if a busy server does not say how long, and until one call tries it again
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


class Balancer(Generic[P]):
    """Sends each call to the server with the fewest texts under way, and to another one if that fails.

    The model in use is the one that most working servers serve; in a tie it stays the same. A rolling update to a new
    model is followed.
    """

    def __init__(
        self,
        peers: Sequence[P],
        role: Role,
        *,
        requests: int,
        probe: Callable[[P], Awaitable[object]],
        clock: Callable[[], float] = time.monotonic,
        seed: int = 0,
        on_change: OnChange = ignore_change,
    ) -> None:
        """requests: most concurrent requests to one server; probe: sends a small request to a server, and raises as a
        call does if it does not work; seed: for the choice among equals; on_change: called with the base URL of each
        server and whether it works; initially all do.

        Raises InvalidConfiguration if there are no peers, or one is given twice.
        """
        if not peers:
            raise InvalidConfiguration(f"a remote {role.name} needs the URL of at least one server")
        if len({peer.base for peer in peers}) < len(peers):
            raise InvalidConfiguration(f"a remote {role.name} has the same server twice")
        self.model: str | None = None
        """The model in use; None until a server has named it."""
        self.replicas = {peer: Replica(peer) for peer in peers}
        self._role, self._requests, self._clock = role, requests, clock
        self._probe, self._on_change = probe, on_change
        self._random = random.Random(seed)  # noqa: S311 - not used for secrets
        self._ended = asyncio.Event()  # of any request; each end has a new one
        self._closed = False
        for peer in peers:
            on_change(peer.base, True)

    @property
    def any_works(self) -> bool:
        return any(replica.works for replica in self.replicas.values())

    def check_open(self) -> None:
        """Raises RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError(f"the {self._role.name} is closed")

    async def close(self) -> None:
        """Close the connections to all servers."""
        self._closed = True
        probes = [replica.probe for replica in self.replicas.values() if replica.probe is not None]
        for probe in probes:
            probe.cancel()
        for peer in self.replicas:
            await peer.close()
        await asyncio.gather(*probes, return_exceptions=True)

    async def call(
        self, ask: Callable[[P], Awaitable[Answer]], *, texts: int = 1, deadline: Deadline | None = None
    ) -> Answer:
        """Call one server after another until one answers or further attempts are pointless.

        ask: raises the outcomes of `Peer`, or DeadlineExceeded; texts: the amount of work; deadline: how long to wait
        for a free server, None not to wait.

        What a server may have carried out is repeated once, and never if it costs money. An unusable answer may be due
        to the call itself: a server is blamed for it only if another one answers. Raises DeadlineExceeded, Overloaded,
        the error of a `Relayed`, or an error of the role.
        """
        self.check_open()
        tried: set[Replica[P]] = set()
        last: tuple[Replica[P], int, Unavailable | Refused] | None = None
        repeated = False
        for _ in range(ATTEMPTS + len(self.replicas)):
            replica = await self._turn(texts, tried, deadline)
            if replica is None:
                break
            number = replica.begin(texts)
            try:
                answer = await self._attempt(replica, number, ask)
            except Relayed as relayed:
                raise relayed.error from relayed
            except Busy:
                if deadline is None:
                    tried.add(replica)
            except (Unavailable, Mismatch, Flawed) as failure:
                tried.add(replica)
                last = replica, number, failure
                if failure.carried_out and replica.peer.paid:
                    raise self._role.error(failure, "; not retried, because its requests cost money") from failure
                if failure.carried_out and repeated:
                    break
                repeated = repeated or failure.carried_out
            except Refused as refusal:
                raise self._role.error(refusal) from refusal
            else:
                if last is not None and isinstance(last[2], Flawed):
                    self._learn(*last)
                return answer
        if last is not None and (isinstance(last[2], Flawed) or not self._faults):
            raise self._role.error(last[2])
        raise self.none_left()

    async def call_once(self, ask: Callable[[P], Awaitable[Answer]]) -> Answer:
        """Call one working server, without a retry if the connection breaks. Raises as `call` does.

        The call may take any time, so it is no trial of a server that was away, and takes no other call's place.
        """
        self.check_open()
        replica = await self._turn(1, (), None)
        if replica is None:
            raise self.none_left()
        number = replica.begin(0)
        del replica.running[number]
        try:
            return await ask(replica.peer)
        except (Unavailable, Refused) as failure:
            if isinstance(failure, Unavailable):
                self._learn(replica, number, failure)
            raise self._role.error(failure) from failure

    async def ask_all(self, ask: Callable[[P], Awaitable[object]]) -> None:
        """Call all servers concurrently, and record what is wrong with each. ask: see `probe`."""
        await together([self._try_out(replica, ask) for replica in self.replicas.values()])

    def serves(self, peer: P, model: str, *, texts: int | None = None) -> None:
        """Record which model a server serves. texts: most that it takes at a time."""
        replica = self.replicas[peer]
        replica.model, replica.most_texts = model, texts
        self._elect()

    def check_model(self, peer: P) -> None:
        """Raise OtherModel if the server serves another model than the one in use."""
        if self.replicas[peer].model not in (None, self.model):
            raise self._other_model(self.replicas[peer])

    @property
    def _faults(self) -> list[Exception]:
        return [replica.fault for replica in self.replicas.values() if replica.fault is not None]

    def none_left(self) -> BoundaryMorphError:
        """Return the error that says why no server is left to call."""
        faults = self._faults
        reasons = "; ".join(map(str, faults)) or f"no {self._role.name} can be called now"
        if busy := [replica for replica in self.replicas.values() if replica.state is State.BUSY]:
            seconds = min(replica.free_at for replica in busy) - self._clock()
            public = faults[0].public if len(faults) == 1 and isinstance(faults[0], Busy) else None
            public = public or f"the {self._role.name} is overloaded; try again later"
            return Overloaded(reasons, retry_after=max(seconds, 0.0), public=public)
        refused = bool(faults) and all(isinstance(fault, Refused) for fault in faults)
        error = (self._role.failed if refused else self._role.unavailable)(reasons)
        error.logged = bool(faults)  # when each of them was noted
        return error

    async def _turn(self, texts: int, tried: Collection[Replica[P]], deadline: Deadline | None) -> Replica[P] | None:
        """Wait until a server can be called: now, or after a request or a pause ends. Returns None if there is none.

        Without a deadline, a single server is called in any case. Raises DeadlineExceeded, or Overloaded if a pause
        takes too long.
        """
        while True:
            remaining = math.inf if deadline is None else deadline.remaining()
            if (replica := self._pick(texts, tried)) is not None:
                return replica
            if deadline is None:
                return next(
                    (one for one in self.replicas.values() if len(self.replicas) == 1 and one not in tried), None
                )
            pauses = [one.free_at - self._clock() for one in self.replicas.values() if one.works and one not in tried]
            if not pauses:
                return None
            if min(pauses) >= remaining:
                raise self.none_left()
            with suppress(TimeoutError):
                async with asyncio.timeout(min([remaining, *(pause for pause in pauses if pause > 0)])):
                    await self._ended.wait()

    def _pick(self, texts: int, tried: Collection[Replica[P]]) -> Replica[P] | None:
        """Return the server with the fewest texts under way among those that can be called now."""
        now = self._clock()
        free = [
            replica
            for replica in self.replicas.values()
            if replica not in tried and now >= replica.free_at and replica.has_room(texts, self._requests)
        ]
        return min(free, key=lambda one: (one.doubted, one.texts, self._random.random()), default=None)

    async def _attempt(self, replica: Replica[P], number: int, ask: Callable[[P], Awaitable[Answer]]) -> Answer:
        """Send the request of this number, and record what its outcome shows. Raises what `ask` does."""
        try:
            answer = await ask(replica.peer)
        except Flawed:
            raise  # it shows something once another server has answered
        except (DeadlineExceeded, asyncio.CancelledError):  # the caller's deadline passed, or it left
            replica.misses += number >= replica.newest
            raise
        except Exception as outcome:
            self._learn(replica, number, outcome)
            raise
        else:
            self._learn(replica, number, None)
            return answer
        finally:
            del replica.running[number]
            ended, self._ended = self._ended, asyncio.Event()
            ended.set()
            self._probe_doubted()

    def _learn(self, replica: Replica[P], number: int, outcome: Exception | None) -> None:
        """Record what the outcome of a request shows.

        An answer outdates the requests that began before its own, any other outcome all that are under way. A pause
        counts in any case.
        """
        shown = next((state for kind, state in SHOWN.items() if isinstance(outcome, kind)), None)
        if shown is None or (number < replica.newest and shown is not State.BUSY):
            return
        if shown is State.WORKS:
            replica.newest = number
        self._change(replica, shown, None if shown is State.WORKS else outcome)

    def _change(self, replica: Replica[P], state: State, fault: Exception | None) -> None:
        """Change the state of a server; report and log when it stops working or works again."""
        worked = replica.works
        replica.become(state, fault, self._clock())
        if not replica.works:
            replica.peer.forget()
        if not self.any_works:
            for away in self.replicas.values():
                away.free_at = min(away.free_at, away.since + BACKOFF)
        if replica.works != worked:
            self._on_change(replica.peer.base, replica.works)
            if replica.works:
                log.info("a %s works again: %s", self._role.name, replica.peer.base)
            else:
                log.warning("a %s does not work: %s", self._role.name, fault)
        self._elect()

    def _probe_doubted(self) -> None:
        """Probe servers that may work again, and those that let callers wait, so that no caller has to."""
        now = self._clock()
        for replica in self.replicas.values():
            idle = not replica.on_trial and (replica.probe is None or replica.probe.done())
            if replica.doubted and now >= replica.free_at and idle and self.any_works and not self._closed:
                replica.probe = asyncio.create_task(self._try_out(replica, self._probe))

    async def _try_out(self, replica: Replica[P], ask: Callable[[P], Awaitable[object]]) -> None:
        """Send a small request to a server, whose fault it is if that is refused, and record the outcome."""

        async def strictly(peer: P) -> None:
            try:
                await ask(peer)
            except Mismatch:
                raise
            except (Refused, Relayed) as failure:
                raise Mismatch(str(failure)) from failure

        with suppress(Busy, Unavailable, Mismatch, DeadlineExceeded):
            await self._attempt(replica, replica.begin(0), strictly)

    def _elect(self) -> None:
        """Choose the model of most servers that are not away; in a tie, keep the present one."""
        told = [replica for replica in self.replicas.values() if replica.model is not None]
        votes = Counter(replica.model for replica in told if replica.state is not State.AWAY)
        votes = votes or Counter(replica.model for replica in told)
        before = self.model
        self.model = max(votes, key=lambda name: (votes[name], name == before), default=before)
        if before in (None, self.model):
            return
        log.warning("the %ss now serve another model: %s, no longer %s", self._role.name, self.model, before)
        for replica in told:
            if replica.model == self.model and replica.state is State.OTHER:
                self._change(replica, State.WORKS, None)
            elif replica.model != self.model and replica.works:
                self._change(replica, State.OTHER, self._other_model(replica))

    def _other_model(self, replica: Replica[P]) -> OtherModel:
        used = next(other.peer.base for other in self.replicas.values() if other.model == self.model)
        return OtherModel(f"{replica.peer.base} serves {replica.model}, but {used} serves {self.model}")
