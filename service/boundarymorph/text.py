"""What of a text can be read, and the lines of files that people hand us."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from boundarymorph.errors import InvalidInput

_WORDS = re.compile(r"[^\W_]")
# Letters and symbols that are drawn as nothing, and the replacement of what could not be decoded.
_INVISIBLE = frozenset("\u115f\u1160\u2800\u3164\uffa0\ufffd")
_VISIBLE_CATEGORIES = "LNPS"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # also how UTF-32 begins, but for zeros
_SURROGATE = re.compile("[\ud800-\udfff]")


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


def without_surrogates(text: str) -> str:
    """Return a text with U+FFFD for each half of a surrogate pair, which is no character."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def lines_of(file: Iterable[bytes], name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty, numbered from 1, without the white space around them.

    They end with a line feed, with or without a carriage return before it, and are UTF-8, with or without a byte order
    mark. name: of the file, for messages. Raises InvalidInput for another encoding.
    """
    for number, line in enumerate(file, start=1):
        if number == 1:
            if line.startswith(_UTF_16):
                raise InvalidInput(f"{name} is in UTF-16; save it as UTF-8")
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            text = line.decode().strip()
        except UnicodeDecodeError:
            raise InvalidInput(f"{name}, line {number}: not UTF-8; save the file as UTF-8") from None
        if text:
            yield number, text
