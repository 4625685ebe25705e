"""The beginnings of long texts: what words are taken from, where whole texts would take too much memory."""

from __future__ import annotations

from collections.abc import Iterable

MOST_CHARACTERS = 2**25  # of all texts of a pool together; reading their words takes some eight times as many bytes


def beginnings(texts: Iterable[str], count: int, most: int = MOST_CHARACTERS) -> list[str]:
    """Return the texts or, if they have more than `most` characters together, the first of each: most / count.

    count: of the texts. They are taken one by one, so no more than that is in memory.
    """
    kept: list[str] = []
    longest, size = None, 0
    for text in texts:
        kept.append(text[:longest])
        size += len(kept[-1])
        if longest is None and size > most:
            longest = max(1, most // count)
            kept = [each[:longest] for each in kept]
    return kept
