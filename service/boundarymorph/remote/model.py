"""Call a model on other machines: descriptions of servers, and results of one model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from boundarymorph.errors import BoundaryMorphError, DeadlineExceeded, InvalidConfiguration, InvalidInput, ScorerFailed
from boundarymorph.inference.concurrency import Deadline, gather
from boundarymorph.remote.balancer import Balancer, Role, log
from boundarymorph.remote.peer import (
    KeyRefused,
    Mismatch,
    Peer,
    RequestRefused,
    ServerBusy,
    ServerUnavailable,
    TimedOut,
    UnusableAnswer,
)
from boundarymorph.remote.urls import Endpoint, identify
from boundarymorph.remote.wire import (
    Answer,
    Description,
    MalformedAnswer,
    TextContext,
    TokenCounts,
    chunks,
    encode_json,
)
from boundarymorph.settings import ModelSettings, secret
from boundarymorph.telemetry import metrics

DESCRIPTION_TIMEOUT = 2.0  # seconds; a description involves no model
CALLS = 3  # the first two may be wasted if the model changes during them
SHARE = 4  # one call uses at most 1/SHARE of all connections, unless each text takes a request
GRACE = 0.05  # seconds after the deadline for a request's own timer, whose error names the server

OUTCOMES: dict[type[BaseException], str] = {  # outcomes of attempts in the metrics; any other error is "failed"
    ServerBusy: "overloaded",
    DeadlineExceeded: "timeout",
    TimedOut: "timeout",
    ServerUnavailable: "unavailable",
    asyncio.CancelledError: "cancelled",
}


class ModelChanged(Mismatch):
    """The server answered with another model than it had named."""


class _Server(Peer):
    """A server with its description.

    Attributes:
        description: None if it must be fetched.
        asked_at: The value of `opened` when it was fetched.
    """

    def __init__(self, endpoint: Endpoint, role: str, *, api_key: str | None, connections: int) -> None:
        super().__init__(
            endpoint.base,
            role,
            api_key=api_key,
            connections=connections,
            paid=endpoint.format.paid,
            ours=endpoint.format.name == "boundarymorph",
        )
        self.endpoint, self.format = endpoint, endpoint.format
        self.description: Description | None = None
        self.asked_at = 0
        self.describing = asyncio.Lock()

    def forget(self) -> None:
        if self.format.description_path is not None:
            self.description = None


class RemoteModel:
    """A model over HTTP, behind one or more servers.

    Each server is asked for its description before its first use, after each failure, and after a refusal on a new
    connection. With `partial`, results count even if others failed; those are NaN.
    """

    partial = False

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
    ) -> None:
        """Prepare the connections.

        Args:
            endpoints: The servers.
            role: What they do, for errors and messages.
            api_key: The key that is sent to them.
            timeout: Seconds for a call without a deadline.
            attempt_timeout: Seconds for one request.
            connections: Connections to all servers together.
            clock: Returns the time in seconds.
            seed: Decides among equal servers.

        Raises:
            InvalidConfiguration: If the endpoints do not fit together.
        """
        self._servers = [
            _Server(endpoint, role.name, api_key=api_key, connections=connections) for endpoint in endpoints
        ]
        self._role, self._clock = role, clock
        self._timeout, self._attempt_timeout = timeout, attempt_timeout
        one_by_one = all(endpoint.format.most_texts == 1 for endpoint in endpoints)
        self._concurrency = max(1, connections // (1 if one_by_one else SHARE))
        limits = (endpoint.format.most_bytes for endpoint in endpoints)
        self._most_bytes = min((limit for limit in limits if limit is not None), default=None)
        requests = max(1, connections // max(1, len(endpoints)))
        self._balancer = Balancer(self._servers, role, requests=requests, clock=clock, seed=seed)
        self._connected = False
        for server in self._servers:
            if server.format.description_path is None:  # its model is named by its URL
                configured = server.format.configured(str(server.endpoint.model))
                server.description = identify(configured, server.endpoint, self._servers[0].base)
                try:
                    self._balancer.serves(server, server.description.name)
                except Mismatch as other:
                    raise InvalidConfiguration(str(other)) from other

    def check_open(self) -> None:
        self._balancer.check_open()

    async def close(self) -> None:
        await self._balancer.close()

    @property
    def identity(self) -> str | None:
        """The model in use, as its servers name it, or None before one has answered. It may change."""
        return self._balancer.model

    @property
    def name(self) -> str:
        """The model as its servers name it; before, the kind of server with the model or the host."""
        first = self._servers[0]
        return self.identity or f"{first.format.name}:{first.endpoint.model or urlsplit(first.base).netloc}"

    @property
    def max_length(self) -> int | None:
        """The least number of tokens that one of the servers reads, or None if none of them says."""
        return min((known.length for known in self.descriptions if known.length is not None), default=None)

    @property
    def descriptions(self) -> list[Description]:
        return [server.description for server in self._servers if server.description is not None]

    async def connect(self, deadline: Deadline | None = None, caller: str = "") -> None:
        """Fetch the descriptions of all servers; one that fits is enough.

        Raises Overloaded, or an error of the role.
        """
        self.check_open()
        moment = deadline or Deadline(self._clock() + 2 * DESCRIPTION_TIMEOUT, self._clock)
        await self._balancer.ask_all(lambda server: self._describe(server, moment, caller))
        self._connected = True
        if not self.descriptions:
            moment.remaining()
            raise self._balancer.no_server_error()

    async def call(self, context: TextContext, texts: Sequence[str], *, deadline: float | None = None) -> Answer:
        """Return the results of n > 0 texts, all from one model, in part if that is allowed.

        Raises:
            DeadlineExceeded: If they are late.
            Overloaded: If all servers are busy.
            InvalidInput: If a text is not valid Unicode. Errors of the role are raised as well.
        """
        moment = Deadline(self._clock() + self._timeout if deadline is None else deadline, self._clock)
        try:
            async with asyncio.timeout(moment.remaining() + GRACE):
                for _ in range(CALLS):
                    answers = await self._chunks(context, texts, moment)
                    failures = [answer.failure for answer in answers if answer.failure is not None]
                    if len(failures) == len(answers):
                        raise failures[0]
                    if len({answer.served for answer in answers if answer.failure is None}) == 1:
                        return _joined(answers)
        except DeadlineExceeded:
            raise
        except TimeoutError as timeout:
            raise DeadlineExceeded("the deadline passed before all texts were done") from timeout
        except RequestRefused as refusal:
            raise self._role.failed(str(refusal)) from refusal
        raise self._role.unavailable(f"the {self._role.name}s keep changing their model")

    async def _chunks(self, context: TextContext, texts: Sequence[str], deadline: Deadline) -> list[Answer]:
        if not self._connected:
            try:
                await self.connect(deadline, context.caller)
            except BoundaryMorphError:  # the calls below report the problem
                log.debug("no %s has described itself", self._role.name, exc_info=True)
        described = [known.texts for known in self.descriptions]
        most = min(described or [server.format.most_texts for server in self._servers])
        parts = chunks(context, texts, most, self._most_bytes)
        slots = asyncio.Semaphore(self._concurrency)

        async def one(part: Sequence[str]) -> Answer:
            async with slots:
                try:
                    return await self._balancer.call(
                        lambda server: self._ask(server, context, part, deadline), texts=len(part), deadline=deadline
                    )
                except InvalidInput:
                    raise
                except BoundaryMorphError as error:
                    if not self.partial:
                        raise
                    return Answer(np.full(len(part), np.nan), failure=error)

        # A returning server takes a single request first; concurrent ones would find no server to call.
        first = [] if self._balancer.any_works else [await one(parts.pop(0))]
        return first + await gather([one(part) for part in parts])

    async def _describe(
        self, server: _Server, deadline: Deadline, caller: str, *, confirm: bool = False
    ) -> Description:
        """Return a server's description, which is fetched if it is unknown.

        To confirm it, it is fetched if a connection was opened since. Raises as `Peer.fetch` does, Mismatch, and
        OtherModel.
        """
        async with server.describing:
            known, path = server.description, server.format.description_path
            if path is not None and (known is None or (confirm and server.asked_at != server.opened)):
                kind = f"is this a server of the kind '{server.format.name}'?"
                try:
                    body = await server.fetch(path, None, deadline.budget(DESCRIPTION_TIMEOUT), caller=caller)
                    known = server.format.describe(body, server.endpoint.model)
                    known = identify(known, server.endpoint, self._servers[0].base)
                except KeyRefused as failure:
                    raise Mismatch(str(failure)) from failure
                except RequestRefused as failure:
                    raise Mismatch(f"{failure}; {kind}") from failure
                except MalformedAnswer as flaw:
                    raise Mismatch(f"{server.base}{path} does not fit: {flaw}; {kind}") from flaw
                server.description, server.asked_at = known, server.opened
            assert known is not None, "a server that does not describe itself has a configured description"
            self._balancer.serves(server, known.name, texts=known.concurrent_texts)
            return known

    async def _ask(
        self, server: _Server, context: TextContext, texts: Sequence[str], deadline: Deadline, *, again: bool = True
    ) -> Answer:
        """Return the results of one server, if necessary in several requests.

        With `again`, it tries again if the server has another model.
        """
        description = await self._describe(server, deadline, context.caller)
        parts = chunks(context, texts, description.texts, self._most_bytes)
        try:
            return _joined([await self._attempt(server, description, context, part, deadline) for part in parts])
        except ModelChanged:
            if not again:
                raise
            server.forget()
            return await self._ask(server, context, texts, deadline, again=False)

    @contextmanager
    def _observed(self, server: Peer) -> Iterator[None]:
        started, outcome = self._clock(), "ok"
        try:
            yield
        except BaseException as error:
            outcome = OUTCOMES.get(type(error), "failed")
            raise
        finally:
            seconds = metrics.attempt_seconds[self._role.name].labels(server.base, outcome)
            seconds.observe(self._clock() - started)

    async def _attempt(
        self, server: _Server, description: Description, context: TextContext, texts: Sequence[str], deadline: Deadline
    ) -> Answer:
        with self._observed(server):
            budget, wire_format = deadline.budget(self._attempt_timeout), server.format
            request = wire_format.request(description.model, context, texts, budget.seconds)
            content = encode_json(request.body)
            try:
                body = await server.fetch(
                    request.path,
                    content,
                    budget,
                    most=wire_format.most_answer(content, len(texts)),
                    honours_deadlines=wire_format.honours_deadlines,
                    caller=context.caller,
                )
            except ServerBusy:
                if server.asked_at != server.opened:  # another model may be behind the new connection
                    server.forget()
                raise
            try:
                answer = wire_format.read(body, len(texts))
            except MalformedAnswer as flaw:
                raise UnusableAnswer(f"{server.base} gives unusable {self._role.results}: {flaw}") from flaw
            served = answer.served or (await self._describe(server, deadline, context.caller, confirm=True)).name
            if served != description.name:
                raise ModelChanged(f"{server.base} {self._role.done} with {served}, not with {description.name}")
            truncated = answer.truncated + request.cut
            return Answer(answer.values, truncated, description.name, answer.usage, spans=answer.spans)


def _joined(answers: Sequence[Answer]) -> Answer:
    if len({answer.values.shape[1:] for answer in answers}) > 1:
        raise RequestRefused("the servers give results of different lengths; let all of them serve the same model")
    values = np.concatenate([answer.values for answer in answers])
    there = [answer for answer in answers if answer.failure is None]
    failures = [answer.failure for answer in answers if answer.failure is not None]
    failure = min(failures, key=lambda error: isinstance(error, ScorerFailed), default=None)  # which says least
    counts = [answer.usage for answer in there if answer.usage is not None]
    usage = reduce(TokenCounts.plus, counts) if counts else None
    spans = [part for answer in answers for part in answer.spans or [()] * len(answer.values)]
    return Answer(values, sum(answer.truncated for answer in there), there[0].served, usage, failure, spans)


def remote_options(chosen: ModelSettings) -> dict[str, Any]:
    return {
        "api_key": secret(chosen.api_key),
        "timeout": chosen.timeout_seconds,
        "attempt_timeout": chosen.attempt_seconds,
        "connections": chosen.connections,
    }
