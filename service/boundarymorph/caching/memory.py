"""A cache of scores in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from sys import getsizeof

from cachetools import TLRUCache

from boundarymorph.caching.interfaces import FIELDS, SECONDS_TO_LIVE, CachedScore, digest, kept_name
from boundarymorph.telemetry import metrics

_QUERY_BYTES = 550
_SCORE_BYTES = 200


@dataclass(slots=True)
class _Query:
    """The scores of one query in the order written, and when they expire."""

    expires: float
    scores: dict[bytes, CachedScore] = field(default_factory=dict)


class MemoryScoreCache:
    """A `ScoreCache` in this process, for use on one event loop; it evicts whole queries, least recently used first.

    max_bytes: an estimate, slightly more than CPython needs. seconds_to_live: since the first write of a query.
    """

    def __init__(
        self,
        max_bytes: int = 64 * 2**20,
        *,
        seconds_to_live: float = SECONDS_TO_LIVE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds_to_live, self._clock = seconds_to_live, clock
        self._queries: TLRUCache[bytes, _Query] = TLRUCache(
            max_bytes, lambda key, query, now: query.expires, clock, _size
        )

    @property
    def kept_bytes(self) -> int:
        """Estimated size of what is stored."""
        return int(self._queries.currsize)

    async def recall(self, model: str, query: str) -> Mapping[bytes, CachedScore]:
        return dict(self._known(model, query))

    async def read(self, model: str, query: str, text_digests: Sequence[bytes]) -> list[CachedScore | None]:
        known = self._known(model, query)
        return metrics.counted("scores", [known.get(text) for text in text_digests])

    async def write(self, model: str, query: str, scores: Mapping[bytes, CachedScore]) -> None:
        if not scores:
            return
        key = digest(model, query)
        known = self._queries.pop(key, None) or _Query(self._clock() + self._seconds_to_live)
        for text, cached in scores.items():
            known.scores.pop(text, None)
            kept = kept_name(cached.document) is not None
            known.scores[text] = cached if kept else replace(cached, document=None)
        for text in list(known.scores)[:-FIELDS]:
            del known.scores[text]
        with suppress(ValueError):  # larger than the whole cache
            self._queries[key] = known
        metrics.cache_writes.labels("scores", "ok").inc(len(scores))

    def _known(self, model: str, query: str) -> Mapping[bytes, CachedScore]:
        found: _Query | None = self._queries.get(digest(model, query))
        return {} if found is None else found.scores


def _size(query: _Query) -> int:
    ids = (score.document for score in query.scores.values() if score.document is not None)
    return _QUERY_BYTES + len(query.scores) * _SCORE_BYTES + sum(map(getsizeof, ids))
