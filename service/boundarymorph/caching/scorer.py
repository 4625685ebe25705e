"""A scorer that remembers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from boundarymorph.caching import metrics
from boundarymorph.caching.keys import digest
from boundarymorph.caching.read_through import ReadThrough
from boundarymorph.caching.scores import Remembered, ScoreCache
from boundarymorph.scoring.scorer import Scorer, Scores, model_changed

_Key = tuple[str, str, bytes]


class _Recalled(dict[bytes, Remembered]):
    """What is known of a query, and the model whose scores these are."""

    def __init__(self, model: str, scores: Mapping[bytes, Remembered]) -> None:
        super().__init__(scores)
        self.model = model


class CachingScorer:
    """A `RememberingScorer` that asks another one only for what neither the cache nor another request has.

    Of a call in which some pairs were cut, the scorer tells how many and not which: the longest texts are taken to be
    those, so that the number is exact for the same texts, and near for others.
    """

    def __init__(
        self,
        scorer: Scorer,
        cache: ScoreCache,
        *,
        identity: Callable[[], str | None] | None = None,
        writes: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """identity: the scorer's full name, or None as long as it is not known, and then nothing is cached; by default
        `scorer.name`. writes: how many may wait behind the requests' backs. The cache stays its owner's to close.
        """
        self._scorer = scorer
        self._scores = cache
        self._identity = identity or (lambda: scorer.name)
        self._through: ReadThrough[_Key, Remembered] = ReadThrough("scores", writes=writes, clock=clock)
        self._closed = False

    @property
    def name(self) -> str:
        return self._scorer.name

    async def check(self) -> None:
        """As `Scorer.check`: the scorer itself is asked, whatever the cache knows."""
        await self._scorer.check()

    async def recall(self, query: str) -> Mapping[bytes, Remembered]:
        model, name = self._identity(), self._scorer.name
        return {} if model is None else _Recalled(name, await self._scores.recall(model, query))

    async def score(
        self,
        query: str,
        texts: Sequence[str],
        *,
        deadline: float | None = None,
        documents: Sequence[str] | None = None,
        recalled: Mapping[bytes, Remembered] | None = None,
    ) -> Scores:
        if self._closed:
            raise RuntimeError("the scorer is closed")
        model, name = self._identity(), self._scorer.name
        if isinstance(recalled, _Recalled) and recalled.model != name:
            raise model_changed()
        if model is None or not texts:
            return await self._scorer.score(query, texts, deadline=deadline)
        known_as = model
        keys = [(known_as, query, digest(text)) for text in texts]
        places = {key: place for place, key in enumerate(keys)}
        computed_here = 0

        async def read(wanted: Sequence[_Key]) -> Sequence[Remembered | None]:
            if recalled is not None:
                return _looked_up(recalled, [text for _, _, text in wanted])
            return await self._scores.read(known_as, query, [text for _, _, text in wanted])

        async def compute(missing: Sequence[_Key]) -> Sequence[Remembered]:
            nonlocal computed_here
            asked = [texts[places[key]] for key in missing]
            ids = None if documents is None else [documents[places[key]] for key in missing]
            scores = await self._scorer.score(query, asked, deadline=deadline)
            computed_here += len(asked) - scores.cached
            if self._scorer.name != name:
                raise model_changed()
            return _each(scores, asked, ids)

        async def write(computed: Mapping[_Key, Remembered]) -> None:
            if self._identity() == known_as:
                kept = {text: score for (_, _, text), score in computed.items() if 0 <= score.score <= 1}
                await self._scores.write(known_as, query, kept)

        scores = await self._through.get(keys, read=read, compute=compute, write=write, deadline=deadline)
        values = np.array([score.score for score in scores], dtype=np.float64)
        truncated = sum(score.truncated for score in scores)
        return Scores(values, truncated, cached=len(texts) - computed_here, model=name)

    async def close(self) -> None:
        """Finish writing, then close the scorer."""
        self._closed = True
        await self._through.drain()
        await self._scorer.close()


def _looked_up(recalled: Mapping[bytes, Remembered], texts: Sequence[bytes]) -> list[Remembered | None]:
    found = [recalled.get(text) for text in texts]
    missing = found.count(None)
    metrics.count_lookups("scores", hit=len(found) - missing, miss=missing)
    return found


def _each(scores: Scores, texts: Sequence[str], documents: Sequence[str] | None) -> list[Remembered]:
    cut = set(sorted(range(len(texts)), key=lambda place: -len(texts[place]))[: scores.truncated])
    return [
        Remembered(value, place in cut, None if documents is None else documents[place])
        for place, value in enumerate(scores.values.tolist())
    ]
