"""Estimates the tokens of texts, and cuts texts to a number of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Up to four letters, three digits or eight spaces count as one token, and so does every other ASCII sign. A character
# of another script counts as many as it has bytes beyond the first, and one that JSON escapes as many as its escape
# has. Tokenizers of language models make fewer tokens of all but rare words.
_TOKEN = re.compile(r"[A-Za-z]{1,4}|\d{1,3}| {2,8}|[!-/:-@\[-`{-~]|[\x00-\x1f\x7f]|[\u0080-\U0010ffff]")
MARK = " …"
LONGEST = 9  # characters of a token with what is not counted beside it


def count(text: str) -> int:
    """Estimate the tokens of a text, rather too high than too low."""
    return sum(_weight(found[0]) for found in _TOKEN.finditer(text))


def exceeds(text: str, most: int) -> bool:
    """Whether a text has more than so many tokens; a long one is not read to its end."""
    return count(text[: LONGEST * (most + 1)]) > most


def cut(text: str, most: int) -> str:
    """Return the text if it has at most so many tokens, else its beginning up to the end of a word, and MARK. Only a
    blank beginning ends with a blank."""
    spent, end = 0, 0
    for found in _TOKEN.finditer(text):
        spent += _weight(found[0])
        if spent > most:
            break
        end = found.end()
    else:
        return text
    head = text[:end]
    if end < len(text) and text[end].isalnum() and (space := max(head.rfind(" "), head.rfind("\n"))) > end // 2:
        head = head[:space]
    return (head.rstrip() or head) + MARK


def shares(lengths: Sequence[int], weights: Sequence[float], most: int) -> list[int]:
    """Divide `most` among texts in proportion to their weights, none getting more than its length; the rest of short
    texts is shared among the others. weights: positive."""
    given = [0] * len(lengths)
    left, weight = most, float(sum(weights))
    for place in sorted(range(len(lengths)), key=lambda place: lengths[place] / weights[place]):
        given[place] = min(lengths[place], int(left * weights[place] / max(weight, weights[place])))
        left -= given[place]
        weight -= weights[place]
    return given


def _weight(token: str) -> int:
    first = token[0]
    if first in '"\\\n\t\r\b\f':
        return 2
    return 5 if first < " " else max(1, len(first.encode()) - 1)
