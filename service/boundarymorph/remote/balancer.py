"""Calling one of several equivalent servers: which one, what happens if it fails, and which model they serve."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from boundarymorph.errors import BoundaryMorphError, DeadlineExceeded, InvalidConfiguration, Overloaded
from boundarymorph.inference.concurrency import Deadline, together
from boundarymorph.remote.peer import Busy, Flawed, Mismatch, OtherModel, Peer, Refused, Relayed, Unavailable
from boundarymorph.telemetry import metrics

BACKOFF, MOST_BACKOFF = 1.0, 30.0  # seconds after the first failure, doubled after each further one
PAUSE, LONGEST_PAUSE = 0.25, 10.0  # seconds, if a busy server does not say how long, and the most that it gets
ATTEMPTS = 3  # per call, plus one for each server; few, so that retries add little to an overload
Answer = TypeVar("Answer")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Role:
    """What the servers are to us. unavailable, failed: errors raised if none works now, or another try will not help;
    name, done, results: in messages, what they are, do to texts, and return."""

    name: str
    unavailable: type[BoundaryMorphError]
    failed: type[BoundaryMorphError]
    done: str = "answered"
    results: str = "answers"

    def error(self, outcome: Unavailable | Refused, note: str = "") -> BoundaryMorphError:
        """Return the error that callers get for this outcome. note: added to the message."""
        kind = self.failed if isinstance(outcome, Refused) else self.unavailable
        return (getattr(outcome, "kind", None) or kind)(f"{outcome}{note}")


P = TypeVar("P", bound=Peer)


@dataclass(slots=True, eq=False)
class Replica(Generic[P]):
    """A server.

    fault: what its last request showed, None if it answers; since: when; free_at: when it may be called again;
    failures: in a row; requests, texts: under way; on_trial: whether one of them will show whether it works again;
    begun: requests so far; newest: the first whose outcome counts; model: that it last named; most_texts: at a time,
    None for any.
    """

    peer: P
    fault: Exception | None = None
    since: float = 0.0
    free_at: float = 0.0
    failures: int = 0
    requests: int = 0
    texts: int = 0
    on_trial: bool = False
    begun: int = 0
    newest: int = 1
    model: str | None = None
    most_texts: int | None = None

    @property
    def works(self) -> bool:
        return self.fault is None or isinstance(self.fault, Busy)

    def is_free(self, texts: int, requests: int, now: float) -> bool:
        if self.fault is not None:
            return now >= self.free_at and not self.on_trial
        fits = self.most_texts is None or self.texts + texts <= self.most_texts
        return not self.requests or (self.requests < requests and fits)

    def back_off(self, fault: Exception, now: float) -> None:
        """Note a fault. Requests that are under way now will show nothing."""
        self.fault, self.since, self.newest = fault, now, self.begun + 1
        if isinstance(fault, Busy):
            pause = PAUSE if fault.pause is None else min(fault.pause, LONGEST_PAUSE)
            self.free_at = max(self.free_at, now + pause)
        else:
            self.free_at = now + min(BACKOFF * 2 ** min(self.failures, 10), MOST_BACKOFF)
            self.failures += 1


class Balancer(Generic[P]):
    """Sends each call to the server with the fewest requests under way, and to another one if that fails. A server that
    has failed, or has another model than the one in use, is left alone for 1, 2, 4 ... 30 seconds, then tried with one
    call. The model changes only once no server that works has it any more."""

    def __init__(
        self,
        peers: Sequence[P],
        role: Role,
        *,
        requests: int,
        clock: Callable[[], float] = time.monotonic,
        seed: int = 0,
    ) -> None:
        """requests: most at a time to one server; seed: for the choice among equals. Raises InvalidConfiguration
        without peers, or for one that is given twice."""
        if not peers:
            raise InvalidConfiguration(f"a remote {role.name} needs the URL of at least one server")
        if len({peer.base for peer in peers}) < len(peers):
            raise InvalidConfiguration(f"a remote {role.name} has the same server twice")
        self.model: str | None = None  # the one in use; None until a server has named it
        self.replicas = {peer: Replica(peer) for peer in peers}
        self._role, self._requests, self._clock = role, requests, clock
        self._random = random.Random(seed)  # noqa: S311 - not used for secrets
        self._ended = asyncio.Event()  # of any request; each end has a new one
        self._closed = False
        for peer in peers:
            metrics.replica_up.labels(role.name, peer.base).set(1)

    @property
    def any_works(self) -> bool:
        return any(replica.works for replica in self.replicas.values())

    def check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"the {self._role.name} is closed")

    async def close(self) -> None:
        self._closed = True
        for peer in self.replicas:
            await peer.close()

    async def call(
        self,
        ask: Callable[[P], Awaitable[Answer]],
        *,
        texts: int = 1,
        deadline: Deadline | None = None,
        repeatable: bool = True,
    ) -> Answer:
        """Call a server, and once more another one if that fails. A busy server may be called again after its pause. A
        server is blamed for an unusable answer only if another one answers.

        ask: raises the outcomes of `Peer`, or DeadlineExceeded; texts: the amount of work; deadline: of waiting for a
        free server, None not to wait; repeatable: whether a request that may have been carried out can be repeated,
        unless it costs money. Raises DeadlineExceeded, Overloaded, the error of a `Relayed`, or an error of the role.
        """
        self.check_open()
        tried: set[Replica[P]] = set()
        last: tuple[Replica[P], Unavailable | Refused] | None = None
        for _ in range(ATTEMPTS + len(self.replicas)):
            if (replica := await self._free(texts, tried, deadline, again=last is not None)) is None:
                break
            try:
                answer = await self._attempt(replica, texts, ask, repeatable=repeatable)
            except Relayed as relayed:
                raise relayed.error from relayed
            except Busy:
                if deadline is None:
                    tried.add(replica)
            except (Unavailable, Mismatch, Flawed) as failure:
                tried.add(replica)
                if failure.carried_out and replica.peer.paid:
                    raise self._role.error(failure, "; not retried, because it may have been carried out") from failure
                if failure.carried_out and not repeatable:
                    raise self._role.error(failure) from failure
                last, repeated = (replica, failure), last is not None
                if repeated:
                    break
            except Refused as refusal:
                raise self._role.error(refusal) from refusal
            else:
                if last is not None and isinstance(last[1], Flawed):
                    self._change(*last)
                return answer
        if last is not None and (isinstance(last[1], Flawed) or not self._faults):
            raise self._role.error(last[1])
        raise self.none_left()

    async def ask_all(self, ask: Callable[[P], Awaitable[object]]) -> None:
        """Call all servers concurrently, and record the fault of each. ask: as for `call`."""

        async def one(replica: Replica[P]) -> None:
            with suppress(Busy, Unavailable, Refused, DeadlineExceeded):
                await self._attempt(replica, 0, ask)

        await together([one(replica) for replica in self.replicas.values()])

    def serves(self, peer: P, model: str, *, texts: int | None = None) -> None:
        """Record which model a server serves. texts: most that it takes at a time. Raises OtherModel if it is not the
        one in use, and that is still served by another server that works."""
        replica = self.replicas[peer]
        replica.model, replica.most_texts = model, texts
        if model == self.model:
            return
        for other in self.replicas.values():
            if self.model is not None and other is not replica and other.works and other.model == self.model:
                raise OtherModel(f"{peer.base} serves {model}, but {other.peer.base} serves {self.model}")
        if self.model is not None:
            log.warning("the %ss now serve another model: %s, no longer %s", self._role.name, model, self.model)
        self.model = model
        for other in self.replicas.values():
            if isinstance(other.fault, OtherModel):
                other.free_at = 0.0  # it may have this one

    @property
    def _faults(self) -> list[Exception]:
        return [replica.fault for replica in self.replicas.values() if replica.fault is not None]

    def none_left(self) -> BoundaryMorphError:
        """Return the error that says why no server is left to call."""
        faults = self._faults
        reasons = "; ".join(map(str, faults)) or f"no {self._role.name} can be called now"
        if busy := [replica for replica in self.replicas.values() if isinstance(replica.fault, Busy)]:
            seconds = min(replica.free_at for replica in busy) - self._clock()
            public = faults[0].public if len(faults) == 1 and isinstance(faults[0], Busy) else None
            public = public or f"the {self._role.name} is overloaded; try again later"
            return Overloaded(reasons, retry_after=max(seconds, 0.0), public=public)
        refused = bool(faults) and all(isinstance(fault, Refused) for fault in faults)
        error = (self._role.failed if refused else self._role.unavailable)(reasons)
        error.logged = bool(faults)  # when each of them was noted
        return error

    async def _free(
        self, texts: int, tried: Collection[Replica[P]], deadline: Deadline | None, *, again: bool
    ) -> Replica[P] | None:
        """Wait until a server can be called, now or after a request or a pause ends; None if no server can be. again:
        whether one failed, so that the call should be no trial. Without a deadline, a single server is called
        always."""
        while True:
            remaining = math.inf if deadline is None else deadline.remaining()
            now = self._clock()
            left = [replica for replica in self.replicas.values() if replica not in tried]
            if free := [replica for replica in left if replica.is_free(texts, self._requests, now)]:
                return min(free, key=lambda one: (one.works is not again, one.requests, self._random.random()))
            if deadline is None:
                return left[0] if left and len(self.replicas) == 1 else None
            pauses = [replica.free_at - now for replica in left if replica.works]
            if not pauses:
                return None
            if min(pauses) >= remaining:
                raise self.none_left()
            with suppress(TimeoutError):
                async with asyncio.timeout(min([remaining, *(pause for pause in pauses if pause > 0)])):
                    await self._ended.wait()

    async def _attempt(
        self, replica: Replica[P], texts: int, ask: Callable[[P], Awaitable[Answer]], *, repeatable: bool = True
    ) -> Answer:
        """Send a request, and record what its outcome shows: an answer outdates the requests that began before, a fault
        all that are under way. A request that may not be repeated may take any time, so it is no trial. A trial that
        ends without an outcome has failed. Raises what `ask` does."""
        replica.begun += 1
        number, trial = replica.begun, replica.fault is not None and repeatable
        replica.on_trial |= trial
        replica.requests, replica.texts = replica.requests + 1, replica.texts + texts
        try:
            answer = await ask(replica.peer)
        except (Unavailable, Mismatch) as fault:
            if number >= replica.newest:
                self._change(replica, fault)
            raise
        except Busy as pause:
            self._change(replica, pause)
            raise
        except Relayed:
            self._answered(replica, number)
            raise
        except (DeadlineExceeded, asyncio.CancelledError):  # the caller's deadline passed, or it left
            if trial and not replica.works:
                self._change(replica, replica.fault)
            raise
        else:
            self._answered(replica, number)
            return answer
        finally:
            replica.on_trial &= not trial
            replica.requests, replica.texts = replica.requests - 1, replica.texts - texts
            ended, self._ended = self._ended, asyncio.Event()
            ended.set()

    def _answered(self, replica: Replica[P], number: int) -> None:
        if number >= replica.newest:
            replica.newest, replica.failures, replica.free_at = number, 0, 0.0
            self._change(replica, None)

    def _change(self, replica: Replica[P], fault: Exception | None) -> None:
        """Record a fault, or its end; report and log when a server stops working or works again."""
        worked = replica.works
        if fault is None:
            replica.fault = None
        else:
            replica.back_off(fault, self._clock())
        if not replica.works:
            replica.peer.forget()
            if not isinstance(fault, OtherModel):
                replica.model = None  # it may return with another one
        if not self.any_works:
            for away in self.replicas.values():  # one that has another model is known to answer
                wait = 0.0 if isinstance(away.fault, OtherModel) else BACKOFF
                away.free_at = min(away.free_at, away.since + wait)
        if replica.works != worked:
            metrics.replica_up.labels(self._role.name, replica.peer.base).set(replica.works)
            if replica.works:
                log.info("a %s works again: %s", self._role.name, replica.peer.base)
            else:
                log.warning("a %s does not work: %s", self._role.name, fault)
