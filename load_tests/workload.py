"""A mix of requests of applications and agents, for load tests.

index    a new query over an index
pool     a new query over documents in the request
repeat   an earlier request again
deeper   an earlier query with twice the budget, more candidates and more documents
slow     `index`, sent a piece at a time
abort    `index`, from a caller that disconnects before the answer
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import orjson

from boundarymorph.cli.demo import docstrings

INDEX = "docstrings"
UPLOAD = 128  # documents per request
MIX = {"index": 0.4, "pool": 0.2, "repeat": 0.2, "deeper": 0.1, "slow": 0.05, "abort": 0.05}
SLOW_PIECES, SLOW_PAUSE = 5, 0.2  # of a body that is sent slowly, and seconds between them
ABORT_SECONDS = (0.01, 0.3)  # after which a caller disconnects
REMEMBERED = 500  # requests that may be repeated
REFUSALS = (429, 503)  # declared ones come with Retry-After


@dataclass(frozen=True, slots=True)
class Sizes:
    """Candidates, cross-encoder calls and documents of requests to an index and of those with a pool."""

    depth: int = 1_000
    budget: int = 10
    k: int = 20
    pool: int = 50


@dataclass(frozen=True, slots=True)
class Request:
    """A request and the way to send it. kind: one of MIX."""

    kind: str
    body: dict[str, Any]

    @property
    def pieces(self) -> list[bytes]:
        """Return the pieces in which the body is sent."""
        whole = orjson.dumps(self.body)
        if self.kind != "slow":
            return [whole]
        size = -(-len(whole) // SLOW_PIECES)
        return [whole[start : start + size] for start in range(0, len(whole), size)]

    @property
    def documents(self) -> int:
        """The number of documents that the answer must have, for an index that is large enough."""
        pool = self.body.get("pool")
        return int(min(self.body["k"], len(pool)) if pool is not None else self.body["k"])


class Workload:
    """An endless mix of requests over texts. mix: shares by kind."""

    def __init__(
        self, texts: Sequence[str], *, sizes: Sizes | None = None, mix: dict[str, float] | None = None, seed: int = 0
    ) -> None:
        self._texts = texts
        self._sizes = sizes or Sizes()
        self._mix = MIX if mix is None else mix
        self._rng = random.Random(seed)
        self._queries = queries_of(texts, seed)
        self._earlier: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)

    def draw(self) -> Request:
        """Return the next request, of a random kind by its share."""
        (kind,) = self._rng.choices(list(self._mix), list(self._mix.values()))
        return self.of(kind)

    def of(self, kind: str) -> Request:
        """Return the next request of a kind; one that would repeat an earlier one is new while there is none."""
        sizes = self._sizes
        body: dict[str, Any]
        if kind == "pool":
            texts = self._rng.sample(self._texts, min(sizes.pool, len(self._texts)))
            body = {"pool": [{"text": text} for text in texts], "k": min(sizes.k, sizes.pool)}
        elif kind in ("repeat", "deeper") and self._earlier:
            body = dict(self._rng.choice(self._earlier))
            if kind == "deeper":
                body |= {"budget": 2 * body["budget"], "depth": 2 * body["depth"], "k": body["k"] * 3 // 2}
            return Request(kind, body)
        else:
            body = {"index": INDEX, "depth": sizes.depth, "k": sizes.k}
        body |= {"query": next(self._queries), "budget": sizes.budget}
        if "index" in body:
            self._earlier.append(body)
        return Request(kind, body)

    def patience(self) -> float:
        """Return the seconds after which the next caller disconnects."""
        return self._rng.uniform(*ABORT_SECONDS)


def outcome(status: int, headers: Any, content: bytes, request: Request) -> str:
    """Classify an answer as complete, partial, retrieval_only or refused, or return what is wrong with it."""
    if status in REFUSALS and "retry-after" in headers:
        return "refused"
    if status != 200:
        return f"failed: {status} {content[:200].decode(errors='replace')}"
    answer = orjson.loads(content)
    ids = {document["id"] for document in answer["documents"]}
    if len(ids) != request.documents:
        return f"failed: {len(ids)} documents, not {request.documents}"
    return str(answer["status"])


async def fill(client: httpx.AsyncClient, count: int) -> list[str]:
    """Make an index of so many docstrings, and return their texts."""
    documents = list(itertools.islice(docstrings(), count))
    (await client.put(f"/indexes/{INDEX}")).raise_for_status()
    for start in range(0, len(documents), UPLOAD):
        part = [{"id": one.id, "text": one.text} for one in documents[start : start + UPLOAD]]
        (await client.post(f"/indexes/{INDEX}/documents", json=part)).raise_for_status()
    return [document.text for document in documents]


def texts_of(count: int) -> list[str]:
    """Return the texts of an index that `fill` has made."""
    return [document.text for document in itertools.islice(docstrings(), count)]


def queries_of(texts: Sequence[str], seed: int = 0) -> Iterator[str]:
    """Yield endless queries of six words from one text each, which hardly ever repeat."""
    rng = random.Random(seed)
    while True:
        words = rng.choice(texts).split()
        if words:
            start = rng.randrange(max(1, len(words) - 6))
            yield " ".join(words[start : start + 6])


def quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else float("nan")
