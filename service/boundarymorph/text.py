"""What of a text can be read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_WORDS = re.compile(r"[^\W_]")
# Letters and symbols that are drawn as nothing, and the replacement of what could not be decoded.
_INVISIBLE = frozenset("\u115f\u1160\u2800\u3164\uffa0\ufffd")
_VISIBLE_CATEGORIES = "LNPS"


def has_content(text: str) -> bool:
    """Return whether there is anything to read: a letter, digit, punctuation mark or symbol that is drawn.

    White space, control and format characters, and marks on nothing are no content.
    """
    found = _WORDS.search(text)
    if found is not None and found[0] not in _INVISIBLE:
        return True
    return any(
        unicodedata.category(character)[0] in _VISIBLE_CATEGORIES and character not in _INVISIBLE for character in text
    )


def blank(texts: Sequence[str]) -> list[int]:
    """Return the places of the texts without content."""
    return [place for place, text in enumerate(texts) if not has_content(text)]


def counted(count: int, one: str, many: str) -> str:
    """Return a number with the words for one or for many."""
    return f"{count:,} {one if count == 1 else many}"
