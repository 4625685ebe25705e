"""Known scores, and computing the others. This module alone decides which scores cost no call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from boundarymorph.caching.interfaces import CachedScore, ScoreCache, digest
from boundarymorph.caching.read_through import ReadThrough, Source
from boundarymorph.errors import BoundaryMorphError, CostCeiling
from boundarymorph.inference.models import identity_of
from boundarymorph.retrieval.document import Document
from boundarymorph.scoring.bill import Bill
from boundarymorph.scoring.scorer import PricedScorer, Scorer, Scores, TakesNoInstruction, model_changed
from boundarymorph.scoring.trips import Trips
from boundarymorph.telemetry import metrics

_Key = tuple[str, str, bytes]


class KnownScores:
    """A scorer behind a cache: it computes only what is neither cached nor being computed for another request.

    Without a cache it computes everything. The scorer reports how many pairs of a call were truncated, but not which;
    the longest texts are assumed to be those, so the count is exact if the same texts recur, and otherwise close.
    """

    def __init__(
        self,
        scorer: Scorer,
        cache: ScoreCache | None = None,
        *,
        trips: Trips | None = None,
        writes: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """trips: to the scorer, by default cheap ones. writes: most pending background writes. The caller closes the
        scorer and the cache."""
        self.scorer = scorer
        self.cache = cache
        self.trips = trips or Trips()
        self.clock = clock
        self.through: ReadThrough[_Key, CachedScore] = ReadThrough("scores", writes=writes, clock=clock)

    def of_task(self, query: str, caller: str = "", tenant: str = "", instruction: str | None = None) -> TaskScores:
        """Return the scores of one task. caller: who is charged if they cost money. tenant: whose scores are known,
        since a known score says that somebody has the text. instruction: for the scorer, part of what a score is known
        by. Raises TakesNoInstruction."""
        if instruction is not None and not self.scorer.takes_instruction:
            raise TakesNoInstruction(self.scorer.name)
        return TaskScores(self, query, caller, tenant, instruction)

    @property
    def model(self) -> str | None:
        """The full name of the scorer; None while it is unknown."""
        return identity_of(self.scorer)

    def identity(self, tenant: str, instruction: str | None = None) -> str | None:
        """Return the name under which scores of a tenant and an instruction are cached now; None if they are not."""
        name = None if self.cache is None else self.model
        if name is not None and instruction is not None:
            return f"{name}\0{tenant}\0{digest(instruction).hex()}"
        return f"{name}\0{tenant}" if name is not None and tenant else name

    async def close(self) -> None:
        """Wait for pending writes."""
        await self.through.drain()


class TaskScores:
    """The scores of one task, and what they cost.

    reused: by position, scores from earlier requests, known before the first round; they replace calls.
    calls: requested scores that the cross-encoder computed for this task; cached: those that came from the cache or
    from another task computing them. truncated: of all three, pairs that were truncated to fit. bill: what a language
    model charged to this task, None for other scorers. fare: what the trips to the scorer cost. failure: see `Scores`;
    that of the last call.
    """

    def __init__(
        self, known: KnownScores, query: str, caller: str = "", tenant: str = "", instruction: str | None = None
    ) -> None:
        self.reused: Mapping[int, float] = {}
        self.calls = self.cached = self.truncated = 0
        self._known = known
        self._query = query
        self._tenant, self._instruction = tenant, instruction
        self.bill = Bill(caller) if isinstance(known.scorer, PricedScorer) else None
        self.fare = known.trips.fare(query, [])
        self.failure: BoundaryMorphError | None = None
        self._recalled: Mapping[bytes, CachedScore] | None = None
        self._model: str | None = None

    @property
    def model(self) -> str | None:
        """The name of the scorer; None while it is unknown."""
        return self._known.model

    @property
    def trips(self) -> Trips:
        """To the scorer."""
        return self._known.trips

    @property
    def _identity(self) -> str | None:
        return self._known.identity(self._tenant, self._instruction)

    async def recall(self) -> set[str | None]:
        """Look up all known scores of the query, so that no round waits for the cache.

        Returns the ids that the documents with these texts had when they were scored.
        """
        model, cache = self._identity, self._known.cache
        if cache is None or model is None:
            self._recalled = {}
        else:
            name = self._known.scorer.name
            self._recalled = await cache.recall(model, self._query)
            self._model = name
        return {cached.document for cached in self._recalled.values()}

    def reusable(self, documents: Mapping[int, Document]) -> dict[int, float]:
        """Return the recalled scores of documents, by position, whose text has not changed since. Those of truncated
        pairs count towards `truncated`."""
        recalled = self._recalled or {}
        digests = {position: digest(document.content) for position, document in documents.items()}
        found = {position: recalled[text] for position, text in digests.items() if text in recalled}
        self.truncated += sum(cached.truncated for cached in found.values())
        return {position: cached.score for position, cached in found.items()}

    async def score(
        self, texts: Sequence[str], *, documents: Sequence[str] | None = None, deadline: float | None = None
    ) -> NDArray[np.float64]:
        """Return n scores in the order of the texts, NaN where the scorer gave none. documents: n ids, stored with the
        scores.

        Raises what the scorer raises, and ScorerUnavailable if the scores come from another model than earlier ones,
        since they are not comparable.
        """
        model, cache, scorer = self._identity, self._known.cache, self._known.scorer
        if model is None or cache is None or not texts:
            scores = await self._asked(texts, deadline)
            self._count(len(texts), scores.cached, scores.truncated)
            self._check_model(scores.model)
            return scores.values
        self._check_model(scorer.name)
        keys = [(model, self._query, digest(text)) for text in texts]
        places = {key: place for place, key in enumerate(keys)}
        computed_here = 0
        own = set[_Key]()

        async def read(wanted: Sequence[_Key]) -> Sequence[CachedScore | None]:
            digests = [text for _, _, text in wanted]
            if self._recalled is None:
                return await cache.read(model, self._query, digests)
            return metrics.counted("scores", [self._recalled.get(text) for text in digests])

        async def compute(missing: Sequence[_Key]) -> Sequence[CachedScore]:
            nonlocal computed_here
            asked = [texts[places[key]] for key in missing]
            ids = [None if documents is None else documents[places[key]] for key in missing]
            scores = await self._asked(asked, deadline)
            computed_here += len(asked) - scores.cached
            own.update(missing)
            self._check_model(scorer.name)
            longest_first = sorted(range(len(asked)), key=lambda place: -len(asked[place]))
            cut = set(longest_first[: scores.truncated])
            return [CachedScore(value, place in cut, ids[place]) for place, value in enumerate(scores.values.tolist())]

        async def write(computed: Mapping[_Key, CachedScore]) -> None:
            if self._identity == model:
                kept = {text: score for (_, _, text), score in computed.items() if 0 <= score.score <= 1}
                await cache.write(model, self._query, kept)

        found = await self._known.through.get(keys, Source(read, compute, write), deadline=deadline)
        # Another task may have got no score because of its deadline or its cost ceiling: ask again for this one.
        if unsettled := {key for key, score in zip(keys, found, strict=True) if np.isnan(score.score)} - own:
            settled = dict(zip(unsettled, await compute(list(unsettled)), strict=True))
            found = [settled.get(key, score) for key, score in zip(keys, found, strict=True)]
        self._count(len(texts), len(texts) - computed_here, sum(score.truncated for score in found))
        return np.array([score.score for score in found], dtype=np.float64)

    async def _asked(self, texts: Sequence[str], deadline: float | None) -> Scores:
        scorer, instruction = self._known.scorer, self._instruction
        paid = self.trips.affordable(self.fare, self._query, texts)
        over = _over(self.trips.price.ceiling) if paid < len(texts) else None
        if over is not None and not paid:
            raise over
        texts, unpaid = texts[:paid], len(texts) - paid
        begin = self._known.clock()
        if self.bill is not None and isinstance(scorer, PricedScorer):
            scores = await scorer.score_for(self.bill, self._query, texts, deadline=deadline, instruction=instruction)
        else:
            scores = await scorer.score(self._query, texts, deadline=deadline, instruction=instruction)
        self.failure = scores.failure
        if texts:
            fare = self.trips.fare(self._query, texts)
            self.fare = self.fare.plus(fare)
            self.trips.clock.took(len(texts), self._known.clock() - begin, scores.server)
            metrics.observe_trip(fare.units, fare.cost)
        if over is None:
            return scores
        self.failure = over
        return replace(scores, values=np.append(scores.values, np.full(unpaid, np.nan)))

    def _count(self, scored: int, cached: int, truncated: int) -> None:
        self.calls += scored - cached
        self.cached += cached
        self.truncated += truncated

    def _check_model(self, name: str | None) -> None:
        before, self._model = self._model, name or self._model
        if before not in (None, self._model):
            raise model_changed()


def _over(ceiling: float | None) -> CostCeiling:
    """Return the error of scores that would cost too much, and count it."""
    metrics.cost_refused.labels("ceiling").inc()
    message = f"the scores of a query may cost {ceiling:g} at most (scorer.price.ceiling); ask for fewer calls"
    return CostCeiling(message, retry_after=math.inf, public=message)
