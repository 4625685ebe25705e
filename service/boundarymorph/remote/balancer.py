"""Call one of several equivalent servers, try another if it fails, and track their model."""

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
from boundarymorph.inference.concurrency import Deadline, gather
from boundarymorph.remote.peer import (
    Mismatch,
    OtherModel,
    Peer,
    RelayedError,
    RequestRefused,
    ServerBusy,
    ServerUnavailable,
    UnusableAnswer,
)
from boundarymorph.telemetry import metrics

BACKOFF, MOST_BACKOFF = 1.0, 30.0  # seconds after the first failure, doubled after each further one
PAUSE, LONGEST_PAUSE = 0.25, 10.0  # seconds of pause if a busy server names none, and the longest pause
ATTEMPTS = 3  # requests per call, plus one for each server; few, so that retries add little to an overload
Answer = TypeVar("Answer")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Role:
    """What the servers do for us, in errors and messages.

    Attributes:
        unavailable: The error if no server works now.
        failed: The error if another try will not help.
        done: The verb for a handled text.
        results: The noun for the results.
    """

    name: str
    unavailable: type[BoundaryMorphError]
    failed: type[BoundaryMorphError]
    done: str = "answered"
    results: str = "answers"

    def error(self, outcome: ServerUnavailable | RequestRefused, note: str = "") -> BoundaryMorphError:
        """Return the error that callers get for this outcome, with `note` in its message."""
        kind = self.failed if isinstance(outcome, RequestRefused) else self.unavailable
        return (getattr(outcome, "kind", None) or kind)(f"{outcome}{note}")


P = TypeVar("P", bound=Peer)


