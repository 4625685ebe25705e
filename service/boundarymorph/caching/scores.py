"""Scores that are known already, kept by query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

FIELDS = 5_000  # that are recalled of one query at most
DOCUMENT_BYTES = 255  # of a document's id in UTF-8; a score with a longer one is kept without
SECONDS_TO_LIVE = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Remembered:
    """A score in [0, 1]; truncated: whether the pair was cut to fit; document: the id that the text had when scored.

    The id is a hint, where to look: another document may have it now, so a score is only good for a text that has the
    digest it is kept under.
    """

    score: float
    truncated: bool = False
    document: str | None = None


def kept_name(document: str | None) -> bytes | None:
    """An id in UTF-8; None for one that is not kept."""
    if document is None:
        return None
    try:
        name = document.encode()
    except UnicodeEncodeError:
        return None
    return name if len(name) <= DOCUMENT_BYTES else None


class ScoreCache(Protocol):
    """Scores of (query, text) pairs, by model. Calls never raise: trouble is a miss, and counted.

    A cache loses what it likes, but what it gives back is what was written.
    """

    async def recall(self, model: str, query: str) -> Mapping[bytes, Remembered]:
        """All that is known of a query, by the digest of the text, up to FIELDS; which of more is left open."""

    async def read(self, model: str, query: str, text_digests: Sequence[bytes]) -> list[Remembered | None]:
        """n scores in the order of the digests, None where there is none."""

    async def write(self, model: str, query: str, scores: Mapping[bytes, Remembered]) -> None:
        """Keep scores by the digests of their texts, until the query expires, a while after its first write."""
