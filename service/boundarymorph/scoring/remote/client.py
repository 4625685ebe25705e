"""Scores from other processes and other machines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from boundarymorph.errors import DeadlineExceeded, ScorerFailed, ScorerUnavailable
from boundarymorph.scoring.remote.chunks import chunks, encoded
from boundarymorph.scoring.remote.deadline import Deadline
from boundarymorph.scoring.remote.dialects import Answer, Description, Unusable
from boundarymorph.scoring.remote.exchange import Busy, Unavailable
from boundarymorph.scoring.remote.fleet import DESCRIPTION_TIMEOUT, Fleet, Misfit
from boundarymorph.scoring.remote.together import together
from boundarymorph.scoring.remote.urls import Endpoint
from boundarymorph.scoring.scorer import Scores

ATTEMPTS = 3  # of a chunk, and one more for each server: repetition must not add much to an overload
SHARE = 4  # a call may take one in so many of all connections
GRACE = 0.05  # seconds after the deadline in which a request's own timer tells which server it waited for

Outcome = Literal["ok", "overloaded", "unavailable", "timeout", "failed", "cancelled"]
Observer = Callable[[str, Outcome, float], None]


class RemoteScorer:
    """A `Scorer` over HTTP, in front of one server or several that serve the same model."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        attempt_timeout: float = 10.0,
        connections: int = 64,
        clock: Callable[[], float] = time.monotonic,
        seed: int = 0,
        observe: Observer | None = None,
    ) -> None:
        """api_key: sent to all servers as a Bearer token; timeout: seconds for a call of `score` without a deadline;
        attempt_timeout: seconds for one request; observe: called with the server's base URL, the outcome and the
        seconds of each request for scores.

        Raises InvalidConfiguration.
        """
        self._fleet = Fleet(endpoints, api_key=api_key, connections=connections, clock=clock, seed=seed)
        self._timeout, self._attempt_timeout = timeout, attempt_timeout
        self._side_by_side = max(1, connections // SHARE)
        self._clock = clock
        self._observe: Observer = observe or (lambda endpoint, outcome, seconds: None)

    @property
    def name(self) -> str:
        return self._fleet.name

    async def connect(self) -> None:
        """Ask all servers side by side what they are; one that fits is enough.

        Raises ScorerUnavailable, Overloaded or ScorerFailed.
        """
        self._fleet.check_open()
        await self._fleet.connect(Deadline(self._clock() + 2 * DESCRIPTION_TIMEOUT, self._clock))

    async def score(self, query: str, texts: Sequence[str], *, deadline: float | None = None) -> Scores:
        self._fleet.check_open()
        if not texts:
            return Scores(np.empty(0))
        moment = Deadline(self._clock() + self._timeout if deadline is None else deadline, self._clock)
        try:
            async with asyncio.timeout(moment.remaining() + GRACE):
                answers = await self._chunks(query, texts, moment)
        except DeadlineExceeded:
            raise
        except TimeoutError as timeout:
            raise DeadlineExceeded("the time of the request was over before all texts were scored") from timeout
        answer = _joined(answers)
        return Scores(answer.values, answer.truncated)

    async def close(self) -> None:
        await self._fleet.close()

    async def _chunks(self, query: str, texts: Sequence[str], deadline: Deadline) -> list[Answer]:
        await self._fleet.connect_once(deadline)
        parts = chunks(query, texts, self._fleet.most_texts, self._fleet.most_bytes)
        answers = []
        if not self._fleet.any_works:
            # A server that is back takes one request at first, and the others would find none to ask.
            answers.append(await self._chunk(query, parts.pop(0), deadline))
        lanes = asyncio.Semaphore(self._side_by_side)

        async def one(part: Sequence[str]) -> Answer:
            async with lanes:
                return await self._chunk(query, part, deadline)

        return answers + await together([one(part) for part in parts])

    async def _chunk(self, query: str, texts: Sequence[str], deadline: Deadline) -> Answer:
        """Ask one server after another until one has answered or there is no point in going on."""
        tried: set[int] = set()
        asked_again: set[int] = set()
        for _ in range(ATTEMPTS + len(self._fleet.endpoints)):
            index = await self._fleet.turn(len(texts), tried, deadline)
            paid = self._fleet.endpoints[index].dialect.paid
            with self._fleet.under_way(index, len(texts)) as ticket:
                try:
                    answer = await self._ask(index, query, texts, deadline)
                    self._fleet.succeeded(ticket)
                    return answer
                except Busy as busy:
                    self._fleet.pause(index, busy)
                except Misfit as misfit:
                    self._fleet.eject(index, misfit)
                    tried.add(index)
                except Unavailable as failure:
                    if failure.stale and not paid and index not in asked_again:
                        asked_again.add(index)
                        continue
                    self._fleet.eject(index, ScorerUnavailable(str(failure)))
                    if failure.carried_out and paid:
                        message = f"{failure}; it is not asked again, since requests there are paid for"
                        raise ScorerUnavailable(message) from failure
                    tried.add(index)
        raise self._fleet.nobody()

    async def _ask(self, index: int, query: str, texts: Sequence[str], deadline: Deadline) -> Answer:
        """The scores of one server, in several requests where it takes fewer texts than the others."""
        description = await self._fleet.describe(index, deadline)
        parts = chunks(query, texts, description.texts, self._fleet.most_bytes)
        return _joined([await self._attempt(index, description, query, part, deadline) for part in parts])

    async def _attempt(
        self, index: int, description: Description, query: str, texts: Sequence[str], deadline: Deadline
    ) -> Answer:
        """One request, and the telling of what became of it."""
        started = self._clock()
        outcome: Outcome = "failed"
        try:
            answer = await self._request(index, description, query, texts, deadline)
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
        self, index: int, description: Description, query: str, texts: Sequence[str], deadline: Deadline
    ) -> Answer:
        endpoint = self._fleet.endpoints[index]
        budget = deadline.within(self._attempt_timeout)
        request = endpoint.dialect.request(description.model, query, texts, budget.seconds)
        body = await self._fleet.send(index, request.path, encoded(request.body), budget)
        try:
            answer = endpoint.dialect.read(body, len(texts))
        except Unusable as flaw:
            raise ScorerFailed(f"{endpoint.base} gives unusable scores: {flaw}") from flaw
        if answer.served not in (None, description.name):
            raise Misfit(f"{endpoint.base} scored with {answer.served}, not with {description.name}")
        return Answer(answer.values, answer.truncated + request.cut)


def _joined(answers: Sequence[Answer]) -> Answer:
    values = np.concatenate([answer.values for answer in answers])
    return Answer(values, sum(answer.truncated for answer in answers))
