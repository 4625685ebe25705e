"""A scorer that calls a chat model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from functools import reduce
from hashlib import blake2b
from typing import Any, TypeVar, Unpack

import numpy as np

from boundarymorph.errors import (
    BoundaryMorphError,
    CostCeiling,
    InvalidConfiguration,
    ScorerFailed,
    ScorerUnavailable,
)
from boundarymorph.inference.concurrency import Deadline, owned
from boundarymorph.remote.balancer import Balancer, Role, ignore_change
from boundarymorph.remote.model import OUTCOMES, Observer, Options, Outcome
from boundarymorph.remote.peer import Busy, Flawed, Peer, Refused, Unavailable
from boundarymorph.remote.urls import Endpoint, identified
from boundarymorph.remote.wire import Answer, Context, Description, Unusable, encoded
from boundarymorph.scoring.costs import NOTHING, Amount, Bill, Ledger, OpenLedger, Prices
from boundarymorph.scoring.judge.dialect import WAYS, OpenAI, Ungraded
from boundarymorph.scoring.scorer import Scores
from boundarymorph.settings import JudgeSettings
from boundarymorph.telemetry import metrics

ROLE = Role("language model", ScorerUnavailable, ScorerFailed, "graded", "grades")
NOBODY = ""  # charged for what no request asked for; no key has this name
IN_A_ROW = 5  # answers without a grade after which the model is assumed to give none
QUERY, PASSAGE = "how many strings has a violin?", "A violin has four strings, tuned in fifths."
T = TypeVar("T")
log = logging.getLogger(__name__)


class Judge:
    """A `PricedScorer` over chat completions: one request per pair, as many concurrently as there are connections.

    Grades that arrived are kept if others fail: a pair without a grade is NaN, and an error is raised only if every
    pair of a call failed. Requests cost money, so one that may have been carried out is never repeated.

    With several documents per request, these are chosen and ordered by a hash of query and text, since the place of a
    passage in a prompt counts. One without a grade among others is asked for once more, alone.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        chosen: JudgeSettings | None = None,
        ledger: Ledger | None = None,
        **options: Unpack[Options],
    ) -> None:
        """endpoints: replicas of one model; ledger: enforces the ceilings. Raises InvalidConfiguration."""
        self._chosen = chosen or JudgeSettings()
        self._ledger = ledger or OpenLedger()
        self._prices = Prices(self._chosen.input_price, self._chosen.output_price)
        self._endpoint, connections = endpoints[0], options.get("connections", 64)
        if len({endpoint.model for endpoint in endpoints}) > 1:
            raise InvalidConfiguration("the openai:// URLs of a scorer name different models; replicas serve the same")
        peers = [
            Peer(endpoint.base, ROLE.name, api_key=options.get("api_key"), connections=connections, paid=True)
            for endpoint in endpoints
        ]
        self._timeout, self._attempt_timeout = options.get("timeout", 30.0), options.get("attempt_timeout", 10.0)
        self._clock = options.get("clock", time.monotonic)
        self._observe: Observer = options.get("observe", lambda endpoint, outcome, seconds: None)
        self._balancer = Balancer(
            peers,
            ROLE,
            requests=max(1, connections // len(peers)),
            probe=_unasked,
            clock=self._clock,
            seed=options.get("seed", 0),
            on_change=options.get("on_change", ignore_change),
        )
        self._dialect: OpenAI | None = None
        self._choosing = asyncio.Lock()
        self._served: str | None = None
        self._ungraded = 0  # answers without a grade since the last grade
        self._last_trouble = ""

    @property
    def identity(self) -> str | None:
        """The model and how it is asked; None until an answer has shown which way works."""
        if self._dialect is None:
            return None
        model = str(self._endpoint.model)
        shown = model if self._served in (None, model) else f"{model}={self._served}"
        described = Description(f"openai:{shown}", model, 1)
        return f"{identified(described, self._endpoint, self._endpoint.base).name}/judge-{self._dialect.fingerprint}"

    @property
    def name(self) -> str:
        """The `identity`, or the model until that is known."""
        return self.identity or f"openai:{self._endpoint.model}"

    async def check(self) -> None:
        """Have a short pair graded, which also finds a way to ask that works. Raises as `score` does."""
        self._balancer.check_open()
        try:
            if await self._known_dialect(self._deadline(None)):
                await self.score(QUERY, [PASSAGE])
        except CostCeiling as ceiling:
            log.warning("the language model is not probed: %s", ceiling)

    def most(self, query: str, text: str) -> Amount:
        """See `PricedScorer`. Assumes the way with the longest requests until it is known which one works. Among others
        a pair costs less than alone, and it may be asked for in both ways."""
        dialect, many = self._dialect or OpenAI(self._chosen, "json"), self._chosen.documents_per_request > 1
        alone = [dialect.most_usage(encoded(self._request(dialect, Context(query), [text])))]
        both = [*alone, dialect.most_usage(encoded(self._request(dialect, Context(query), [text] * 2)), 2)]
        return reduce(Amount.plus, map(self._prices.of, both if many else alone))

    @property
    def takes_instruction(self) -> bool:
        return True

    async def score(
        self, query: str, texts: Sequence[str], *, deadline: float | None = None, instruction: str | None = None
    ) -> Scores:
        return await self.score_for(Bill(NOBODY), query, texts, deadline=deadline, instruction=instruction)

    async def score_for(
        self,
        bill: Bill,
        query: str,
        texts: Sequence[str],
        *,
        deadline: float | None = None,
        instruction: str | None = None,
    ) -> Scores:
        self._balancer.check_open()
        if not texts:
            return Scores(np.empty(0))
        moment = self._deadline(deadline)
        await self._known_dialect(moment)
        asked = Context(query, instruction)
        graded = await self._graded(bill, asked, texts, moment)
        errors = [outcome for outcome in graded if isinstance(outcome, BoundaryMorphError)]
        if unexpected := [o for o in graded if isinstance(o, BaseException) and not isinstance(o, BoundaryMorphError)]:
            raise unexpected[0]
        if len(errors) == len(texts):
            raise errors[0]
        for error in errors:
            log.warning("a document got no grade: %s", error)
        values = np.array([np.nan if isinstance(outcome, BaseException) else outcome for outcome in graded])
        if np.isnan(values).all() and self._ungraded >= IN_A_ROW:
            raise ScorerFailed(f"{self.name} gave no grade {self._ungraded} times in a row: {self._last_trouble}")
        cut = sum(len(text) > self._chosen.text_characters for text in texts)
        # The refusal of one pair, for instance by a content filter, says nothing about the others.
        failure = next((error for error in errors if not isinstance(error, ScorerFailed)), None)
        return Scores(values, cut, model=self.name, failure=failure)

    async def close(self) -> None:
        await self._balancer.close()
        await self._ledger.close()

    def _deadline(self, moment: float | None) -> Deadline:
        return Deadline(self._clock() + self._timeout if moment is None else moment, self._clock)

    async def _known_dialect(self, deadline: Deadline) -> bool:
        """Find the first way in which the server gives a grade, and keep it. Returns whether it was already known."""
        async with self._choosing:
            if self._dialect is not None:
                return True
            chosen, at_home = self._chosen.grades, self._endpoint.base == OpenAI.home
            trouble: Exception | None = None
            for way in WAYS if chosen == "auto" else (chosen,):
                dialect = OpenAI(self._chosen, way, at_home=at_home, strict=True)
                try:
                    answer = await self._answer(dialect, Bill(NOBODY), Context(QUERY), [PASSAGE], deadline)
                    if not isinstance(answer, Ungraded):
                        self._dialect = OpenAI(self._chosen, way, at_home=at_home)
                        self._note_served(answer.served)
                        return False
                    trouble = answer
                except ScorerFailed as failure:
                    trouble = failure
                log.info("the language model cannot be asked for grades as '%s': %s", way, trouble)
            raise ScorerFailed(f"{self.name} gives no grade in any way that scorer.judge.grades allows: {trouble}")

    async def _graded(
        self, bill: Bill, asked: Context, texts: Sequence[str], deadline: Deadline
    ) -> list[float | BaseException]:
        """Return the relevance of each text, NaN if the model gave no grade, or why it was not asked."""
        parts = self._parts(asked.query, texts)
        asking = [self._grades(bill, asked, [texts[place] for place in part], deadline) for part in parts]
        graded: list[float | BaseException] = [np.nan] * len(texts)
        for part, grades in zip(parts, await owned(_outcomes(asking)), strict=True):
            for nth, place in enumerate(part):
                graded[place] = grades if isinstance(grades, BaseException) else grades[nth]
        return graded

    def _parts(self, query: str, texts: Sequence[str]) -> list[list[int]]:
        """Return the positions of the texts of each request, in the order in which they are shown."""
        most = self._chosen.documents_per_request
        if most == 1:
            return [[place] for place in range(len(texts))]
        key = blake2b(query.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        hashes = [blake2b(text.encode("utf-8", "surrogatepass"), key=key).digest() for text in texts]
        shuffled = sorted(range(len(texts)), key=hashes.__getitem__)
        return [shuffled[start : start + most] for start in range(0, len(shuffled), most)]

    async def _grades(
        self, bill: Bill, asked: Context, texts: Sequence[str], deadline: Deadline
    ) -> list[float | BaseException]:
        """Return the same for the texts of one request."""
        grades: list[float | BaseException] = [np.nan] * len(texts)
        try:
            grades[:] = await self._grade(bill, asked, texts, deadline)
        except ScorerFailed:
            if len(texts) == 1:
                raise
        missing = [place for place, grade in enumerate(grades) if grade != grade]
        if len(texts) > 1 and missing:
            log.info(
                "%d of %d documents got no grade in one request, and are asked for alone", len(missing), len(texts)
            )
            again = await _outcomes([self._grade(bill, asked, [texts[place]], deadline) for place in missing])
            for place, grade in zip(missing, again, strict=True):
                grades[place] = grade if isinstance(grade, BaseException) else grade[0]
        return grades

    async def _grade(self, bill: Bill, asked: Context, texts: Sequence[str], deadline: Deadline) -> list[float]:
        """Return the relevance of each text of one request, NaN if the model gave no grade."""
        assert self._dialect is not None
        answer = await self._answer(self._dialect, bill, asked, texts, deadline)
        self._note_served(answer.served)
        if isinstance(answer, Ungraded):
            metrics.judge_answers.labels("refused" if answer.refused else "malformed").inc()
            self._ungraded, self._last_trouble = self._ungraded + 1, str(answer)
            log.warning("%s got no grade: %s", "a document" if len(texts) == 1 else f"{len(texts)} documents", answer)
            return [np.nan] * len(texts)
        metrics.judge_answers.labels("malformed" if np.isnan(answer.values).any() else "graded").inc()
        self._ungraded = 0
        return [float(value) for value in answer.values]

    def _request(self, dialect: OpenAI, asked: Context, texts: Sequence[str]) -> dict[str, object]:
        return dialect.request(str(self._endpoint.model), asked, texts, self._attempt_timeout).body

    async def _answer(
        self, dialect: OpenAI, bill: Bill, asked: Context, texts: Sequence[str], deadline: Deadline
    ) -> Answer | Ungraded:
        body = encoded(self._request(dialect, asked, texts))
        return await self._balancer.call(
            lambda peer: self._attempt(peer, dialect, bill, body, len(texts), deadline), deadline=deadline
        )

    async def _attempt(
        self, peer: Peer, dialect: OpenAI, bill: Bill, body: bytes, count: int, deadline: Deadline
    ) -> Answer | Ungraded:
        """Send one request for so many texts; report its outcome to the observer, and its cost to the ledger.

        A request whose answer did not arrive is charged the most that it may cost.
        """
        most = dialect.most_usage(body, count)
        reservation = await self._ledger.reserve(bill, self._prices.of(most))
        spent, started = reservation.most, self._clock()
        outcome: Outcome = "ok"
        try:
            answer = await self._fetch(peer, dialect, body, count, deadline)
            usage = answer.usage or most
            spent = self._prices.of(usage)
            bill.usage = bill.usage.plus(usage)
            metrics.observe_judge(usage.read, usage.written, spent.cost)
            return answer
        except BaseException as error:
            outcome = OUTCOMES.get(type(error), "failed")
            if _unpaid(error):
                spent = NOTHING
            raise
        finally:
            self._observe(peer.base, outcome, self._clock() - started)
            await self._ledger.settle(bill, reservation, spent)

    async def _fetch(
        self, peer: Peer, dialect: OpenAI, body: bytes, count: int, deadline: Deadline
    ) -> Answer | Ungraded:
        content = await peer.fetch(
            dialect.path, body, deadline.within(self._attempt_timeout), most=dialect.most_answer(body, count)
        )
        try:
            return dialect.read(content, count)
        except Ungraded as ungraded:
            return ungraded
        except Unusable as flaw:
            raise Flawed(f"{peer.base} gives unusable answers: {flaw}") from flaw

    def _note_served(self, model: str | None) -> None:
        """Note the model that answered: an alias may change its meaning, and the scores do not compare."""
        if model is not None and model != self._served:
            if self._served is not None:
                log.warning("the language model now answers as %s, no longer as %s", model, self._served)
            self._served = model


async def _outcomes(asking: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    return await asyncio.gather(*asking, return_exceptions=True)


async def _unasked(peer: Peer) -> None:
    """A probe that sends nothing, since every request costs money."""


def _unpaid(error: BaseException) -> bool:
    """Whether a request that ended with this error certainly cost nothing."""
    if isinstance(error, Unavailable):
        return not error.carried_out
    return isinstance(error, Busy) or (isinstance(error, Refused) and not isinstance(error, Flawed))
