"""Keep the answers of the tools within a number of tokens."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import orjson

BYTES_PER_TOKEN = 4  # bytes of UTF-8 per token, estimated; few tokenizers need more than twice as many tokens
LEAST = 100  # fewest tokens of a cut text
Answer = Mapping[str, Any]


def size(answer: Answer | str) -> int:
    """Estimate the tokens of an answer, or of a part, as it is sent."""
    return len(orjson.dumps(answer)) // BYTES_PER_TOKEN + 1


def truncate(text: str, tokens: int) -> str:
    """Return a text, cut at a blank if it has more than this many tokens, by estimate."""
    most = BYTES_PER_TOKEN * tokens
    head = text[:most].encode()[:most].decode(errors="ignore")
    end = max(head.rfind(" "), head.rfind("\n")) + 1
    return head[:end] if len(head) < len(text) and end > len(head) // 2 else head


def fit_documents(documents: Iterable[Answer], tokens: int) -> list[Answer]:
    """Return the leading documents that fit into an estimated number of tokens.

    A text that is longer than the remaining tokens is cut to half of them, so that shorter texts after it stay whole.
    `next_offset` is the position at which a cut text continues.
    """
    kept = []
    for document in documents:
        tokens -= size({**document, "text": ""})
        if tokens < LEAST:
            break
        if (text := truncate(document["text"], tokens)) != document["text"]:
            text = truncate(text, max(LEAST, tokens // 2))
            document = {**document, "text": text, "next_offset": len(text)}
        tokens -= size(text)
        kept.append(document)
    return kept


def fit_indexes(indexes: Sequence[Answer], tokens: int) -> list[Answer]:
    """Return the indexes whose names fit into an estimated number of tokens.

    The first of them keep their descriptions and fields.
    """
    bare = [{"name": index["name"], "documents": index["documents"]} for index in indexes]
    sizes = list(accumulate(map(size, bare), initial=0))
    count = bisect(sizes, tokens) - 1
    room, kept = tokens - sizes[count], []
    for index, short in zip(indexes[:count], bare, strict=False):
        room -= size(index) - size(short)
        kept.append(index if room >= 0 else short)
    return kept
