"""What a cache of scores does, and the digests of texts by which it finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

DIGEST_BYTES = 16


def digest(*texts: str) -> bytes:
    """Return 16 bytes that identify these texts, in this order."""
    # Every str has a digest, even with a lone surrogate; lengths keep ("ab", "c") and ("a", "bc") apart.
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    if len(parts) > 1:
        parts = [len(part).to_bytes(8, "little") + part for part in parts]
    return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()


FIELDS = 5_000  # most that are recalled per query
DOCUMENT_BYTES = 255  # longest document id in UTF-8; a score with a longer one is stored without it
SECONDS_TO_LIVE = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class CachedScore:
    """A score in [0, 1]; truncated: whether the pair was truncated; document: the text's id when it was scored.

    The id is only a hint where to look: another document may have it now, so a score is valid only for a text with the
    digest under which it is stored.
    """

    score: float
    truncated: bool = False
    document: str | None = None


def kept_name(document: str | None) -> bytes | None:
    """Return an id in UTF-8, or None if it is not stored."""
    if document is None:
        return None
    try:
        name = document.encode()
    except UnicodeEncodeError:
        return None
    return name if len(name) <= DOCUMENT_BYTES else None


class ScoreCache(Protocol):
    """Scores of (query, text) pairs, by model. Calls never raise: an error counts as a miss.

    A cache may lose anything, but never returns anything other than what was written.
    """

    async def recall(self, model: str, query: str) -> Mapping[bytes, CachedScore]:
        """Return the known scores of a query by the text's digest: all, or any FIELDS of them if there are more."""

    async def read(self, model: str, query: str, text_digests: Sequence[bytes]) -> list[CachedScore | None]:
        """Return n scores in the order of the digests, None for each that is missing."""

    async def write(self, model: str, query: str, scores: Mapping[bytes, CachedScore]) -> None:
        """Store scores by the digests of their texts; all of a query expire a fixed time after its first write."""
