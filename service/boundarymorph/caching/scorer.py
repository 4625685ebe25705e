"""Look up cached scores, and compute the others.

This module alone decides which scores cost no call.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from boundarymorph.caching.scores import CachedScore, ScoreCache, digest
from boundarymorph.errors import BoundaryMorphError, DeadlineExceeded, ScorerUnavailable
from boundarymorph.inference.models import identity_of
from boundarymorph.remote.wire import Span, TokenCounts
from boundarymorph.retrieval.document import Document
from boundarymorph.scoring.scorer import Scorer, Scores, TakesNoInstruction, check_scores
from boundarymorph.telemetry import metrics

CHANGED = "the scorer's model has changed since this request began; try again"  # its scores cannot be compared
_Key = tuple[str, str, bytes]  # model, query, digest of the text
log = logging.getLogger(__name__)


class _Outcome(Enum):
    """An end of a flight without a value: its request was cancelled, or its computation failed."""

    ABANDONED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True, eq=False)
class _Flight:
    """A value that a request is reading or computing; `due` is the deadline of that request."""

    due: float
    landed: asyncio.Future[CachedScore | _Outcome]


@dataclass(frozen=True, slots=True)
class ReadThroughSource:
    """Reads, computes, and writes the values of one call.

    `compute` is called for all missing values, and again for those that another request failed to compute.
    """

    read: Callable[[Sequence[_Key]], Awaitable[Sequence[CachedScore | None]]]
    compute: Callable[[Sequence[_Key]], Awaitable[Sequence[CachedScore]]]
    write: Callable[[Mapping[_Key, CachedScore]], Awaitable[None]]


class ReadThrough:
    """Scores by key, each read and computed by one request at a time (single flight).

    Scores are written in the background, and a flight lasts until its value has been written. It is for use on one
    event loop.
    """

    def __init__(self, writes: int, clock: Callable[[], float]) -> None:
        self._most_writes, self._clock = writes, clock
        self._flights: dict[_Key, _Flight] = {}
        self._writes: set[asyncio.Task[None]] = set()

    async def get(
        self, keys: Sequence[_Key], source: ReadThroughSource, *, deadline: float | None = None
    ) -> list[CachedScore]:
        """Return n values for n keys; equal keys are looked up once.

        Args:
            keys: The keys of the values.
            source: Reads, computes, and writes missing values.
            deadline: Seconds on the clock.

        Raises:
            DeadlineExceeded: If the values are late. Errors of `source.compute` pass through.
        """
        found: dict[_Key, CachedScore] = {}
        wanted = list(dict.fromkeys(keys))
        due = math.inf if deadline is None else deadline
        while wanted:
            followed, led = {}, []
            for key in wanted:
                flight = self._flights.get(key)
                # A request with a later deadline may be queued too far back to finish in time for this one.
                if flight is not None and (flight.due <= due or flight.landed.done()):
                    followed[key] = flight
                else:
                    led.append(key)
            if led:
                found.update(await self._lead(led, due, source))
            if not followed:
                break
            outcomes = await self._follow(followed, deadline)
            failed = [key for key, outcome in outcomes.items() if outcome is _Outcome.FAILED]
            if failed:
                computed = dict(zip(failed, await source.compute(failed), strict=True))
                found.update(computed)
                self._write_later(computed, {}, source)
            wanted = [key for key, outcome in outcomes.items() if outcome is _Outcome.ABANDONED]
            found.update({key: value for key, value in outcomes.items() if not isinstance(value, _Outcome)})
        return [found[key] for key in keys]

    async def drain(self) -> None:
        while self._writes:
            await asyncio.gather(*self._writes)

    async def _lead(self, keys: Sequence[_Key], due: float, source: ReadThroughSource) -> dict[_Key, CachedScore]:
        loop = asyncio.get_running_loop()
        flights: dict[_Key, _Flight] = {key: _Flight(due, loop.create_future()) for key in keys}
        self._flights.update(flights)
        written: dict[_Key, _Flight] = {}
        outcome = _Outcome.FAILED
        try:
            known = await source.read(keys)
            found = {key: value for key, value in zip(keys, known, strict=True) if value is not None}
            self._land({key: flights[key] for key in found}, found)
            missing = [key for key in keys if key not in found]
            if missing:
                computed = dict(zip(missing, await source.compute(missing), strict=True))
                for key, value in computed.items():
                    flights[key].landed.set_result(value)
                found.update(computed)
                written = {key: flights[key] for key in computed}
                self._write_later(computed, written, source)
            return found
        except asyncio.CancelledError:
            outcome = _Outcome.ABANDONED
            raise
        except DeadlineExceeded:
            if due < math.inf:
                outcome = _Outcome.ABANDONED
            raise
        finally:
            self._land({key: flight for key, flight in flights.items() if key not in written}, {}, outcome)

    def _land(
        self,
        flights: Mapping[_Key, _Flight],
        values: Mapping[_Key, CachedScore],
        otherwise: _Outcome = _Outcome.ABANDONED,
    ) -> None:
        """Hand the values to the requests that wait for them, and end the flights."""
        for key, flight in flights.items():
            if not flight.landed.done():
                flight.landed.set_result(values.get(key, otherwise))
            if self._flights.get(key) is flight:
                del self._flights[key]

    async def _follow(
        self, flights: Mapping[_Key, _Flight], deadline: float | None
    ) -> dict[_Key, CachedScore | _Outcome]:
        seconds = None if deadline is None else deadline - self._clock()
        _, late = await asyncio.wait({flight.landed for flight in flights.values()}, timeout=seconds)
        if late:
            raise DeadlineExceeded("the deadline passed while another request was computing the same value")
        return {key: flight.landed.result() for key, flight in flights.items()}

    def _write_later(
        self, values: Mapping[_Key, CachedScore], flights: Mapping[_Key, _Flight], source: ReadThroughSource
    ) -> None:
        if len(self._writes) >= self._most_writes:
            metrics.cache_writes.labels("scores", "dropped").inc(len(values))
            self._land(flights, values)
            return
        task = asyncio.ensure_future(self._write(values, flights, source))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(
        self, values: Mapping[_Key, CachedScore], flights: Mapping[_Key, _Flight], source: ReadThroughSource
    ) -> None:
        try:
            await source.write(values)
        except Exception:
            log.exception("the cache could not write")
        finally:
            self._land(flights, values)


class CachingScorer:
    """A scorer behind a cache.

    It computes only scores that are neither cached nor being computed for another request. The scorer does not report
    which pairs were truncated, so the longest texts are assumed to be truncated.
    """

    def __init__(
        self,
        scorer: Scorer,
        cache: ScoreCache | None = None,
        *,
        writes: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Put a cache before a scorer; the caller closes both.

        At most `writes` writes in the background are pending.
        """
        self.scorer, self.cache = scorer, cache
        self.through = ReadThrough(writes, clock)

    async def close(self) -> None:
        await self.through.drain()


