"""Caches in Redis."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from boundarymorph.caching.interfaces import DIGEST_BYTES, FIELDS, SECONDS_TO_LIVE, CachedScore, Space, Vector, digest
from boundarymorph.caching.link import ForeignKey, RedisLink, Unanswered
from boundarymorph.caching.values import (
    Corrupt,
    Place,
    decode_embedding,
    decode_score,
    encode_embedding,
    encode_score,
)
from boundarymorph.remote.together import together
from boundarymorph.telemetry import metrics
from boundarymorph.telemetry.metrics import Cache

_CONCURRENT = 16  # concurrent commands of one call: in a cluster, a command takes a single key
_UNANSWERED, _FOREIGN = object(), object()

Value = TypeVar("Value")


class _RedisCache:
    """seconds_to_live: since the first write of a key. secret: see `Place`. The caller closes the link."""

    cache: ClassVar[Cache]

    def __init__(
        self,
        link: RedisLink,
        *,
        seconds_to_live: float = SECONDS_TO_LIVE,
        namespace: str | None = None,
        secret: bytes = b"",
    ) -> None:
        self._link = link
        self._milliseconds = max(1, round(1000 * seconds_to_live))
        self._namespace = namespace
        self._secret = secret

    async def _ask(self, command: str, key: bytes, *arguments: bytes | int) -> object:
        try:
            return await self._link.call(self.cache, "read", command, key, *arguments)
        except Unanswered:
            return _UNANSWERED
        except ForeignKey:
            return _FOREIGN


class RedisScoreCache(_RedisCache):
    """A `ScoreCache` in Redis: one hash per query, one field per text.

    Key: boundarymorph:scores:1:{hash of model and query}, with any namespace before `scores`; field: the text's digest.
    """

    cache = "scores"

    async def recall(self, model: str, query: str) -> Mapping[bytes, CachedScore]:
        key = score_key(model, query, self._namespace)
        here = Place(key, self._secret)
        # Unlike HGETALL, HRANDFIELD bounds the size of the answer.
        answer = await self._ask("HRANDFIELD", key, FIELDS, b"WITHVALUES")
        if answer is _UNANSWERED:
            metrics.count_lookups("scores", error=1)
            return {}
        if not isinstance(answer, list) or len(answer) % 2:
            metrics.count_lookups("scores", corrupt=1)
            return {}
        recalled = {}
        for text, value in zip(answer[::2], answer[1::2], strict=True):
            if isinstance(text, bytes) and len(text) == DIGEST_BYTES:
                with suppress(Corrupt):
                    recalled[text] = decode_score(value, here, text)
        metrics.count_lookups("scores", corrupt=len(answer) // 2 - len(recalled))
        return recalled

    async def read(self, model: str, query: str, text_digests: Sequence[bytes]) -> list[CachedScore | None]:
        if not text_digests:
            return []
        key = score_key(model, query, self._namespace)
        here = Place(key, self._secret)
        answer = await self._ask("HMGET", key, *text_digests)
        if not isinstance(answer, list) or len(answer) != len(text_digests):
            answer = [_UNANSWERED if answer is _UNANSWERED else _FOREIGN] * len(text_digests)
        return _read("scores", answer, lambda row, value: decode_score(value, here, text_digests[row]))

    async def write(self, model: str, query: str, scores: Mapping[bytes, CachedScore]) -> None:
        if not scores:
            return
        key = score_key(model, query, self._namespace)
        here = Place(key, self._secret)
        fields = [part for text, score in scores.items() for part in (text, encode_score(score, here, text))]
        try:
            try:
                await self._link.call("scores", "write", "HSET", key, *fields)
            except ForeignKey:
                await self._link.call("scores", "write", "UNLINK", key)
                await self._link.call("scores", "write", "HSET", key, *fields)
            # A later write does not extend the lifetime of an existing key.
            left = await self._link.call("scores", "write", "PTTL", key)
            if not isinstance(left, int) or not 0 <= left <= self._milliseconds:
                await self._link.call("scores", "write", "PEXPIRE", key, self._milliseconds)
        except (Unanswered, ForeignKey):
            metrics.cache_writes.labels("scores", "error").inc(len(scores))
        else:
            metrics.cache_writes.labels("scores", "ok").inc(len(scores))


class RedisEmbeddingCache(_RedisCache):
    """An `EmbeddingCache` in Redis: one string per text, spread over the cluster.

    Key: boundarymorph:embeddings:1:hash of the space:digest of the text, with any namespace before `embeddings`.
    """

    cache = "embeddings"

    async def read(self, space: Space, text_digests: Sequence[bytes]) -> list[Vector | None]:
        keys = _embedding_keys(space, text_digests, self._namespace)
        answers: list[object] = [None] * len(keys)

        async def one(row: int) -> None:
            answers[row] = await self._ask("GET", keys[row])

        await _concurrently(one, len(keys))
        return _read(
            "embeddings",
            answers,
            lambda row, value: decode_embedding(value, Place(keys[row], self._secret), space.dimension),
        )

    async def write(self, space: Space, embeddings: Mapping[bytes, Vector]) -> None:
        keys = _embedding_keys(space, list(embeddings), self._namespace)
        vectors = list(embeddings.values())

        async def one(row: int) -> None:
            key = keys[row]
            try:
                value = encode_embedding(vectors[row], Place(key, self._secret))
                await self._link.call("embeddings", "write", "SET", key, value, b"PX", self._milliseconds)
            except (Unanswered, ForeignKey):
                metrics.cache_writes.labels("embeddings", "error").inc()
            else:
                metrics.cache_writes.labels("embeddings", "ok").inc()

        await _concurrently(one, len(keys))


def score_key(model: str, query: str, namespace: str | None = None) -> bytes:
    """Return the key of a query's scores. In a cluster, the braces put all keys of one query on one node."""
    return f"{_prefix(namespace)}scores:1:{{{digest(model, query).hex()}}}".encode()


def _embedding_keys(space: Space, text_digests: Sequence[bytes], namespace: str | None) -> list[bytes]:
    prefix = f"{_prefix(namespace)}embeddings:1:{space.digest.hex()}:"
    return [(prefix + text.hex()).encode() for text in text_digests]


def _prefix(namespace: str | None) -> str:
    return "boundarymorph:" if namespace is None else f"boundarymorph:{namespace}:"


def _read(cache: Cache, answers: Sequence[object], decode: Callable[[int, object], Value]) -> list[Value | None]:
    """Decode and count the answers; None for each that holds no value."""
    found: list[Value | None] = [None] * len(answers)
    hits = corrupt = errors = 0
    for row, answer in enumerate(answers):
        if answer is _UNANSWERED:
            errors += 1
        elif answer is not None:
            try:
                found[row] = decode(row, answer)
                hits += 1
            except Corrupt:
                corrupt += 1
    misses = len(answers) - hits - corrupt - errors
    metrics.count_lookups(cache, hit=hits, miss=misses, corrupt=corrupt, error=errors)
    return found


async def _concurrently(one: Callable[[int], Coroutine[Any, Any, None]], count: int) -> None:
    """Call it with 0, ..., count - 1, some of them concurrently."""

    async def worker(first: int) -> None:
        for row in range(first, count, _CONCURRENT):
            await one(row)

    await together([worker(first) for first in range(min(count, _CONCURRENT))])
