"""A model on other machines: what its servers say of themselves, and results that are all of one model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypedDict, Unpack
from urllib.parse import urlsplit

import numpy as np

from boundarymorph.errors import BoundaryMorphError, DeadlineExceeded, InvalidConfiguration
from boundarymorph.remote.balancer import Balancer, OnChange, OtherModel, Role, ignore_change, log
from boundarymorph.remote.chunks import chunks, encoded
from boundarymorph.remote.deadline import Deadline
from boundarymorph.remote.identity import identified
from boundarymorph.remote.peer import Busy, Flawed, KeyRefused, Mismatch, Peer, Refused, TimedOut, Unavailable
from boundarymorph.remote.together import together
from boundarymorph.remote.urls import Endpoint
from boundarymorph.remote.wire import Answer, Description, Unusable
from boundarymorph.settings import ModelSettings
from boundarymorph.telemetry import metrics

DESCRIPTION_TIMEOUT = 2.0  # seconds; no model runs for it
CALLS = 3  # of which the first two may be lost to a change of the model
PROBE = "probe"
SHARE = 4  # a call may take one in so many of all connections
GRACE = 0.05  # seconds after the deadline in which a request's own timer says which server it waited for

Outcome = Literal["ok", "overloaded", "unavailable", "timeout", "failed", "cancelled"]
Observer = Callable[[str, Outcome, float], None]
OUTCOMES: dict[type[BaseException], Outcome] = {
    Busy: "overloaded",
    DeadlineExceeded: "timeout",
    TimedOut: "timeout",
    Unavailable: "unavailable",
    asyncio.CancelledError: "cancelled",
}


class Exchanged(Mismatch):
    """The server serves another model than it said."""


class Options(TypedDict, total=False):
    """How servers are asked.

    api_key: sent to all of them as a Bearer token; timeout: seconds for a call without a deadline (30);
    attempt_timeout: for one request (10); connections: to all servers together (64); clock: seconds; seed: of the
    choice among equals; observe: called with the server's base URL, the outcome and the seconds of each request for
    results; on_change: as of `Balancer`.
    """

    api_key: str | None
    timeout: float
    attempt_timeout: float
    connections: int
    clock: Callable[[], float]
    seed: int
    observe: Observer
    on_change: OnChange


class _Server(Peer):
    """description: of itself, None where it is to be asked; asked_at: the connections that there had been by then."""

    def __init__(self, endpoint: Endpoint, role: str, *, api_key: str | None, connections: int) -> None:
        super().__init__(endpoint.base, role, api_key=api_key, connections=connections, paid=endpoint.dialect.paid)
        self.endpoint, self.dialect = endpoint, endpoint.dialect
        self.description: Description | None = None
        self.asked_at = 0
        self.describing = asyncio.Lock()

    def forget(self) -> None:
        if self.dialect.description_path is not None:
            self.description = None


class RemoteModel:
    """A model over HTTP, in front of one server or several that serve the same.

    Each is asked to describe itself before it is used, and again after each failure.
    """

    def __init__(self, endpoints: Sequence[Endpoint], role: Role, **options: Unpack[Options]) -> None:
        """Raises InvalidConfiguration."""
        connections = options.get("connections", 64)
        self._servers = [
            _Server(endpoint, role.name, api_key=options.get("api_key"), connections=connections)
            for endpoint in endpoints
        ]
        self._role = role
        self._timeout, self._attempt_timeout = options.get("timeout", 30.0), options.get("attempt_timeout", 10.0)
        self._side_by_side = max(1, connections // SHARE)
        self._clock = options.get("clock", time.monotonic)
        self._observe: Observer = options.get("observe", lambda endpoint, outcome, seconds: None)
        self._balancer = Balancer(
            self._servers,
            role,
            requests=max(1, connections // max(1, len(endpoints))),
            probe=self._probe,
            clock=self._clock,
            seed=options.get("seed", 0),
            on_change=options.get("on_change", ignore_change),
        )
        self._connected = False
        for server in self._servers:
            if server.dialect.description_path is None:
                self._configure(server)

    def _configure(self, server: _Server) -> None:
        """Describe one that does not describe itself."""
        dialect, model = server.dialect, server.endpoint.model
        if model is None:
            raise InvalidConfiguration(f"{dialect.name} needs the name of a model: {dialect.name}://...?model=NAME")
        description = Description(f"{dialect.name}:{model}", model, dialect.most_texts)
        server.description = identified(description, server.endpoint, self._servers[0].base)
        self._balancer.serves(server, server.description.name)
        try:
            self._balancer.check_model(server)
        except OtherModel as other:
            raise InvalidConfiguration(str(other)) from other

    @property
    def identity(self) -> str | None:
        """The model in use, as its servers name it; None before one has answered. It can change."""
        return self._balancer.model

    @property
    def name(self) -> str:
        """The model as its servers name it; before one has answered, the kind of server and the model or the host."""
        first = self._servers[0]
        return self.identity or f"{first.dialect.name}:{first.endpoint.model or urlsplit(first.base).netloc}"

    async def connect(self) -> None:
        """Ask all servers side by side what they are; one that fits is enough.

        Raises Overloaded, or what the role does.
        """
        self.check_open()
        await self._connect(Deadline(self._clock() + 2 * DESCRIPTION_TIMEOUT, self._clock))

    def check_open(self) -> None:
        """Raises RuntimeError after `close`."""
        self._balancer.check_open()

    async def call(self, context: str, texts: Sequence[str], *, deadline: float | None = None) -> Answer:
        """The results of n texts, at least one, all of one model, or an error. context: as of `Dialect.request`.

        Raises DeadlineExceeded, Overloaded, InvalidInput for text that is not Unicode, or what the role does.
        """
        moment = Deadline(self._clock() + self._timeout if deadline is None else deadline, self._clock)
        try:
            async with asyncio.timeout(moment.remaining() + GRACE):
                for _ in range(CALLS):
                    answers = await self._chunks(context, texts, moment)
                    if len({answer.served for answer in answers}) == 1:
                        return _joined(answers)
        except DeadlineExceeded:
            raise
        except TimeoutError as timeout:
            raise DeadlineExceeded("the time of the request was over before all texts were done") from timeout
        except Refused as refusal:
            raise self._role.failed(str(refusal)) from refusal
        raise self._role.unavailable(f"the {self._role.name}s change their model again and again")

    async def close(self) -> None:
        await self._balancer.close()

    async def _connect(self, deadline: Deadline) -> None:
        async def describe(server: _Server) -> bool:
            await self._describe(server, deadline)
            return True  # as far as can be known to begin with

        await self._balancer.ask_all(describe)
        self._connected = True
        if not any(server.description for server in self._servers):
            deadline.remaining()
            raise self._balancer.none_left()

    async def _chunks(self, context: str, texts: Sequence[str], deadline: Deadline) -> list[Answer]:
        if not self._connected:
            try:
                await self._connect(deadline)
            except BoundaryMorphError:  # what is wrong shows in use
                log.debug("no %s has described itself", self._role.name, exc_info=True)
        described = [server.description.texts for server in self._servers if server.description is not None]
        most = min(described or [server.dialect.most_texts for server in self._servers])
        parts = chunks(context, texts, most, self._most_bytes)
        answers = []
        if not self._balancer.any_works:
            # A server that is back takes one request at first, and the others would find none to ask.
            answers.append(await self._chunk(context, parts.pop(0), deadline))
        side_by_side = asyncio.Semaphore(self._side_by_side)

        async def one(part: Sequence[str]) -> Answer:
            async with side_by_side:
                return await self._chunk(context, part, deadline)

        return answers + await together([one(part) for part in parts])

    async def _chunk(self, context: str, texts: Sequence[str], deadline: Deadline) -> Answer:
        return await self._balancer.call(
            lambda server: self._ask(server, context, texts, deadline), texts=len(texts), deadline=deadline
        )

    @property
    def _most_bytes(self) -> int | None:
        """What every kind of server takes."""
        limits = (server.dialect.most_bytes for server in self._servers)
        return min((limit for limit in limits if limit is not None), default=None)

    async def _probe(self, server: _Server) -> bool:
        """Ask a server for the results of one short text, unless requests there are paid for; whether that was done."""
        deadline = Deadline(self._clock() + 2 * DESCRIPTION_TIMEOUT + self._attempt_timeout, self._clock)
        description = await self._describe(server, deadline)
        if server.paid:
            return False
        await self._attempt(server, description, PROBE, [PROBE], deadline)
        return True

    async def _describe(self, server: _Server, deadline: Deadline, *, confirm: bool = False) -> Description:
        """What a server says of itself, asked where it is not known. Raises as `Peer.fetch` does, and Mismatch.

        confirm: ask too where a connection was opened since it was asked, behind which there may be another model.
        """
        async with server.describing:
            known, path = server.description, server.dialect.description_path
            if path is not None and (known is None or (confirm and server.asked_at != server.opened)):
                kind = f"is this a server of the kind '{server.dialect.name}'?"
                try:
                    body = await server.fetch(path, None, deadline.within(DESCRIPTION_TIMEOUT))
                    known = server.dialect.describe(body, server.endpoint.model)
                    known = identified(known, server.endpoint, self._servers[0].base)
                except KeyRefused:
                    raise
                except Refused as failure:
                    raise Mismatch(f"{failure}; {kind}") from failure
                except Unusable as flaw:
                    raise Mismatch(f"{server.base}{path} does not fit: {flaw}; {kind}") from flaw
                server.description, server.asked_at = known, server.opened
            assert known is not None, "what does not describe itself is described by its configuration"
            self._balancer.serves(server, known.name, texts=known.concurrent_texts)
            return known

    async def _ask(self, server: _Server, context: str, texts: Sequence[str], deadline: Deadline) -> Answer:
        """The results of one server, in several requests where it takes fewer texts than the others; once more where
        it turns out to serve another model by now."""
        try:
            return await self._ask_described(server, context, texts, deadline)
        except Exchanged:
            server.forget()
            return await self._ask_described(server, context, texts, deadline)

    async def _ask_described(self, server: _Server, context: str, texts: Sequence[str], deadline: Deadline) -> Answer:
        description = await self._describe(server, deadline)
        self._balancer.check_model(server)
        parts = chunks(context, texts, description.texts, self._most_bytes)
        return _joined([await self._attempt(server, description, context, part, deadline) for part in parts])

    async def _attempt(
        self, server: _Server, description: Description, context: str, texts: Sequence[str], deadline: Deadline
    ) -> Answer:
        """One request, and its outcome for the observer."""
        started = self._clock()
        outcome: Outcome = "ok"
        try:
            return await self._request(server, description, context, texts, deadline)
        except BaseException as error:
            outcome = OUTCOMES.get(type(error), "failed")
            raise
        finally:
            self._observe(server.base, outcome, self._clock() - started)

    async def _request(
        self, server: _Server, description: Description, context: str, texts: Sequence[str], deadline: Deadline
    ) -> Answer:
        budget, dialect = deadline.within(self._attempt_timeout), server.dialect
        request = dialect.request(description.model, context, texts, budget.seconds)
        body = await server.fetch(
            request.path, encoded(request.body), budget, honours_deadlines=dialect.honours_deadlines
        )
        try:
            answer = dialect.read(body, len(texts))
        except Unusable as flaw:
            raise Flawed(f"{server.base} gives unusable {self._role.results}: {flaw}") from flaw
        served = answer.served or (await self._describe(server, deadline, confirm=True)).name
        if served != description.name:
            raise Exchanged(f"{server.base} {self._role.done} with {served}, not with {description.name}")
        return Answer(answer.values, answer.truncated + request.cut, description.name)


def _joined(answers: Sequence[Answer]) -> Answer:
    if len({answer.values.shape[1:] for answer in answers}) > 1:
        raise Refused("the servers give results of different lengths; let all of them serve the same model")
    values = np.concatenate([answer.values for answer in answers])
    return Answer(values, sum(answer.truncated for answer in answers), answers[0].served)


def remote_options(chosen: ModelSettings, role: Literal["scorer", "encoder"]) -> Options:
    """As the settings have them. role: scorer or encoder, a label of the metrics."""
    return {
        "api_key": None if chosen.api_key is None else chosen.api_key.get_secret_value(),
        "timeout": chosen.timeout_seconds,
        "attempt_timeout": chosen.attempt_seconds,
        "connections": chosen.connections,
        "observe": metrics.observe_attempt if role == "scorer" else metrics.observe_encoder_attempt,
        "on_change": partial(metrics.observe_replica, role),
    }