class TaskScores:
    """The scores of one task.

    Attributes:
        reused: Scores of earlier requests by position; they replace calls.
        calls: Number of scores computed for this task.
        cached: Number of scores from the cache or computed for another task.
        requests: Number of requests to the scorer.
        tokens: Tokens that a language model read and wrote for this task.
        failure: As in `Scores`, of the last call.
        spans: As in `Scores`, of all calls.
    """

    def __init__(
        self, caching: CachingScorer, query: str, tenant: str = "", instruction: str | None = None, caller: str = ""
    ) -> None:
        """Start without scores.

        Args:
            caching: The scorer with its cache.
            query: The query of all pairs.
            tenant: Tasks of the same tenant share their scores.
            instruction: The instruction for the scorer, if any.
            caller: The name of the caller.

        Raises:
            TakesNoInstruction: If there is an instruction and the scorer takes none.
        """
        if instruction is not None and not caching.scorer.takes_instruction:
            raise TakesNoInstruction(caching.scorer.name)
        self.reused: Mapping[int, float] = {}
        self.calls = self.cached = self.truncated = self.requests = 0
        self.tokens: TokenCounts | None = None
        self.spans: dict[str, Sequence[Span]] = {}
        self._caching = caching
        self._query = query
        self._tenant, self._instruction, self._caller = tenant, instruction, caller
        self.failure: BoundaryMorphError | None = None
        self._looked_up: Mapping[bytes, CachedScore] | None = None
        self._model: str | None = None

    @property
    def model(self) -> str | None:
        """The full name of the scorer, or None while it is unknown."""
        return identity_of(self._caching.scorer)

    @property
    def _identity(self) -> str | None:
        """Return the name under which these scores are cached now, or None if they are not.

        The name depends on the model, the tenant, and the instruction.
        """
        name = None if self._caching.cache is None else self.model
        if name is not None and self._instruction is not None:
            return f"{name}\0{self._tenant}\0{digest(self._instruction).hex()}"
        return f"{name}\0{self._tenant}" if name is not None and self._tenant else name

    async def look_up(self) -> set[str | None]:
        """Look up all cached scores of the query at once, and return their documents' ids."""
        model, cache, name = self._identity, self._caching.cache, self._caching.scorer.name
        self._looked_up = {}
        if cache is not None and model is not None:
            self._looked_up = await cache.look_up(model, self._query)
            self._model = name
        return {cached.document for cached in self._looked_up.values()}

    def reusable(self, documents: Mapping[int, Document]) -> dict[int, float]:
        scores = self._looked_up or {}
        digests = {position: digest(document.content) for position, document in documents.items()}
        found = {position: scores[text] for position, text in digests.items() if text in scores}
        self.truncated += sum(cached.truncated for cached in found.values())
        return {position: cached.score for position, cached in found.items()}

    async def score(
        self, texts: Sequence[str], *, documents: Sequence[str] | None = None, deadline: float | None = None
    ) -> NDArray[np.float64]:
        """Return n scores in the order of the texts, NaN where the scorer gave none.

        Args:
            texts: The n texts.
            documents: Their ids, which are stored with the scores.
            deadline: Seconds on the clock.

        Raises:
            ScorerUnavailable: If the model has changed since the last call. Errors of the scorer pass through.
        """
        model, cache, scorer = self._identity, self._caching.cache, self._caching.scorer
        if model is None or cache is None or not texts:
            scores = await self._asked(texts, deadline)
            self.calls += len(texts)
            self.truncated += scores.truncated
            self._check_model(scores.model)
            return scores.values
        self._check_model(scorer.name)
        keys = [(model, self._query, digest(text)) for text in texts]
        places = {key: place for place, key in enumerate(keys)}
        computed_here = 0
        own = set[_Key]()

        async def read(wanted: Sequence[_Key]) -> Sequence[CachedScore | None]:
            digests = [text for _, _, text in wanted]
            if self._looked_up is None:
                return await cache.read(model, self._query, digests)
            return metrics.record_lookups("scores", [self._looked_up.get(text) for text in digests])

        async def compute(missing: Sequence[_Key]) -> Sequence[CachedScore]:
            nonlocal computed_here
            asked = [texts[places[key]] for key in missing]
            ids = [None if documents is None else documents[places[key]] for key in missing]
            scores = await self._asked(asked, deadline)
            computed_here += len(asked)
            own.update(missing)
            self._check_model(scorer.name)
            longest_first = sorted(range(len(asked)), key=lambda place: -len(asked[place]))
            cut = set(longest_first[: scores.truncated])
            return [CachedScore(value, place in cut, ids[place]) for place, value in enumerate(scores.values.tolist())]

        async def write(computed: Mapping[_Key, CachedScore]) -> None:
            if self._identity == model:
                kept = {text: score for (_, _, text), score in computed.items() if 0 <= score.score <= 1}
                await cache.write(model, self._query, kept)

        found = await self._caching.through.get(keys, ReadThroughSource(read, compute, write), deadline=deadline)
        # Another task's deadline may have left it without a score, so ask again for this task.
        if unsettled := {key for key, score in zip(keys, found, strict=True) if np.isnan(score.score)} - own:
            settled = dict(zip(unsettled, await compute(list(unsettled)), strict=True))
            found = [settled.get(key, score) for key, score in zip(keys, found, strict=True)]
        self.calls += computed_here
        self.cached += len(texts) - computed_here
        self.truncated += sum(score.truncated for score in found)
        return np.array([score.score for score in found], dtype=np.float64)

    async def _asked(self, texts: Sequence[str], deadline: float | None) -> Scores:
        scorer, instruction = self._caching.scorer, self._instruction
        scores = await scorer.score(self._query, texts, deadline=deadline, instruction=instruction, caller=self._caller)
        scores = check_scores(scores, len(texts), scorer.name)
        self.failure = scores.failure
        self.spans.update(scores.spans)
        if scores.tokens is not None:
            self.tokens = scores.tokens.plus(self.tokens or TokenCounts())
        if texts:
            self.requests += 1
            metrics.scorer_requests.inc()
        return scores

    def _check_model(self, name: str | None) -> None:
        before, self._model = self._model, name or self._model
        if before not in (None, self._model):
            raise ScorerUnavailable(CHANGED, public=CHANGED)
