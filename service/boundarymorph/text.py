"""What of a text can be read, and the lines and records of files that people hand us."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from boundarymorph.errors import InvalidInput

_WORDS = re.compile(r"[^\W_]")
# Letters and symbols that are drawn as nothing, and the replacement of what could not be decoded.
_INVISIBLE = frozenset("\u115f\u1160\u2800\u3164\uffa0\ufffd")
_VISIBLE_CATEGORIES = "LNPS"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # also how UTF-32 begins, but for zeros
_SURROGATE = re.compile("[\ud800-\udfff]")
_ARRAY = re.compile(r'\[\s*(?:[{"\]]|$)')  # how a JSON array of objects or texts begins, and a query hardly ever


class Record(NamedTuple):
    """A JSON object or a line of text. place: where it is, for messages; number: of its line or element, from 1."""

    place: str
    number: int
    value: dict[str, Any] | str


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


def records_of(file: Iterable[bytes], name: str) -> Iterator[Record]:
    """Yield the JSON objects and the lines of text of a file; of one JSON array, its elements.

    Raises InvalidInput as `lines_of` does, and for what begins like JSON and is none.
    """
    lines = lines_of(file, name)
    for number, line in lines:
        if number == 1 and _ARRAY.match(line):
            yield from _elements("\n".join([line, *(rest for _, rest in lines)]), name)
            return
        place = f"{name}, line {number}"
        yield Record(place, number, _object(line, place) if line.startswith("{") else line)


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        hint = "; write one object a line, as `jq -c .` does" if line == "{" else ""
        raise InvalidInput(f"{place}: not JSON: {error}{hint}") from None
    return value


def _elements(array: str, name: str) -> Iterator[Record]:
    try:
        values = orjson.loads(array)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{name} begins like a JSON array, and is none: {error}") from None
    for number, value in enumerate(values, start=1):
        place = f"{name}, element {number}"
        if not isinstance(value, dict | str):
            raise InvalidInput(f"{place}: neither an object nor a text")
        yield Record(place, number, value)
