"""Make texts and queries for load tests, and a mix of requests of applications and agents.

index    a new query over an index
pool     a new query over documents in the request
repeat   an earlier request again
deeper   an earlier query with twice the budget, more candidates, and more documents
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import httpx
import orjson

from boundarymorph.cli.demo import docstrings

INDEX = "docstrings"
UPLOAD = 128  # documents per request
MIX = {"index": 0.5, "pool": 0.2, "repeat": 0.2, "deeper": 0.1}
POOL = 50  # documents of a request with a pool
REFUSALS = (429, 503)  # declared refusals come with Retry-After
QUERIES = (
    "read and write compressed archives",
    "work with dates and time zones",
    "parse command line arguments",
)


def passages(count: int, *, words: tuple[int, int] = (20, 140), seed: int = 0) -> list[str]:
    """Return passages of consecutive docstrings.

    Their numbers of words are drawn evenly from the range.
    """
    rng = random.Random(seed)
    vocabulary = itertools.cycle(_words())
    return [" ".join(itertools.islice(vocabulary, rng.randint(*words))) for _ in range(count)]


@cache
def _words() -> Sequence[str]:
    return [word for document in docstrings() for word in document.content.split()]


def queries_of(texts: Sequence[str], seed: int = 0) -> Iterator[str]:
    """Yield endless queries of six words from one text each, which hardly ever repeat."""
    rng = random.Random(seed)
    while True:
        words = rng.choice(texts).split()
        if words:
            start = rng.randrange(max(1, len(words) - 6))
            yield " ".join(words[start : start + 6])


async def fill(client: httpx.AsyncClient, count: int) -> list[str]:
    """Create an index of `count` docstrings, and return their texts."""
    documents = list(itertools.islice(docstrings(), count))
    (await client.put(f"/indexes/{INDEX}")).raise_for_status()
    for start in range(0, len(documents), UPLOAD):
        part = [{"id": one.id, "text": one.text} for one in documents[start : start + UPLOAD]]
        (await client.post(f"/indexes/{INDEX}/documents", json=part)).raise_for_status()
    return [document.text for document in documents]


def requests(
    texts: Sequence[str], fields: Mapping[str, Any], mix: Mapping[str, float] = MIX, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield the bodies of an endless mix of requests over texts.

    A repetition is a new request while there is no earlier one to repeat.

    Args:
        texts: The texts of pools and queries.
        fields: The fields of each new request.
        mix: The shares of requests by kind.
        seed: The seed of the draws.
    """
    rng, queries = random.Random(seed), queries_of(texts, seed)
    earlier: deque[dict[str, Any]] = deque(maxlen=500)  # that may be repeated
    while True:
        (kind,) = rng.choices(list(mix), list(mix.values()))
        if kind in ("repeat", "deeper") and earlier:
            body = dict(rng.choice(earlier))
            if kind == "deeper":
                body |= {"budget": 2 * body["budget"], "depth": 2 * body["depth"], "k": body["k"] * 3 // 2}
        else:
            body = {**fields, "query": next(queries)}
            if kind == "pool":
                del body["depth"]
                body["pool"] = [{"text": text} for text in rng.sample(texts, min(POOL, len(texts)))]
            else:
                body["index"] = INDEX
                earlier.append(body)
        yield body


def outcome(response: httpx.Response, documents: int) -> str:
    """Classify an answer as complete, partial, retrieval_only or refused, or name its mistake.

    `documents` is the number of distinct documents that a set must have.
    """
    if response.status_code in REFUSALS and "retry-after" in response.headers:
        return "refused"
    if response.status_code != 200:
        return f"failed: {response.status_code} {response.text[:200]}"
    answer = orjson.loads(response.content)
    found = {document["id"] for document in answer["documents"]}
    return str(answer["status"]) if len(found) == documents else f"failed: {len(found)} documents, not {documents}"
