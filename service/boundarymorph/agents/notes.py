"""Notes that hold for every answer of an index, which a language model needs to read once."""

from __future__ import annotations

from cachetools import TTLCache

SECONDS = 3_600.0  # after which a note is shown again, as the protocol has no conversations
CALLERS = 10_000  # notes of callers that are remembered
STANDING = {  # slugs of warnings about an index or its models, not about a query
    "approximate-search",
    "calibration-not-used",
    "harmful-scorer",
    "harmful-scorer-not-called",
    "rows-without-id",
    "search-device-not-used",
    "shared-ids",
    "unreadable-artifacts",
    "vectors-without-direction",
}


class ShownNotes:
    """The standing notes that each caller has been shown."""

    def __init__(self) -> None:
        self._shown: TTLCache[tuple[str, str, str], bool] = TTLCache(CALLERS, SECONDS)

    def is_due(self, caller: str, index: str, slug: str) -> bool:
        """Return whether to show the caller a warning about the index.

        A standing warning is remembered as shown.
        """
        if slug not in STANDING:
            return True
        note = (caller, index, slug)
        due = note not in self._shown
        self._shown.setdefault(note, True)
        return due
