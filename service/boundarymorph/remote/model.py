"""Results from models in other processes and on other machines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

import numpy as np

from boundarymorph.errors import DeadlineExceeded
from boundarymorph.remote.balancer import DESCRIPTION_TIMEOUT, Fleet, Misfit, OnChange, unheard
from boundarymorph.remote.chunks import chunks, encoded
from boundarymorph.remote.deadline import Deadline
from boundarymorph.remote.peer import Busy, Refused, Unavailable
from boundarymorph.remote.role import Role
from boundarymorph.remote.together import together
from boundarymorph.remote.urls import Endpoint
from boundarymorph.remote.wire import Answer, Description, Unusable

ATTEMPTS = 3  # of a chunk, and one more for each server: repetition must not add much to an overload
CALLS = 3  # of which the first two may be lost to a change of the model
CANARY = "canary"
SHARE = 4  # a call may take one in so many of all connections
GRACE = 0.05  # seconds after the deadline in which a request's own timer tells which server it waited for

Outcome = Literal["ok", "overloaded", "unavailable", "timeout", "failed", "cancelled"]
Observer = Callable[[str, Outcome, float], None]


class Flawed(Refused):
    """The server's answer cannot be used."""


class Exchanged(Misfit):
    """The server serves another model than it said."""


class Options(TypedDict, total=False):
    """How servers are asked: the keywords of `RemoteModel`, for what stands on one."""

    api_key: str | None
    timeout: float
    attempt_timeout: float
    connections: int
    clock: Callable[[], float]
    seed: int
    observe: Observer | None
    on_change: OnChange


