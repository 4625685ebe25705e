"""Several servers that answer alike: which of them is asked, what is wrong with each, and which model they serve."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from boundarymorph.errors import BoundaryMorphError, DeadlineExceeded, InvalidConfiguration, Overloaded
from boundarymorph.remote.deadline import Deadline
from boundarymorph.remote.peer import Busy, Flawed, Mismatch, Peer, Refused, Relayed, Unavailable
from boundarymorph.remote.replicas import Replicas, Ticket
from boundarymorph.remote.together import together

ATTEMPTS = 3  # of a call, and one more for each server: repetition must not add much to an overload
PAUSES = 3  # that are waited out before the overload reaches the caller
OnChange = Callable[[str, bool], None]
P = TypeVar("P", bound=Peer)
Answer = TypeVar("Answer")
log = logging.getLogger(__name__)


def ignore_change(endpoint: str, works: bool) -> None:
    """The `OnChange` of callers who need none."""


@dataclass(frozen=True, slots=True)
class Role:
    """name: what the servers are; unavailable, failed: raised when none can work now, or another try will not help;
    done, results: for messages, what they have then done to texts, and what they give."""

    name: str
    unavailable: type[BoundaryMorphError]
    failed: type[BoundaryMorphError]
    done: str = "answered"
    results: str = "answers"


class OtherModel(Mismatch):
    """The server serves another model than most."""


@dataclass(slots=True, eq=False)
class _Member(Generic[P]):
    """fault: what is wrong with it, as callers hear it; model: that it served when it last answered; proven: whether it
    has shown since that it works; mismatched: whether it is ejected for its model; probe: under way."""

    peer: P
    fault: BoundaryMorphError | None = None
    model: str | None = None
    proven: bool = False
    mismatched: bool = False
    probe: asyncio.Task[None] | None = None


class Balancer(Generic[P]):
    """Calls go to the server with the least under way, and to another where that one fails.

    One that failed is ejected for a while, then probed as long as others do the work; so is one that let several
    callers in a row wait in vain. The model that most of those serve that work is the one in use, the present one where
    there is a tie, and servers of another are ejected. So servers that are updated one after the other are followed.
    """

    def __init__(
        self,
        peers: Sequence[P],
        role: Role,
        *,
        requests: int,
        probe: Callable[[P], Awaitable[bool]],
        clock: Callable[[], float] = time.monotonic,
        seed: int = 0,
        on_change: OnChange = ignore_change,
    ) -> None:
        """requests: most under way at a time at one server; probe: sends a small request to a server, and returns
        whether that could show that it works; on_change: called with the base URL of each server and whether it works,
        which all do to begin with.

        Raises InvalidConfiguration.
        """
        if not peers:
            raise InvalidConfiguration(f"a remote {role.name} needs the URL of at least one server")
        if len({peer.base for peer in peers}) < len(peers):
            raise InvalidConfiguration(f"a remote {role.name} is given the same server twice")
        self.model: str | None = None
        """The one in use; None before a server has named it."""
        self._members = [_Member(peer) for peer in peers]
        self._indices = {peer: index for index, peer in enumerate(peers)}
        self._role, self._clock, self._probe, self._on_change = role, clock, probe, on_change
        self._replicas = Replicas(len(peers), requests=requests, clock=clock, seed=seed)
        self._ended = asyncio.Event()
        self._closed = False
        for peer in peers:
            on_change(peer.base, True)

    @property
    def any_works(self) -> bool:
        return self._replicas.any_works()

    def check_open(self) -> None:
        """Raises RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError(f"the {self._role.name} is closed")

    async def close(self) -> None:
        """Close the connections to all servers."""
        self._closed = True
        probes = [member.probe for member in self._members if member.probe is not None]
        for probe in probes:
            probe.cancel()
        for member in self._members:
            await member.peer.close()
        await asyncio.gather(*probes, return_exceptions=True)

    async def call(
        self, ask: Callable[[P], Awaitable[Answer]], *, texts: int = 1, deadline: Deadline | None = None
    ) -> Answer:
        """Ask one server after another until one has answered or there is no point in going on.

        ask: raises the outcomes of `Peer`, or DeadlineExceeded; texts: how much work it is; deadline: until which a
        free server is waited for, None to wait for none.

        What a server makes of a call may be unusable for the call's sake; that another can do with it tells that it is
        the server's fault. Raises DeadlineExceeded, Overloaded, the error of a `Relayed`, or what the role does.
        """
        self.check_open()
        tried: set[int] = set()
        flaws: dict[int, Flawed] = {}
        for _ in range(ATTEMPTS + len(self._members)):
            index = await self._turn(texts, tried, deadline)
            if index is None:
                break
            peer = self._members[index].peer
            try:
                with self._under_way(index, texts) as ticket:
                    answer = await ask(peer)
                self._answered(ticket, flaws)
                return answer
            except Relayed as relayed:
                self._answered(ticket, flaws)
                raise relayed.error from relayed
            except Busy as busy:
                self._pause(index, busy)
                if deadline is None:
                    tried.add(index)
            except Flawed as flaw:
                if peer.paid:
                    raise self._as_error(flaw) from flaw
                flaws[index] = flaw
                tried.add(index)
            except (Unavailable, Mismatch) as failure:
                self._eject(index, failure)
                tried.add(index)
                if isinstance(failure, Unavailable) and failure.carried_out and peer.paid:
                    message = f"{failure}; it is not asked again, since requests there are paid for"
                    raise self._role.unavailable(message) from failure
            except Refused as refusal:
                raise self._as_error(refusal) from refusal
        raise self._as_error(next(iter(flaws.values()))) if flaws else self.none_left()

    async def call_once(self, ask: Callable[[P], Awaitable[Answer]]) -> Answer:
        """Ask one server that works, and no other where it breaks off.

        However long that takes, it is no trial of a server that was unavailable. Raises as `call` does.
        """
        self.check_open()
        index = self._choose(1, ())
        if index is None:
            raise self.none_left()
        try:
            return await ask(self._members[index].peer)
        except Unavailable as failure:
            self._eject(index, failure)
            raise self._as_error(failure) from failure

    async def ask_all(self, ask: Callable[[P], Awaitable[bool]]) -> None:
        """Ask all servers side by side, and note what is wrong with each. ask: as of a probe."""

        async def one(index: int) -> None:
            with suppress(DeadlineExceeded):  # which says nothing about the server
                await self._try_out(index, ask)

        await together([one(index) for index in range(len(self._members))])

    def serves(self, peer: P, model: str, *, texts: int | None = None, proven: bool = False) -> None:
        """Note which model a server serves. texts: most that it takes at a time; proven: whether it has shown it."""
        member = self._members[self._indices[peer]]
        self._replicas.limit(self._indices[peer], texts)
        if member.model != model:
            member.model, member.proven = model, False
            self._elect()
        if proven:
            self._prove(member)

    def check_model(self, peer: P) -> None:
        """Raises OtherModel where the server serves another model than the one in use."""
        member = self._members[self._indices[peer]]
        if member.model not in (None, self.model):
            raise self._other_model(member)

    def none_left(self) -> BoundaryMorphError:
        """Why there is none left to ask."""
        faults = [member.fault for member in self._members if member.fault is not None]
        busy = [fault for fault in faults if isinstance(fault, Overloaded)]
        if busy:
            public = busy[0].public if len(faults) == 1 else None
            return self._overloaded(self._reasons(), min(fault.retry_after for fault in busy), public)
        if faults and all(isinstance(fault, self._role.failed) for fault in faults):
            return self._role.failed(self._reasons())
        return self._role.unavailable(self._reasons())

    def _choose(self, texts: int, tried: Collection[int]) -> int | None:
        """One that may be asked at once; the only one in any case, since its caller would not wait for it."""
        if len(self._members) == 1:
            return None if tried else 0
        choice = self._replicas.pick(texts, tried)
        return choice if isinstance(choice, int) else None

    async def _turn(self, texts: int, tried: Collection[int], deadline: Deadline | None) -> int | None:
        """A server that may be asked: now, or when a request has ended or a pause is over. None where there is none.

        Raises DeadlineExceeded, or Overloaded when the pauses take too long.
        """
        if deadline is None:
            return self._choose(texts, tried)
        pauses, pause_over = 0, self._clock()
        while True:
            remaining = deadline.remaining()
            choice = self._replicas.pick(texts, tried)
            if isinstance(choice, int):
                return choice
            if not choice.busy and choice.hold is None:
                return None
            if not choice.busy and choice.hold is not None and self._clock() >= pause_over:
                pauses, pause_over = pauses + 1, self._clock() + choice.hold
                if choice.hold >= remaining or pauses > PAUSES:
                    raise self._overloaded(self._reasons(), choice.hold)
            with suppress(TimeoutError):
                async with asyncio.timeout(remaining if choice.hold is None else min(remaining, choice.hold)):
                    await self._ended.wait()

    @contextmanager
    def _under_way(self, index: int, texts: int) -> Iterator[Ticket]:
        """While so much is in work there."""
        ticket = self._replicas.begin(index, texts)
        late = False
        try:
            yield ticket
        except (DeadlineExceeded, asyncio.CancelledError):  # its caller's time was over, or its caller left
            late = True
            raise
        finally:
            self._replicas.end(ticket)
            ended, self._ended = self._ended, asyncio.Event()
            ended.set()
            if late:
                self._replicas.missed(index)
                self._probe_doubtful()

    def _answered(self, ticket: Ticket, flaws: dict[int, Flawed]) -> None:
        """A request has been answered. flaws: what others made of it."""
        self._prove(self._members[ticket.index])
        self._settle(ticket)
        for index, flaw in flaws.items():
            self._eject(index, flaw)
        self._probe_doubtful()

    def _prove(self, member: _Member[P]) -> None:
        if not member.proven and member.model is not None:
            member.proven = True
            self._elect()

    def _settle(self, ticket: Ticket) -> None:
        if self._replicas.succeeded(ticket):
            self._note(self._members[ticket.index], None)

    def _pause(self, index: int, busy: Busy) -> None:
        """It has too much to do."""
        seconds = self._replicas.paused(index, busy.pause)
        self._note(self._members[index], self._overloaded(str(busy), seconds, busy.public))

    def _eject(self, index: int, cause: Unavailable | Refused | Relayed | DeadlineExceeded) -> None:
        """It does not work, or is not to be used. What comes back may serve another model."""
        member = self._members[index]
        self._note(member, self._as_error(cause))
        self._replicas.failed(index)
        member.peer.forget()
        if isinstance(cause, OtherModel):
            member.mismatched = True
        else:
            member.model, member.proven, member.mismatched = None, False, False
            self._elect()

    def _probe_doubtful(self) -> None:
        """Look whether those that failed are back, and whether those work that let callers wait: no caller should have
        to find out."""
        for index in self._replicas.to_probe():
            if self._members[index].probe is None and not self._closed:
                self._members[index].probe = asyncio.ensure_future(self._probe_one(index))

    async def _probe_one(self, index: int) -> None:
        try:
            await self._try_out(index, self._probe)
        except DeadlineExceeded as fault:
            self._eject(index, fault)
        finally:
            self._members[index].probe = None

    async def _try_out(self, index: int, ask: Callable[[P], Awaitable[bool]]) -> None:
        """Note what comes of a small request to a server. Raises DeadlineExceeded."""
        peer = self._members[index].peer
        try:
            with self._under_way(index, 0) as ticket:
                works = await ask(peer)
                if works:
                    self._prove(self._members[index])
                self.check_model(peer)
                if works:
                    self._settle(ticket)
                else:
                    self._replicas.probed(index)
        except Busy as busy:
            self._pause(index, busy)
        except (Unavailable, Refused, Relayed) as failure:
            self._eject(index, failure)

    def _note(self, member: _Member[P], fault: BoundaryMorphError | None) -> None:
        """Note what is wrong with a server; report and log where it stops working or works again."""
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
        """What is wrong, as the callers hear it."""
        if isinstance(cause, DeadlineExceeded):
            return cause
        if isinstance(cause, Relayed):
            return cause.error
        if isinstance(cause, Flawed) and cause.kind is not None:
            return cause.kind(str(cause))
        return (self._role.unavailable if isinstance(cause, Unavailable) else self._role.failed)(str(cause))

    def _overloaded(self, message: str, retry_after: float, public: str | None = None) -> Overloaded:
        public = public or f"the {self._role.name} has too much to do; try again later"
        return Overloaded(message, retry_after=retry_after, public=public)

    def _reasons(self) -> str:
        faults = [str(member.fault) for member in self._members if member.fault is not None]
        return "; ".join(faults) or f"no {self._role.name} may be asked now"

    def _elect(self) -> None:
        """Use the model of most servers that work, and rather the present one than another of as many.

        Where none has shown that it works, what they say counts.
        """
        voters = [member for member in self._members if member.proven] or self._members
        votes = Counter(member.model for member in voters if member.model is not None)
        before = self.model
        self.model = max(votes, key=lambda name: (votes[name], name == before), default=before)
        if before in (None, self.model):
            return
        log.warning("the %ss serve another model from now on: %s, no longer %s", self._role.name, self.model, before)
        for index, member in enumerate(self._members):
            if member.model == self.model and member.mismatched:
                member.mismatched = False
                self._replicas.readmit(index)
                self._note(member, None)
            elif member.model not in (None, self.model) and not member.mismatched:
                self._eject(index, self._other_model(member))

    def _other_model(self, member: _Member[P]) -> OtherModel:
        used = next(other.peer.base for other in self._members if other.model == self.model)
        return OtherModel(f"{member.peer.base} serves {member.model}, but {used} serves {self.model}")
