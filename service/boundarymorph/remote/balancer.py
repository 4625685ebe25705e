"""Balancing calls over equivalent servers: which one to call, what is wrong with each, and which model they serve."""

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
from boundarymorph.inference.deadline import Deadline
from boundarymorph.remote.peer import Busy, Flawed, Mismatch, Peer, Refused, Relayed, Unavailable
from boundarymorph.remote.replicas import Replicas, Ticket
from boundarymorph.remote.together import together

ATTEMPTS = 3  # per call, plus one for each server; few, so that retries add little to an overload
PAUSES = 3  # waited out before the caller gets an Overloaded
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

    fault: what is wrong with it, as the error for callers; model: the one it last named; proven: whether it has shown
    since that it works; mismatched: whether it is ejected because of its model; probe: the one under way.
    """

    peer: P
    fault: BoundaryMorphError | None = None
    model: str | None = None
    proven: bool = False
    mismatched: bool = False
    probe: asyncio.Task[None] | None = None


class Balancer(Generic[P]):
    """Sends each call to the server with the fewest texts under way, and to another one if that fails.

    A server that fails is ejected for a while, then probed as long as others do the work; so is one whose answers
    several callers in a row stopped waiting for. The model in use is the one that most working servers serve; in a tie
    it stays the same. Servers of another model are ejected, so a rolling update to a new model is followed.
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
        """requests: most concurrent requests to one server; probe: sends a small request to a server, and returns
        whether the answer proves that it works; on_change: called with the base URL of each server and whether it
        works; initially all do.

        Raises InvalidConfiguration if there are no peers, or one is given twice.
        """
        if not peers:
            raise InvalidConfiguration(f"a remote {role.name} needs the URL of at least one server")
        if len({peer.base for peer in peers}) < len(peers):
            raise InvalidConfiguration(f"a remote {role.name} has the same server twice")
        self.model: str | None = None
        """The model in use; None until a server has named it."""
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
        """Call one server after another until one answers or further attempts are pointless.

        ask: raises the outcomes of `Peer`, or DeadlineExceeded; texts: the amount of work; deadline: how long to wait
        for a free server, None not to wait.

        An unusable answer may be due to the call itself: a server is blamed for it only if another one answers the same
        call. Raises DeadlineExceeded, Overloaded, the error of a `Relayed`, or an error of the role.
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
                self._probe_doubtful()
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
                    message = f"{failure}; not retried, because its requests cost money"
                    raise self._role.unavailable(message) from failure
            except Refused as refusal:
                raise self._as_error(refusal) from refusal
        raise self._as_error(next(iter(flaws.values()))) if flaws else self.none_left()

    async def call_once(self, ask: Callable[[P], Awaitable[Answer]]) -> Answer:
        """Call one working server, without a retry if the connection breaks.

        The call may take any time, and does not serve as a trial of an ejected server. Raises as `call` does.
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
        except Refused as refusal:
            raise self._as_error(refusal) from refusal

    async def ask_all(self, ask: Callable[[P], Awaitable[bool]]) -> None:
        """Call all servers concurrently, and record what is wrong with each. ask: see `probe`."""

        async def one(index: int) -> None:
            with suppress(DeadlineExceeded):  # it says nothing about the server
                await self._try_out(index, ask)

        await together([one(index) for index in range(len(self._members))])

    def serves(self, peer: P, model: str, *, texts: int | None = None, proven: bool = False) -> None:
        """Record which model a server serves. texts: most that it takes at a time; proven: whether it has worked."""
        member = self._members[self._indices[peer]]
        self._replicas.limit(self._indices[peer], texts)
        if member.model != model:
            member.model, member.proven = model, False
            self._elect()
        if proven:
            self._prove(member)

    def check_model(self, peer: P) -> None:
        """Raise OtherModel if the server serves another model than the one in use."""
        member = self._members[self._indices[peer]]
        if member.model not in (None, self.model):
            raise self._other_model(member)

    def none_left(self) -> BoundaryMorphError:
        """Return the error that says why no server is left to call."""
        faults = [member.fault for member in self._members if member.fault is not None]
        busy = [fault for fault in faults if isinstance(fault, Overloaded)]
        if busy:
            public = busy[0].public if len(faults) == 1 else None
            return self._overloaded(self._reasons(), min(fault.retry_after for fault in busy), public)
        failed = bool(faults) and all(isinstance(fault, self._role.failed) for fault in faults)
        error = (self._role.failed if failed else self._role.unavailable)(self._reasons())
        error.logged = bool(faults)  # when each of them was noted
        return error

    def _choose(self, texts: int, tried: Collection[int]) -> int | None:
        """Return a server that can be called at once; with a single server that one, since the caller does not wait."""
        if len(self._members) == 1:
            return None if tried else 0
        choice = self._replicas.pick(texts, tried)
        return choice if isinstance(choice, int) else None

    async def _turn(self, texts: int, tried: Collection[int], deadline: Deadline | None) -> int | None:
        """Wait until a server can be called: now, or after a request or a pause ends. Returns None if there is none.

        Raises DeadlineExceeded, or Overloaded if the pauses take too long.
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
        """Count a request to a server while it runs."""
        ticket = self._replicas.begin(index, texts)
        late = False
        try:
            yield ticket
        except (DeadlineExceeded, asyncio.CancelledError):  # the caller's deadline passed, or it was cancelled
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
        """Record that a request was answered. flaws: of other servers that were given the same request."""
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
        """Record that a server is overloaded."""
        seconds = self._replicas.paused(index, busy.pause)
        self._note(self._members[index], self._overloaded(str(busy), seconds, busy.public))

    def _eject(self, index: int, cause: Unavailable | Refused | Relayed | DeadlineExceeded) -> None:
        """Record that a server does not work or must not be used. When it returns, it may serve another model."""
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
        """Probe ejected servers whose time is over, and those that let callers wait, so that no caller has to."""
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
        """Send a small request to a server and record the outcome. Raises DeadlineExceeded."""
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
        faults = [str(member.fault) for member in self._members if member.fault is not None]
        return "; ".join(faults) or f"no {self._role.name} can be called now"

    def _elect(self) -> None:
        """Choose the model of most working servers; in a tie, keep the present one.

        While no server has shown that it works, the models that they name count.
        """
        voters = [member for member in self._members if member.proven] or self._members
        votes = Counter(member.model for member in voters if member.model is not None)
        before = self.model
        self.model = max(votes, key=lambda name: (votes[name], name == before), default=before)
        if before in (None, self.model):
            return
        log.warning("the %ss now serve another model: %s, no longer %s", self._role.name, self.model, before)
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