class RemoteModel:
    """A model over HTTP, in front of one server or several that serve the same."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        role: Role,
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        attempt_timeout: float = 10.0,
        connections: int = 64,
        clock: Callable[[], float] = time.monotonic,
        seed: int = 0,
        observe: Observer | None = None,
        on_change: OnChange = unheard,
    ) -> None:
        """api_key: sent to all servers as a Bearer token; timeout: seconds for a call without a deadline;
        attempt_timeout: seconds for one request; observe: called with the server's base URL, the outcome and the
        seconds of each request for results; on_change: as of `Fleet`.

        Raises InvalidConfiguration.
        """
        self._role = role
        self._fleet = Fleet(
            endpoints,
            role,
            api_key=api_key,
            connections=connections,
            clock=clock,
            seed=seed,
            try_out=self._try_out,
            patience=attempt_timeout,
            on_change=on_change,
        )
        self._timeout, self._attempt_timeout = timeout, attempt_timeout
        self._side_by_side = max(1, connections // SHARE)
        self._clock = clock
        self._observe: Observer = observe or (lambda endpoint, outcome, seconds: None)

    @property
    def identity(self) -> str | None:
        """The model in use, as its servers name it; None before one has answered. It can change."""
        return self._fleet.identity

    @property
    def name(self) -> str:
        return self._fleet.name

    async def connect(self) -> None:
        """Ask all servers side by side what they are; one that fits is enough.

        Raises Overloaded, or what the role does.
        """
        self._fleet.check_open()
        await self._fleet.connect(Deadline(self._clock() + 2 * DESCRIPTION_TIMEOUT, self._clock))

    def check_open(self) -> None:
        """Raises RuntimeError after `close`."""
        self._fleet.check_open()

    async def call(self, context: str, texts: Sequence[str], *, deadline: float | None = None) -> Answer:
        """The results of n texts, at least one, all of one model, or an error. context: as of `Dialect.request`.

        Raises DeadlineExceeded, Overloaded, InvalidInput for text that is not Unicode, or what the role does.
        """
        moment = Deadline(self._clock() + self._timeout if deadline is None else deadline, self._clock)
        try:
            async with asyncio.timeout(moment.remaining() + GRACE):
                return await self._of_one_model(context, texts, moment)
        except DeadlineExceeded:
            raise
        except TimeoutError as timeout:
            raise DeadlineExceeded("the time of the request was over before all texts were done") from timeout
        except Refused as refusal:
            raise self._role.failed(str(refusal)) from refusal

    async def close(self) -> None:
        await self._fleet.close()

    async def _of_one_model(self, context: str, texts: Sequence[str], deadline: Deadline) -> Answer:
        """All results, asked for again where the servers changed their model meanwhile."""
        for _ in range(CALLS):
            answers = await self._chunks(context, texts, deadline)
            if len({answer.served for answer in answers}) == 1:
                return _joined(answers)
        raise self._role.unavailable(f"the {self._role.name}s change their model again and again")

    async def _chunks(self, context: str, texts: Sequence[str], deadline: Deadline) -> list[Answer]:
        await self._fleet.connect_once(deadline)
        parts = chunks(context, texts, self._fleet.most_texts, self._fleet.most_bytes)
        answers = []
        if not self._fleet.any_works:
            # A server that is back takes one request at first, and the others would find none to ask.
            answers.append(await self._chunk(context, parts.pop(0), deadline))
        lanes = asyncio.Semaphore(self._side_by_side)

        async def one(part: Sequence[str]) -> Answer:
            async with lanes:
                return await self._chunk(context, part, deadline)

        return answers + await together([one(part) for part in parts])

    async def _chunk(self, context: str, texts: Sequence[str], deadline: Deadline) -> Answer:
        """Ask one server after another until one has answered or there is no point in going on.

        What a server makes of some texts may be unusable for the texts' sake; that another can do with them tells that
        it is the server's fault.
        """
        tried: set[int] = set()
        asked_again: set[int] = set()
        flaws: dict[int, Flawed] = {}
        for _ in range(ATTEMPTS + len(self._fleet.endpoints)):
            try:
                index = await self._fleet.turn(len(texts), tried, deadline)
            except self._role.unavailable:
                if not flaws:
                    raise
                break
            paid = self._fleet.endpoints[index].dialect.paid
            with self._fleet.under_way(index, len(texts)) as ticket:
                try:
                    answer = await self._ask(index, context, texts, deadline)
                    self._fleet.succeeded(ticket)
                    for other, flaw in flaws.items():
                        self._fleet.eject(other, flaw)
                    return answer
                except Busy as busy:
                    self._fleet.pause(index, busy)
                except Exchanged as exchanged:
                    if index in asked_again:
                        self._fleet.eject(index, exchanged)
                        tried.add(index)
                    asked_again.add(index)
                    self._fleet.forget(index)
                except Misfit as misfit:
                    self._fleet.eject(index, misfit)
                    tried.add(index)
                except Flawed as flaw:
                    if paid:
                        raise
                    flaws[index] = flaw
                    tried.add(index)
                except Unavailable as failure:
                    if failure.stale and not paid and index not in asked_again:
                        asked_again.add(index)
                        self._fleet.forget(index)
                        continue
                    self._fleet.eject(index, failure)
                    if failure.carried_out and paid:
                        message = f"{failure}; it is not asked again, since requests there are paid for"
                        raise self._role.unavailable(message) from failure
                    tried.add(index)
        if flaws:
            raise next(iter(flaws.values()))
        raise self._fleet.nobody()

    async def _try_out(self, index: int, deadline: Deadline) -> bool:
        """Ask a server for the results of one short text, unless requests there are paid for; whether that was done."""
        description = await self._fleet.describe(index, deadline)
        if self._fleet.endpoints[index].dialect.paid:
            return False
        await self._attempt(index, description, CANARY, [CANARY], deadline)
        return True

    async def _ask(self, index: int, context: str, texts: Sequence[str], deadline: Deadline) -> Answer:
        """The results of one server, in several requests where it takes fewer texts than the others."""
        description = await self._fleet.describe_fitting(index, deadline)
        parts = chunks(context, texts, description.texts, self._fleet.most_bytes)
        return _joined([await self._attempt(index, description, context, part, deadline) for part in parts])

    async def _attempt(
        self, index: int, description: Description, context: str, texts: Sequence[str], deadline: Deadline
    ) -> Answer:
        """One request, and the telling of what became of it."""
        started = self._clock()
        outcome: Outcome = "failed"
        try:
            answer = await self._request(index, description, context, texts, deadline)
            outcome = "ok"
            return answer
        except Busy:
            outcome = "overloaded"
            raise
        except DeadlineExceeded:
            outcome = "timeout"
            raise
        except Unavailable as failure:
            outcome = "timeout" if isinstance(failure.__cause__, TimeoutError) else "unavailable"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._observe(self._fleet.endpoints[index].base, outcome, self._clock() - started)

    async def _request(
        self, index: int, description: Description, context: str, texts: Sequence[str], deadline: Deadline
    ) -> Answer:
        endpoint = self._fleet.endpoints[index]
        budget = deadline.within(self._attempt_timeout)
        request = endpoint.dialect.request(description.model, context, texts, budget.seconds)
        body = await self._fleet.send(index, request.path, encoded(request.body), budget)
        try:
            answer = endpoint.dialect.read(body, len(texts))
        except Unusable as flaw:
            raise Flawed(f"{endpoint.base} gives unusable {self._role.results}: {flaw}") from flaw
        served = answer.served or (await self._fleet.describe(index, deadline, confirm=True)).name
        if served != description.name:
            raise Exchanged(f"{endpoint.base} {self._role.done} with {served}, not with {description.name}")
        return Answer(answer.values, answer.truncated + request.cut, description.name)


def _joined(answers: Sequence[Answer]) -> Answer:
    if len({answer.values.shape[1:] for answer in answers}) > 1:
        raise Refused("the servers give results of different lengths; let all of them serve the same model")
    values = np.concatenate([answer.values for answer in answers])
    return Answer(values, sum(answer.truncated for answer in answers), answers[0].served)
