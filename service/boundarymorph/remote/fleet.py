"""The servers behind a remote model: what each has told of itself, what is wrong with it, and whose turn it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from boundarymorph.errors import (
    BoundaryMorphError,
    DeadlineExceeded,
    InvalidConfiguration,
    Overloaded,
)
from boundarymorph.remote.deadline import Budget, Deadline
from boundarymorph.remote.exchange import Busy, Exchange, KeyRefused, Late, Refused, Unavailable
from boundarymorph.remote.replicas import Replicas, Ticket
from boundarymorph.remote.role import Role
from boundarymorph.remote.together import together
from boundarymorph.remote.urls import Endpoint
from boundarymorph.remote.wire import Description, Unusable

DESCRIPTION_TIMEOUT = 2.0  # seconds; no model runs for it
PAUSES = 3  # that are waited out before the caller hears of the overload
OnChange = Callable[[str, bool], None]
log = logging.getLogger(__name__)


def unheard(endpoint: str, works: bool) -> None:
    """Tells nobody that a server has changed."""


class Misfit(Refused):
    """The server is not the one that was expected: another model, or another kind of server."""


class Fleet:
    """Servers that are to give the same results, and the connections to them.

    Each is asked to describe itself before it is used, and again after each failure. The first that does decides which
    model all must serve.
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
        on_change: OnChange = unheard,
    ) -> None:
        """on_change: called with the base URL of each server and whether it works, which all do to begin with."""
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
        self._faults: list[BoundaryMorphError | None] = [None] * len(endpoints)
        self._on_change = on_change
        self._describing = [asyncio.Lock() for _ in endpoints]
        self._checks: dict[int, asyncio.Task[None]] = {}
        self._asked = False
        self._ended = asyncio.Event()
        self._model: tuple[str, str] | None = None  # its name, and the server that told it
        for index, endpoint in enumerate(endpoints):
            if endpoint.dialect.description_path is None:
                self._describe_by_configuration(index, endpoint)
            on_change(endpoint.base, True)

    def _describe_by_configuration(self, index: int, endpoint: Endpoint) -> None:
        dialect, model = endpoint.dialect, endpoint.model
        if model is None:
            raise InvalidConfiguration(f"{dialect.name} needs the name of a model: {dialect.name}://...?model=NAME")
        try:
            self._accept(index, Description(f"{dialect.name}:{model}", model, dialect.most_texts))
        except Misfit as misfit:
            raise InvalidConfiguration(str(misfit)) from misfit

    @property
    def identity(self) -> str | None:
        """The model as its server names it; None before one has answered."""
        return None if self._model is None else self._model[0]

    @property
    def name(self) -> str:
        """The model as its server names it; before one has answered, the kind of server and the model or the host."""
        if self._model is not None:
            return self._model[0]
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
        await asyncio.gather(*checks, return_exceptions=True)
        await self._exchange.close()

    async def connect(self, deadline: Deadline) -> None:
        """Have all describe themselves, side by side.

        Raises Overloaded, or what the role does, when none of them did.
        """

        async def one(index: int) -> None:
            try:
                with self.under_way(index, 0) as ticket, self._noting(index):
                    await self.describe(index, deadline)
                    self.succeeded(ticket)
            except (KeyRefused, DeadlineExceeded) as fault:
                self._note(index, self._told(fault))

        await together([one(index) for index in range(len(self.endpoints))])
        self._asked = True
        if not any(self._descriptions):
            raise self.nobody()

    async def connect_once(self, deadline: Deadline) -> None:
        """As `connect`, unless it has been done; what is wrong then shows in use."""
        if not self._asked:
            try:
                await self.connect(deadline)
            except BoundaryMorphError:
                log.debug("no %s has described itself", self._role.name, exc_info=True)

    async def describe(self, index: int, deadline: Deadline) -> Description:
        """What a server says of itself, asked where it is not known. Raises as `send` does, and Misfit."""
        async with self._describing[index]:
            known, endpoint = self._descriptions[index], self.endpoints[index]
            path = endpoint.dialect.description_path
            if known is not None or path is None:
                assert known is not None, "what does not describe itself is described by its configuration"
                return known
            kind = f"is this a server of the kind '{endpoint.dialect.name}'?"
            try:
                body = await self.send(index, path, None, deadline.within(DESCRIPTION_TIMEOUT))
                description = endpoint.dialect.describe(body, endpoint.model)
            except KeyRefused:
                raise
            except Refused as failure:
                raise Misfit(f"{failure}; {kind}") from failure
            except Unusable as flaw:
                raise Misfit(f"{endpoint.base}{path} does not fit: {flaw}; {kind}") from flaw
            self._accept(index, description)
            return description

    async def send(self, index: int, path: str, body: bytes | None, budget: Budget) -> bytes:
        """One request. Raises DeadlineExceeded, Unavailable, Busy, KeyRefused or Refused."""
        endpoint = self.endpoints[index]
        try:
            return await self._exchange.send(endpoint, path, body, budget.seconds)
        except Late as late:
            if not budget.last:
                raise Busy(str(late), None) from late
            raise DeadlineExceeded(f"{endpoint.base} could not answer before the time was over") from late
        except TimeoutError as timeout:
            if not budget.last:
                raise Unavailable(f"{endpoint.base} did not answer within {budget.seconds:.3g} s") from timeout
            self._miss(index)
            raise DeadlineExceeded(f"{endpoint.base} had not answered when the time was over") from timeout

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
                    raise Overloaded(self._reasons(), retry_after=choice.hold)
            await self._one_ends(remaining if choice.hold is None else min(remaining, choice.hold))

    @contextmanager
    def under_way(self, index: int, texts: int) -> Iterator[Ticket]:
        """While so many texts are in work there."""
        ticket = self._replicas.begin(index, texts)
        try:
            yield ticket
        finally:
            self._replicas.end(ticket)
            ended, self._ended = self._ended, asyncio.Event()
            ended.set()

    def succeeded(self, ticket: Ticket) -> None:
        """The request has been answered."""
        if self._replicas.succeeded(ticket):
            self._note(ticket.index, None)
        self._check_others()

    def pause(self, index: int, busy: Busy) -> None:
        """It has too much to do."""
        seconds = self._replicas.paused(index, busy.pause)
        self._note(index, Overloaded(str(busy), retry_after=seconds))

    def eject(self, index: int, cause: Unavailable | Refused | DeadlineExceeded) -> None:
        """It does not work, or is not to be used."""
        self._note(index, self._told(cause))
        self._replicas.failed(index)
        self._forget(index)

    def _check_others(self) -> None:
        """Look, while one works, whether those that failed are back: no caller should wait for one that is not."""
        for index in self._replicas.to_check():
            if index not in self._checks:
                self._checks[index] = asyncio.ensure_future(self._check(index))

    async def _check(self, index: int) -> None:
        deadline = Deadline(self._clock() + 2 * DESCRIPTION_TIMEOUT, self._clock)
        try:
            with self.under_way(index, 0), self._noting(index):
                await self.describe(index, deadline)
                self._replicas.checked(index)
        except (KeyRefused, DeadlineExceeded) as fault:
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
            return Overloaded(self._reasons(), retry_after=min(pauses))
        if faults and all(isinstance(fault, self._role.failed) for fault in faults):
            return self._role.failed(self._reasons())
        return self._role.unavailable(self._reasons())

    def _told(self, cause: Unavailable | Refused | DeadlineExceeded) -> BoundaryMorphError:
        """What is wrong, as the callers hear it."""
        if isinstance(cause, DeadlineExceeded):
            return cause
        return (self._role.unavailable if isinstance(cause, Unavailable) else self._role.failed)(str(cause))

    def _miss(self, index: int) -> None:
        if self._replicas.missed(index):
            self._note(index, self._role.unavailable(f"{self.endpoints[index].base} keeps missing deadlines"))
            self._forget(index)

    def _accept(self, index: int, description: Description) -> None:
        base = self.endpoints[index].base
        name, teller = self._model or (description.name, base)
        if description.name != name:
            raise Misfit(f"{base} serves {description.name}, but {teller} serves {name}")
        self._model = name, teller
        self._descriptions[index] = description
        self._replicas.limit(index, description.concurrent_texts)

    def _forget(self, index: int) -> None:
        """What comes back after a failure may be another model."""
        if self.endpoints[index].dialect.description_path is not None:
            self._descriptions[index] = None

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