@dataclass(slots=True, eq=False)
class Replica(Generic[P]):
    """A server.

    Attributes:
        fault: The fault that its last request showed; None if it answers.
        since: The time of that fault.
        free_at: The time from which it may be called again.
        failures: Failures in a row.
        on_trial: Whether a request underway will show whether it works again.
        newest: Number of the first request whose outcome counts.
        model: The model that it last named.
        most_texts: Most texts at a time; None for any number.
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
        return self.fault is None or isinstance(self.fault, ServerBusy)

    def is_free(self, texts: int, requests: int, now: float) -> bool:
        if self.fault is not None:
            return now >= self.free_at and not self.on_trial
        fits = self.most_texts is None or self.texts + texts <= self.most_texts
        return not self.requests or (self.requests < requests and fits)

    def back_off(self, fault: Exception, now: float) -> None:
        """Note a fault. The outcomes of requests that are underway no longer count."""
        self.fault, self.since, self.newest = fault, now, self.begun + 1
        if isinstance(fault, ServerBusy):
            pause = PAUSE if fault.pause is None else min(fault.pause, LONGEST_PAUSE)
            self.free_at = max(self.free_at, now + pause)
        else:
            self.free_at = now + min(BACKOFF * 2 ** min(self.failures, 10), MOST_BACKOFF)
            self.failures += 1


class Balancer(Generic[P]):
    """Sends each call to the server with the fewest requests, and to another if that fails.

    A server that has failed, or has another model than the one in use, is not called for 1, 2, 4, and up to 30
    seconds, then tried with one call. The model changes only when no working server has it any more.
    """

    def __init__(
        self,
        peers: Sequence[P],
        role: Role,
        *,
        requests: int,
        clock: Callable[[], float] = time.monotonic,
        seed: int = 0,
    ) -> None:
        """Prepare to call the servers.

        Args:
            peers: The servers.
            role: What they do, for errors and messages.
            requests: Most requests at a time to one server.
            clock: Returns the time in seconds.
            seed: Decides among equals.

        Raises:
            InvalidConfiguration: If there are no peers, or a peer occurs twice.
        """
        if not peers:
            raise InvalidConfiguration(f"a remote {role.name} needs the URL of at least one server")
        if len({peer.base for peer in peers}) < len(peers):
            raise InvalidConfiguration(f"a remote {role.name} has the same server twice")
        self.model: str | None = None  # the model in use; None until a server has named it
        self.replicas = {peer: Replica(peer) for peer in peers}
        self._role, self._requests, self._clock = role, requests, clock
        self._random = random.Random(seed)  # noqa: S311 - not used for secrets
        self._ended = asyncio.Event()  # set at the end of any request, and replaced
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
        """Call a server, and if that fails another one, once.

        A busy server may be called again after its pause. An unusable answer counts against a server only if another
        one answers.

        Args:
            ask: Calls a server; it raises the outcomes of `Peer`, or DeadlineExceeded.
            texts: The amount of work.
            deadline: The deadline for a server to become free; None does not wait.
            repeatable: Whether a request that may have been carried out can be repeated, unless it costs money.

        Raises:
            DeadlineExceeded: If no server becomes free in time.
            Overloaded: If all servers are busy. Errors of a `RelayedError` and of the role are raised as well.
        """
        self.check_open()
        tried: set[Replica[P]] = set()
        last: tuple[Replica[P], ServerUnavailable | RequestRefused] | None = None
        for _ in range(ATTEMPTS + len(self.replicas)):
            if (replica := await self._free(texts, tried, deadline, again=last is not None)) is None:
                break
            try:
                answer = await self._attempt(replica, texts, ask, repeatable=repeatable)
            except RelayedError as relayed:
                raise relayed.error from relayed
            except ServerBusy:
                if deadline is None:
                    tried.add(replica)
            except (ServerUnavailable, Mismatch, UnusableAnswer) as failure:
                tried.add(replica)
                if failure.carried_out and replica.peer.paid:
                    raise self._role.error(failure, "; not retried, because it may have been carried out") from failure
                if failure.carried_out and not repeatable:
                    raise self._role.error(failure) from failure
                last, repeated = (replica, failure), last is not None
                if repeated:
                    break
            except RequestRefused as refusal:
                raise self._role.error(refusal) from refusal
            else:
                if last is not None and isinstance(last[1], UnusableAnswer):
                    self._change(*last)
                return answer
        if last is not None and (isinstance(last[1], UnusableAnswer) or not self._faults):
            raise self._role.error(last[1])
        raise self.no_server_error()

    async def ask_all(self, ask: Callable[[P], Awaitable[object]]) -> None:
        """Call all servers at once, as `call` does, and record the fault of each."""

        async def one(replica: Replica[P]) -> None:
            with suppress(ServerBusy, ServerUnavailable, RequestRefused, DeadlineExceeded):
                await self._attempt(replica, 0, ask)

        await gather([one(replica) for replica in self.replicas.values()])

    def serves(self, peer: P, model: str, *, texts: int | None = None) -> None:
        """Record which model a server serves, and the most texts that it takes at a time.

        Raises:
            OtherModel: If another model is in use that another working server still serves.
        """
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
                other.free_at = 0.0  # the server may have this model

    @property
    def _faults(self) -> list[Exception]:
        return [replica.fault for replica in self.replicas.values() if replica.fault is not None]

    def no_server_error(self) -> BoundaryMorphError:
        """Return the error that says why no server is left to call."""
        faults = self._faults
        reasons = "; ".join(map(str, faults)) or f"no {self._role.name} can be called now"
        if busy := [replica for replica in self.replicas.values() if isinstance(replica.fault, ServerBusy)]:
            seconds = min(replica.free_at for replica in busy) - self._clock()
            public = faults[0].public if len(faults) == 1 and isinstance(faults[0], ServerBusy) else None
            public = public or f"the {self._role.name} is overloaded; try again later"
            return Overloaded(reasons, retry_after=max(seconds, 0.0), public=public)
        refused = bool(faults) and all(isinstance(fault, RequestRefused) for fault in faults)
        error = (self._role.failed if refused else self._role.unavailable)(reasons)
        error.logged = bool(faults)  # each fault was logged when it was noted
        return error

    async def _free(
        self, texts: int, tried: Collection[Replica[P]], deadline: Deadline | None, *, again: bool
    ) -> Replica[P] | None:
        """Wait until a server can be called; return None if none can be.

        A server can become free when a request or a pause ends. After a failure (`again`), the call should not be a
        trial. Without a deadline, a single server is called always.
        """
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
                raise self.no_server_error()
            with suppress(TimeoutError):
                async with asyncio.timeout(min([remaining, *(pause for pause in pauses if pause > 0)])):
                    await self._ended.wait()

    async def _attempt(
        self, replica: Replica[P], texts: int, ask: Callable[[P], Awaitable[Answer]], *, repeatable: bool = True
    ) -> Answer:
        """Send a request, and record its outcome. Raises what `ask` raises.

        An answer makes the outcomes of earlier requests irrelevant, and a fault those of all that are underway. A
        request that may not be repeated may take any time, so it is never a trial. A trial that ends without an outcome
        has failed.
        """
        replica.begun += 1
        number, trial = replica.begun, replica.fault is not None and repeatable
        replica.on_trial |= trial
        replica.requests, replica.texts = replica.requests + 1, replica.texts + texts
        try:
            answer = await ask(replica.peer)
        except (ServerUnavailable, Mismatch) as fault:
            if number >= replica.newest:
                self._change(replica, fault)
            raise
        except ServerBusy as pause:
            self._change(replica, pause)
            raise
        except RelayedError:
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
        """Record a fault or its end; report and log when a server stops or starts working."""
        worked = replica.works
        if fault is None:
            replica.fault = None
        else:
            replica.back_off(fault, self._clock())
        if not replica.works:
            replica.peer.forget()
            if not isinstance(fault, OtherModel):
                replica.model = None  # it may return with another model
        if not self.any_works:
            for away in self.replicas.values():  # a server with another model does answer
                wait = 0.0 if isinstance(away.fault, OtherModel) else BACKOFF
                away.free_at = min(away.free_at, away.since + wait)
        if replica.works != worked:
            metrics.replica_up.labels(self._role.name, replica.peer.base).set(replica.works)
            if replica.works:
                log.info("a %s works again: %s", self._role.name, replica.peer.base)
            else:
                log.warning("a %s does not work: %s", self._role.name, fault)
