"""The servers behind a remote model: what each has told of itself, what is wrong with it, and whose turn it is."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from boundarymorph.errors import (
    BoundaryMorphError,
    DeadlineExceeded,
    InvalidConfiguration,
    Overloaded,
)
from boundarymorph.remote.deadline import Budget, Deadline
from boundarymorph.remote.identity import identified
from boundarymorph.remote.peer import Busy, Exchange, KeyRefused, Late, Refused, Unavailable
from boundarymorph.remote.replicas import Replicas, Ticket
from boundarymorph.remote.role import Role
from boundarymorph.remote.together import together
from boundarymorph.remote.urls import Endpoint
from boundarymorph.remote.wire import Description, Unusable

DESCRIPTION_TIMEOUT = 2.0  # seconds; no model runs for it
PAUSES = 3  # that are waited out before the caller hears of the overload
OnChange = Callable[[str, bool], None]
TryOut = Callable[[int, Deadline], Awaitable[bool]]
log = logging.getLogger(__name__)


def unheard(endpoint: str, works: bool) -> None:
    """Tells nobody that a server has changed."""


class Misfit(Refused):
    """The server is not the one that was expected: another model, or another kind of server."""


class OtherModel(Misfit):
    """The server serves another model than most."""


class Fleet:
    """Servers that are to give the same results, and the connections to them.

    Each is asked to describe itself before it is used, and again after each failure. The model that most of those serve
    that work is the one in use, the present one where there is a tie; servers of another are left out. So a fleet whose
    servers are updated one after the other follows them.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        role: Role,
        *,
        api_key: str | None,
        connections: int,
        clock: Callable[[], float],
        seed: int,
        try_out: TryOut,
        patience: float,
        on_change: OnChange = unheard,
    ) -> None:
        """try_out: asks a server for a trifle before a deadline; whether that could show that it works; patience: the
        seconds that a server is given for it; on_change: called with the base URL of each server and whether it works,
        which all do to begin with.
        """
        if not endpoints:
            raise InvalidConfiguration(f"a remote {role.name} needs the URL of at least one server")
        if len({endpoint.base for endpoint in endpoints}) < len(endpoints):
            raise InvalidConfiguration(f"a remote {role.name} is given the same server twice")
        self.endpoints = tuple(endpoints)
        self._role = role
        self._clock = clock
        self._exchange = Exchange(api_key=api_key, connections=connections)
        self._replicas = Replicas(
            len(endpoints), requests=max(1, connections // len(endpoints)), clock=clock, seed=seed
        )
        self._descriptions: list[Description | None] = [None] * len(endpoints)
        self._connections = [0] * len(endpoints)  # that there had been when it described itself
        self._faults: list[BoundaryMorphError | None] = [None] * len(endpoints)
        self._try_out, self._patience = try_out, patience
        self._on_change = on_change
        self._describing = [asyncio.Lock() for _ in endpoints]
        self._checks: dict[int, asyncio.Task[None]] = {}
        self._asked = False
        self._ended = asyncio.Event()
        self._model: str | None = None
        self._served: list[str | None] = [None] * len(endpoints)  # the models of those that have not failed since
        self._proven: set[int] = set()  # those of them that have shown that they work
        self._misfits: set[int] = set()  # those that are left out for their model
        for index, endpoint in enumerate(endpoints):
            if endpoint.dialect.description_path is None:
                self._describe_by_configuration(index, endpoint)
            on_change(endpoint.base, True)

    def _describe_by_configuration(self, index: int, endpoint: Endpoint) -> None:
        dialect, model = endpoint.dialect, endpoint.model
        if model is None:
            raise InvalidConfiguration(f"{dialect.name} needs the name of a model: {dialect.name}://...?model=NAME")
        description = Description(f"{dialect.name}:{model}", model, dialect.most_texts)
        self._keep(index, identified(description, endpoint, self.endpoints[0].base))
        if self._served[index] != self._model:
            raise InvalidConfiguration(str(self._other_model(index)))

    @property
    def identity(self) -> str | None:
        """The model in use, as its servers name it; None before one has answered."""
        return self._model

    @property
    def name(self) -> str:
        """The model as its servers name it; before one has answered, the kind of server and the model or the host."""
        if self._model is not None:
            return self._model
        first = self.endpoints[0]
        return f"{first.dialect.name}:{first.model or urlsplit(first.base).netloc}"

    @property
    def any_works(self) -> bool:
        return self._replicas.any_works()

    @property
    def most_texts(self) -> int:
        """What every server takes that has described itself, or else every kind."""
        told = [description.texts for description in self._descriptions if description is not None]
        return min(told or [endpoint.dialect.most_texts for endpoint in self.endpoints])

    @property
    def most_bytes(self) -> int | None:
        """What every kind of server takes."""
        limits = (endpoint.dialect.most_bytes for endpoint in self.endpoints)
        return min((limit for limit in limits if limit is not None), default=None)

    def check_open(self) -> None:
        """Raises RuntimeError after `close`."""
        if self._exchange.closed:
            raise RuntimeError(f"the {self._role.name} is closed")

    async def close(self) -> None:
        checks = list(self._checks.values())
        for check in checks:
            check.cancel()
        await self._exchange.close()
        await asyncio.gather(*checks, return_exceptions=True)

    async def connect(self, deadline: Deadline) -> None:
        """Have all describe themselves, side by side.

        Raises DeadlineExceeded, Overloaded, or what the role does, when none of them did.
        """

        async def one(index: int) -> None:
            try:
                with self.under_way(index, 0) as ticket, self._noting(index):
                    description = await self.describe(index, deadline)
                    self._prove(index)  # as far as anybody can know to begin with
                    if description.name != self._model:
                        raise self._other_model(index)
                    self.succeeded(ticket)
            except KeyRefused as fault:
                self._note(index, self._told(fault))
            except DeadlineExceeded:
                pass  # which says nothing about the server

        await together([one(index) for index in range(len(self.endpoints))])
        self._asked = True
        if not any(self._descriptions):
            deadline.remaining()
            raise self.nobody()

    async def connect_once(self, deadline: Deadline) -> None:
        """As `connect`, unless it has been done; what is wrong then shows in use."""
        if not self._asked:
            try:
                await self.connect(deadline)
            except BoundaryMorphError:
                log.debug("no %s has described itself", self._role.name, exc_info=True)

    async def describe(self, index: int, deadline: Deadline, *, confirm: bool = False) -> Description:
        """What a server says of itself, asked where it is not known. Raises as `send` does, and Misfit.

        confirm: ask too where a connection was opened since it was asked, behind which there may be another model.
        """
        async with self._describing[index]:
            known, endpoint = self._descriptions[index], self.endpoints[index]
            path = endpoint.dialect.description_path
            outdated = confirm and self._connections[index] != self._exchange.opened(endpoint)
            if path is None or (known is not None and not outdated):
                assert known is not None, "what does not describe itself is described by its configuration"
                return known
            kind = f"is this a server of the kind '{endpoint.dialect.name}'?"
            try:
                body = await self.send(index, path, None, deadline.within(DESCRIPTION_TIMEOUT))
                description = endpoint.dialect.describe(body, endpoint.model)
                description = identified(description, endpoint, self.endpoints[0].base)
            except KeyRefused:
                raise
            except Refused as failure:
                raise Misfit(f"{failure}; {kind}") from failure
            except Unusable as flaw:
                raise Misfit(f"{endpoint.base}{path} does not fit: {flaw}; {kind}") from flaw
            self._connections[index] = self._exchange.opened(endpoint)
            self._keep(index, description)
            return description

    async def describe_fitting(self, index: int, deadline: Deadline) -> Description:
        """As `describe`. Raises OtherModel too."""
        description = await self.describe(index, deadline)
        if description.name != self._model:
            raise self._other_model(index)
        return description

    async def send(self, index: int, path: str, body: bytes | None, budget: Budget) -> bytes:
        """One request. Raises DeadlineExceeded, Unavailable, Busy, KeyRefused or Refused."""
        endpoint = self.endpoints[index]
        try:
            return await self._exchange.send(endpoint, path, body, budget.seconds)
        except Late as late:
            if not budget.last:
                raise Busy(str(late), None) from late
            raise self._too_late(f"{endpoint.base} could not answer before the time was over") from late
        except TimeoutError as timeout:
            if not budget.last:
                raise Unavailable(f"{endpoint.base} did not answer within {budget.seconds:.3g} s") from timeout
            raise self._too_late(f"{endpoint.base} had not answered when the time was over") from timeout

    async def turn(self, texts: int, tried: Collection[int], deadline: Deadline) -> int:
        """A server that may be asked: now, or when a request has ended or a pause is over.

        Raises DeadlineExceeded, Overloaded when the pauses take too long, or what the role does.
        """
        pauses, pause_over = 0, self._clock()
        while True:
            remaining = deadline.remaining()
            choice = self._replicas.pick(texts, tried)
            if isinstance(choice, int):
                return choice
            if not choice.busy and choice.hold is None:
                raise self.nobody()
            if not choice.busy and choice.hold is not None and self._clock() >= pause_over:
                pauses, pause_over = pauses + 1, self._clock() + choice.hold
                if choice.hold >= remaining or pauses > PAUSES:
                    raise self._overloaded(self._reasons(), choice.hold)
            await self._one_ends(remaining if choice.hold is None else min(remaining, choice.hold))

    @contextmanager
    def under_way(self, index: int, texts: int) -> Iterator[Ticket]:
        """While so many texts are in work there."""
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
                self._check_doubtful()

    def succeeded(self, ticket: Ticket) -> None:
        """The request has been answered."""
        self._prove(ticket.index)
        if self._replicas.succeeded(ticket):
            self._note(ticket.index, None)
        self._check_doubtful()

    def pause(self, index: int, busy: Busy) -> None:
        """It has too much to do."""
        seconds = self._replicas.paused(index, busy.pause)
        self._note(index, self._overloaded(str(busy), seconds))

    def eject(self, index: int, cause: Unavailable | Refused | DeadlineExceeded) -> None:
        """It does not work, or is not to be used."""
        self._note(index, self._told(cause))
        self._replicas.failed(index)
        self.forget(index)
        if isinstance(cause, OtherModel):
            self._misfits.add(index)
        elif self.endpoints[index].dialect.description_path is not None:
            self._served[index] = None
            self._proven.discard(index)
            self._misfits.discard(index)
            self._elect()

    def forget(self, index: int) -> None:
        """Have it describe itself anew: what comes back after a failure may be another model."""
        if self.endpoints[index].dialect.description_path is not None:
            self._descriptions[index] = None

    def _check_doubtful(self) -> None:
        """Look whether those that failed are back, and whether those work that let callers wait: no caller should have
        to find out."""
        for index in self._replicas.to_check():
            if index not in self._checks and not self._exchange.closed:
                self._checks[index] = asyncio.ensure_future(self._check(index))

    async def _check(self, index: int) -> None:
        deadline = Deadline(self._clock() + 2 * DESCRIPTION_TIMEOUT + self._patience, self._clock)
        try:
            with self.under_way(index, 0) as ticket, self._noting(index):
                works = await self._try_out(index, deadline)
                if works:
                    self._prove(index)
                if self._served[index] != self._model:
                    raise self._other_model(index)
                if works:
                    self.succeeded(ticket)
                else:
                    self._replicas.checked(index)
        except (Refused, DeadlineExceeded) as fault:
            self.eject(index, fault)
        finally:
            del self._checks[index]

    def _note(self, index: int, fault: BoundaryMorphError | None) -> None:
        """Note what is wrong with a server; tell and log where it stops working or works again."""
        worked, works = _works(self._faults[index]), _works(fault)
        self._faults[index] = fault
        if works == worked:
            return
        base = self.endpoints[index].base
        self._on_change(base, works)
        if works:
            log.info("a %s works again: %s", self._role.name, base)
        else:
            log.warning("a %s is left alone for now: %s", self._role.name, fault)

    @contextmanager
    def _noting(self, index: int) -> Iterator[None]:
        """Note what is wrong with a server instead of raising it."""
        try:
            yield
        except Busy as busy:
            self.pause(index, busy)
        except Unavailable as failure:
            self.eject(index, failure)
        except Misfit as misfit:
            self.eject(index, misfit)

    def nobody(self) -> BoundaryMorphError:
        """Why there is none left to ask."""
        faults = [fault for fault in self._faults if fault is not None]
        pauses = [fault.retry_after for fault in faults if isinstance(fault, Overloaded)]
        if pauses:
            return self._overloaded(self._reasons(), min(pauses))
        if faults and all(isinstance(fault, self._role.failed) for fault in faults):
            return self._role.failed(self._reasons())
        return self._role.unavailable(self._reasons())

    def _told(self, cause: Unavailable | Refused | DeadlineExceeded) -> BoundaryMorphError:
        """What is wrong, as the callers hear it."""
        if isinstance(cause, DeadlineExceeded):
            return cause
        return (self._role.unavailable if isinstance(cause, Unavailable) else self._role.failed)(str(cause))

    def _overloaded(self, message: str, retry_after: float) -> Overloaded:
        public = f"the {self._role.name} has too much to do; try again later"
        return Overloaded(message, retry_after=retry_after, public=public)

    def _too_late(self, message: str) -> DeadlineExceeded:
        return DeadlineExceeded(message, public=f"the {self._role.name} had not answered when the time was over")

    def _keep(self, index: int, description: Description) -> None:
        """Keep what a server says of itself."""
        if self._served[index] != description.name:
            self._proven.discard(index)
        self._served[index] = description.name
        self._descriptions[index] = description
        self._replicas.limit(index, description.concurrent_texts)
        self._elect()

    def _prove(self, index: int) -> None:
        if index not in self._proven and self._served[index] is not None:
            self._proven.add(index)
            self._elect()

    def _elect(self) -> None:
        """Use the model of most servers that work, and rather the present one than another of as many.

        Where none has shown that it works, what they say counts.
        """
        voters = self._proven or range(len(self.endpoints))
        votes = Counter(name for index in voters if (name := self._served[index]) is not None)
        chosen = max(votes, key=lambda name: (votes[name], name == self._model), default=self._model)
        before, self._model = self._model, chosen
        if before in (None, chosen):
            return
        log.warning("the %ss serve another model from now on: %s, no longer %s", self._role.name, chosen, before)
        for index, served in enumerate(self._served):
            if served == chosen and index in self._misfits:
                self._misfits.discard(index)
                self._replicas.readmit(index)
                self._note(index, None)
            elif served not in (None, chosen) and index not in self._misfits:
                self.eject(index, self._other_model(index))

    def _other_model(self, index: int) -> OtherModel:
        base, served = self.endpoints[index].base, self._served[index]
        used = self.endpoints[self._served.index(self._model)].base
        return OtherModel(f"{base} serves {served}, but {used} serves {self._model}")

    def _reasons(self) -> str:
        return "; ".join(str(fault) for fault in self._faults if fault) or f"no {self._role.name} may be asked now"

    async def _one_ends(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            pass


def _works(fault: BoundaryMorphError | None) -> bool:
    """One that has too much to do is there."""
    return fault is None or isinstance(fault, Overloaded)
