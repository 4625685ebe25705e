"""Splitting texts into requests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import orjson

from boundarymorph.errors import InvalidInput
from boundarymorph.remote.wire import Context


def chunks(context: Context, texts: Sequence[str], most: int, most_bytes: int | None = None) -> list[Sequence[str]]:
    """Split the texts, in order, into parts of similar length.

    A part has at most `most` texts and, unless it is a single text, at most `most_bytes` as JSON, including the
    context, which is sent with each part.

    Raises InvalidInput for text that is not valid Unicode.
    """
    if len(texts) > most:
        parts = -(-len(texts) // most)
    elif most_bytes is not None and len(texts) > 1 and _size([*filter(None, context), *texts]) > most_bytes:
        parts = 2
    else:
        return [texts]
    bounds = [len(texts) * part // parts for part in range(parts + 1)]
    return [chunk for start, end in pairwise(bounds) for chunk in chunks(context, texts[start:end], most, most_bytes)]


def encoded(body: object) -> bytes:
    """Encode as JSON. Raises InvalidInput for text that is not valid Unicode."""
    try:
        return orjson.dumps(body)
    except TypeError as error:
        raise InvalidInput("a text cannot be sent: it contains half a surrogate pair") from error


def _size(texts: Sequence[str]) -> int:
    return len(encoded(texts))
