"""Define the protocol of score caches, and one in the memory of this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from sys import getsizeof
from typing import TYPE_CHECKING, Protocol

from boundarymorph.telemetry import metrics

if TYPE_CHECKING:  # the library does not have them
    from cachetools import TLRUCache

DIGEST_BYTES = 16


def digest(*texts: str) -> bytes:
    """Return 16 bytes that identify these texts, in this order."""
    # Every str has a digest, even with a lone surrogate; lengths keep ("ab", "c") and ("a", "bc") apart.
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    if len(parts) > 1:
        parts = [len(part).to_bytes(8, "little") + part for part in parts]
    return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()


FIELDS = 5_000  # most scores in a look-up of a whole query
DOCUMENT_BYTES = 255  # longest document id in UTF-8; a score with a longer one is stored without it
SECONDS_TO_LIVE = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class CachedScore:
    """A score that a cache holds.

    Attributes:
        score: The score in [0, 1].
        truncated: Whether the pair was truncated.
        document: The text's id when it was scored, a hint for finding it; the score is valid for any text with the
            digest under which it is stored.
    """

    score: float
    truncated: bool = False
    document: str | None = None


def kept_name(document: str | None) -> bytes | None:
    if document is None:
        return None
    try:
        name = document.encode()
    except UnicodeEncodeError:
        return None
    return name if len(name) <= DOCUMENT_BYTES else None


class ScoreCache(Protocol):
    """Scores of (query, text) pairs, by model.

    Calls never raise: errors count as misses. A cache may lose anything.
    """

    async def look_up(self, model: str, query: str) -> Mapping[bytes, CachedScore]:
        """Return the cached scores of a query by the text's digest; of many, any FIELDS of them."""

    async def read(self, model: str, query: str, text_digests: Sequence[bytes]) -> list[CachedScore | None]:
        """Return n scores in the order of the digests, with None for each that is missing."""

    async def write(self, model: str, query: str, scores: Mapping[bytes, CachedScore]) -> None:
        """Store scores by the digests of their texts.

        All scores of a query expire a fixed time after its first write.
        """


_QUERY_BYTES = 550
_SCORE_BYTES = 200


@dataclass(slots=True)
class _Query:
    expires: float
    scores: dict[bytes, CachedScore] = field(default_factory=dict)


class MemoryScoreCache:
    """A `ScoreCache` in this process, for one event loop.

    It evicts whole queries, least recently used first.
    """

    def __init__(
        self,
        max_bytes: int = 64 * 2**20,
        *,
        seconds_to_live: float = SECONDS_TO_LIVE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set the estimated bytes to hold, and the lifetime of a query since its first write."""
        from cachetools import TLRUCache

        self._seconds_to_live, self._clock = seconds_to_live, clock
        self._queries: TLRUCache[bytes, _Query] = TLRUCache(
            max_bytes, lambda key, query, now: query.expires, clock, _size
        )

    async def look_up(self, model: str, query: str) -> Mapping[bytes, CachedScore]:
        return dict(self._known(model, query))

    async def read(self, model: str, query: str, text_digests: Sequence[bytes]) -> list[CachedScore | None]:
        known = self._known(model, query)
        return metrics.record_lookups("scores", [known.get(text) for text in text_digests])

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
