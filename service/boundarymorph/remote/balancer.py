"""Balancing calls over equivalent servers: which one to call, what is wrong with each, and which model they serve.

| a server | gets |
|---|---|
| works | calls up to its limits, if it has the fewest texts under way |
| is busy: it asked for a pause | after the pause, one call at a time until one succeeds |
| is away: it failed | after 1, 2, 4 ... 30 s, a probe; or one call at a time, if none works or a probe costs money |
| is late: several callers in a row stopped waiting for it | a probe, and calls for which no other server is free |
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from boundarymorph.errors import BoundaryMorphError, DeadlineExceeded, InvalidConfiguration, Overloaded
from boundarymorph.inference.deadline import Deadline
from boundarymorph.remote.peer import Busy, Flawed, Mismatch, Peer, Refused, Relayed, Unavailable
from boundarymorph.remote.together import together

ATTEMPTS = 3  # per call, plus one for each server; few, so that retries add little to an overload
BACKOFF, MOST_BACKOFF = 1.0, 30.0  # seconds after the first failure, doubled after each further one
PAUSE, LONGEST_PAUSE = 0.25, 60.0  # seconds, if a busy server does not say how long, and if it says more
MISSES = 3  # callers in a row that stopped waiting
OnChange = Callable[[str, bool], None]
P = TypeVar("P", bound=Peer)
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


class OtherModel(Mismatch):
    """The server serves another model than most of them."""


@dataclass(slots=True, eq=False)
class _Member(Generic[P]):
    """A server and what is known of it.

    requests, texts, trials: under way, the last of them while it had a fault; most_texts: at a time, None for any
    number; fault: what is wrong, as the error for callers; fault_at, free_at: since when, and when it may be called
    again; failures, misses: in a row; model: the one it last named; proven: whether it has shown since that it works;
    mismatched: whether it is away because of its model; probe: the one under way.
    """

    peer: P
    requests: int = 0
    texts: int = 0
    trials: int = 0
    most_texts: int | None = None
    fault: BoundaryMorphError | None = None
    fault_at: float = 0.0
    free_at: float = 0.0
    failures: int = 0
    misses: int = 0
    model: str | None = None
    proven: bool = False
    mismatched: bool = False
    probe: asyncio.Task[None] | None = None

    @property
    def away(self) -> bool:
        return self.fault is not None and not isinstance(self.fault, Overloaded)

    @property
    def sound(self) -> bool:
        """Whether it may get work that others can do as well."""
        return self.peer.paid or (not self.away and self.misses < MISSES)


class Balancer(Generic[P]):
    """Sends each call to the server with the fewest texts under way, and to another one if that fails.

    The model in use is the one that most working servers serve; in a tie it stays the same. Servers of another model
    are away, so a rolling update to a new model is followed.
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
        self._members = {peer: _Member(peer) for peer in peers}
        self._role, self._requests, self._clock = role, requests, clock
        self._probe, self._on_change = probe, on_change
        self._random = random.Random(seed)  # noqa: S311 - not used for secrets
        self._ended = asyncio.Event()  # of any request; each end has a new one
        self._closed = False
        for peer in peers:
            on_change(peer.base, True)

    @property
    def any_works(self) -> bool:
        return not all(member.away for member in self._members.values())

    def check_open(self) -> None:
        """Raises RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError(f"the {self._role.name} is closed")

    async def close(self) -> None:
        """Close the connections to all servers."""
        self._closed = True
        probes = [member.probe for member in self._members.values() if member.probe is not None]
        for probe in probes:
            probe.cancel()
        for peer in self._members:
            await peer.close()
        await asyncio.gather(*probes, return_exceptions=True)

    async def call(
        self, ask: Callable[[P], Awaitable[Answer]], *, texts: int = 1, deadline: Deadline | None = None
    ) -> Answer:
        """Call one server after another until one answers or further attempts are pointless.

        ask: raises the outcomes of `Peer`, or DeadlineExceeded; texts: the amount of work; deadline: how long to wait
        for a free server, None not to wait.

        An unusable answer may be due to the call itself: a server is blamed for it only if another one answers the same
        call. Raises DeadlineExceeded, Overloaded, the error of a `Relayed`, or an error of the role.
        """
        self.check_open()
        tried: set[_Member[P]] = set()
        flaws: dict[_Member[P], Flawed] = {}
        for _ in range(ATTEMPTS + len(self._members)):
            member = await self._turn(texts, tried, deadline)
            if member is None:
                break
            try:
                answer = await self._attempt(member, ask, texts)
            except Relayed as relayed:
                self._blame(flaws)
                raise relayed.error from relayed
            except Busy:
                if deadline is None:
                    tried.add(member)
            except Flawed as flaw:
                if member.peer.paid:
                    raise self._as_error(flaw) from flaw
                flaws[member] = flaw
                tried.add(member)
            except (Unavailable, Mismatch) as failure:
                tried.add(member)
                if isinstance(failure, Unavailable) and failure.carried_out and member.peer.paid:
                    message = f"{failure}; not retried, because its requests cost money"
                    raise self._role.unavailable(message) from failure
            except Refused as refusal:
                raise self._as_error(refusal) from refusal
            else:
                self._blame(flaws)
                return answer
        raise self._as_error(next(iter(flaws.values()))) if flaws else self.none_left()

    async def call_once(self, ask: Callable[[P], Awaitable[Answer]]) -> Answer:
        """Call one working server, without a retry if the connection breaks.

        The call may take any time, and does not serve as a trial of a server that was away. Raises as `call` does.
        """
        self.check_open()
        member = self._at_once(1, ())
        if member is None:
            raise self.none_left()
        try:
            return await ask(member.peer)
        except Unavailable as failure:
            self._eject(member, failure)
            raise self._as_error(failure) from failure
        except Refused as refusal:
            raise self._as_error(refusal) from refusal

    async def ask_all(self, ask: Callable[[P], Awaitable[object]]) -> None:
        """Call all servers concurrently, and record what is wrong with each. ask: see `probe`."""

        async def one(member: _Member[P]) -> None:
            with suppress(DeadlineExceeded):  # it says nothing about the server
                await self._try_out(member, ask)

        await together([one(member) for member in self._members.values()])

    def serves(self, peer: P, model: str, *, texts: int | None = None, proven: bool = False) -> None:
        """Record which model a server serves. texts: most that it takes at a time; proven: whether it has worked."""
        member = self._members[peer]
        member.most_texts = texts
        if member.model != model:
            member.model, member.proven = model, False
            self._elect()
        if proven:
            self._prove(member)

    def check_model(self, peer: P) -> None:
        """Raise OtherModel if the server serves another model than the one in use."""
        member = self._members[peer]
        if member.model not in (None, self.model):
            raise self._other_model(member)

    def none_left(self) -> BoundaryMorphError:
        """Return the error that says why no server is left to call."""
        faults = [member.fault for member in self._members.values() if member.fault is not None]
        busy = [fault for fault in faults if isinstance(fault, Overloaded)]
        if busy:
            public = busy[0].public if len(faults) == 1 else None
            return self._overloaded(self._reasons(), min(fault.retry_after for fault in busy), public)
        failed = bool(faults) and all(isinstance(fault, self._role.failed) for fault in faults)
        error = (self._role.failed if failed else self._role.unavailable)(self._reasons())
        error.logged = bool(faults)  # when each of them was noted
        return error

    async def _turn(self, texts: int, tried: Collection[_Member[P]], deadline: Deadline | None) -> _Member[P] | None:
        """Wait until a server can be called: now, or after a request or a pause ends. Returns None if there is none.

        Raises DeadlineExceeded, or Overloaded if a pause takes too long.
        """
        if deadline is None:
            return self._at_once(texts, tried)
        while True:
            remaining = deadline.remaining()
            if (member := self._pick(texts, tried)) is not None:
                return member
            there = [member for member in self._members.values() if member not in tried and not member.away]
            if not there:
                return None
            pauses = [member.free_at - self._clock() for member in there]
            if min(pauses) >= remaining:
                raise self._overloaded(self._reasons(), min(pauses))
            with suppress(TimeoutError):
                async with asyncio.timeout(min([remaining, *(pause for pause in pauses if pause > 0)])):
                    await self._ended.wait()

    def _at_once(self, texts: int, tried: Collection[_Member[P]]) -> _Member[P] | None:
        """Return a server for a caller that does not wait: if there is a single one, that one in any case."""
        if len(self._members) > 1:
            return self._pick(texts, tried)
        return next((member for member in self._members.values() if member not in tried), None)

    def _pick(self, texts: int, tried: Collection[_Member[P]]) -> _Member[P] | None:
        """Return the server with the fewest texts under way among those that can be called now; where none works, each
        may be tried a while after its last failure."""
        now, all_away = self._clock(), not self.any_works
        free = [
            member
            for member in self._members.values()
            if member not in tried
            and now >= (min(member.free_at, member.fault_at + BACKOFF) if all_away else member.free_at)
            and self._has_room(member, texts)
        ]
        free = [member for member in free if member.sound] or free
        least = min((member.texts for member in free), default=0)
        return self._random.choice([member for member in free if member.texts == least]) if free else None

    def _has_room(self, member: _Member[P], texts: int) -> bool:
        if member.fault is not None:
            return member.trials == 0
        if member.requests == 0:
            return True
        most = member.most_texts
        return member.requests < self._requests and (most is None or member.texts + texts <= most)

    async def _attempt(self, member: _Member[P], ask: Callable[[P], Awaitable[Answer]], texts: int) -> Answer:
        """Send one request to a server, and record what that says about it. Raises what `ask` does."""
        began, trial = self._clock(), member.fault is not None
        member.requests += 1
        member.texts += texts
        member.trials += trial
        try:
            answer = await ask(member.peer)
        except Relayed:
            self._answered(member, began)
            raise
        except Busy as busy:
            self._pause(member, busy)
            raise
        except (Unavailable, Mismatch) as failure:
            self._eject(member, failure, trial=trial)
            raise
        except (DeadlineExceeded, asyncio.CancelledError):  # the caller's deadline passed, or it was cancelled
            member.misses += 1
            asyncio.get_running_loop().call_soon(self._probe_doubtful)
            raise
        else:
            self._answered(member, began)
            return answer
        finally:
            member.requests -= 1
            member.texts -= texts
            member.trials -= trial
            ended, self._ended = self._ended, asyncio.Event()
            ended.set()

    def _answered(self, member: _Member[P], began: float) -> None:
        """Record that a request was answered; only one that began after a fault clears it."""
        self._prove(member)
        member.misses = 0
        paused = self._clock() < member.free_at and not member.away
        if began >= member.fault_at and not paused:
            self._readmit(member)
        asyncio.get_running_loop().call_soon(self._probe_doubtful)

    def _prove(self, member: _Member[P]) -> None:
        if not member.proven and member.model is not None:
            member.proven = True
            self._elect()

    def _readmit(self, member: _Member[P]) -> None:
        member.fault_at = member.free_at = 0.0
        member.failures = 0
        self._note(member, None)

    def _pause(self, member: _Member[P], busy: Busy) -> None:
        """Record that a server is overloaded. A pause is never shortened."""
        now = self._clock()
        seconds = max(member.free_at - now, min(PAUSE if busy.pause is None else busy.pause, LONGEST_PAUSE))
        member.fault_at, member.free_at, member.misses = now, now + seconds, 0
        self._note(member, self._overloaded(str(busy), seconds, busy.public))
        asyncio.get_running_loop().call_soon(self._probe_doubtful)

    def _eject(
        self, member: _Member[P], cause: Unavailable | Refused | Relayed | DeadlineExceeded, *, trial: bool = False
    ) -> None:
        """Record that a server does not work or must not be used. When it returns, it may serve another model."""
        now = self._clock()
        if trial or not member.away or now >= member.free_at:  # else the request began before this was known
            backoff = min(BACKOFF * 2 ** min(member.failures, 10), MOST_BACKOFF)
            member.fault_at, member.free_at, member.failures = now, now + backoff, member.failures + 1
        self._note(member, self._as_error(cause))
        member.peer.forget()
        if isinstance(cause, OtherModel):
            member.mismatched = True
        else:
            member.model, member.proven, member.mismatched = None, False, False
            self._elect()

    def _blame(self, flaws: dict[_Member[P], Flawed]) -> None:
        """Record that servers gave unusable answers to a request that another one has answered."""
        for member, flaw in flaws.items():
            self._eject(member, flaw)

    def _probe_doubtful(self) -> None:
        """Probe servers that may work again, and those that let callers wait, so that no caller has to."""
        now = self._clock()
        for member in self._members.values():
            due = not member.sound and now >= member.free_at and member.trials == 0
            if due and member.probe is None and not self._closed:
                member.probe = asyncio.ensure_future(self._probe_one(member))

    async def _probe_one(self, member: _Member[P]) -> None:
        try:
            await self._try_out(member, self._probe)
        except DeadlineExceeded as fault:
            self._eject(member, fault)
        finally:
            member.probe = None

    async def _try_out(self, member: _Member[P], ask: Callable[[P], Awaitable[object]]) -> None:
        """Send a small request to a server and record the outcome. Raises DeadlineExceeded."""
        try:
            await self._attempt(member, ask, 0)
        except (Busy, Unavailable, Mismatch):
            pass  # recorded
        except (Refused, Relayed) as failure:
            self._eject(member, failure)

    def _note(self, member: _Member[P], fault: BoundaryMorphError | None) -> None:
        """Record what is wrong with a server; report and log when it stops working or works again."""
        worked, works = (one is None or isinstance(one, Overloaded) for one in (member.fault, fault))
        member.fault = fault
        if works == worked:
            return
        self._on_change(member.peer.base, works)
        if works:
            log.info("a %s works again: %s", self._role.name, member.peer.base)
        else:
            log.warning("a %s does not work: %s", self._role.name, fault)

    def _as_error(self, cause: Unavailable | Refused | Relayed | DeadlineExceeded) -> BoundaryMorphError:
        """Return the error that callers get for this cause."""
        if isinstance(cause, DeadlineExceeded):
            return cause
        if isinstance(cause, Relayed):
            return cause.error
        if isinstance(cause, Flawed) and cause.kind is not None:
            return cause.kind(str(cause))
        return (self._role.unavailable if isinstance(cause, Unavailable) else self._role.failed)(str(cause))

    def _overloaded(self, message: str, retry_after: float, public: str | None = None) -> Overloaded:
        public = public or f"the {self._role.name} is overloaded; try again later"
        return Overloaded(message, retry_after=retry_after, public=public)

    def _reasons(self) -> str:
        faults = [str(member.fault) for member in self._members.values() if member.fault is not None]
        return "; ".join(faults) or f"no {self._role.name} can be called now"

    def _elect(self) -> None:
        """Choose the model of most working servers; in a tie, keep the present one.

        While no server has shown that it works, the models that they name count.
        """
        voters = [member for member in self._members.values() if member.proven] or list(self._members.values())
        votes = Counter(member.model for member in voters if member.model is not None)
        before = self.model
        self.model = max(votes, key=lambda name: (votes[name], name == before), default=before)
        if before in (None, self.model):
            return
        log.warning("the %ss now serve another model: %s, no longer %s", self._role.name, self.model, before)
        for member in self._members.values():
            if member.model == self.model and member.mismatched:
                member.mismatched = False
                self._readmit(member)
            elif member.model not in (None, self.model) and not member.mismatched:
                self._eject(member, self._other_model(member))

    def _other_model(self, member: _Member[P]) -> OtherModel:
        used = next(other.peer.base for other in self._members.values() if other.model == self.model)
        return OtherModel(f"{member.peer.base} serves {member.model}, but {used} serves {self.model}")
