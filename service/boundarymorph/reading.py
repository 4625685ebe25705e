"""Files and bodies that people hand us: encodings, line ends, compression, and JSON in lines or in an array."""

from __future__ import annotations

import gzip
import re
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from boundarymorph.errors import InvalidInput

Stream = BufferedReader | gzip.GzipFile
GZIP = b"\x1f\x8b"  # the first bytes of a gzip file
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)  # what reading a gzip file raises
AS_UTF8 = "save it as UTF-8, or convert it with iconv"
ONE_A_LINE = "write one JSON object a line, or an array of them"
AS_LINES = (
    "it looks like CSV; convert it to lines of JSON: python3 -c 'import csv, json, sys; "
    "[print(json.dumps(row)) for row in csv.DictReader(sys.stdin)]' < FILE.csv > FILE.ndjson"
)
_OTHER_MARKS = (BOM_UTF16_LE, BOM_UTF16_BE, BOM_UTF32_BE)  # that of UTF-32 LE begins as that of UTF-16 LE
_ARRAY = re.compile(r'\[\s*(?:[{"\]]|$)')  # how a JSON array of objects or texts begins, and a query hardly ever
_CELL = re.compile(r'"?([A-Za-z_][\w.-]*)"?')
_COLUMNS = {"_id", "id", "text", "title", "query", "question", "qid", "query_id", "query-id", "document", "document_id"}
_COLUMNS |= {"doc_id", "docid", "corpus-id", "passage", "grade", "score", "label"}


class Record(NamedTuple):
    """A JSON object or a line of text. place: where it is, for messages; number: of its line or element, from 1."""

    place: str
    number: int
    value: dict[str, Any] | str


@contextmanager
def opened(file: BufferedReader) -> Iterator[Stream]:
    """Yield the content of a file, decompressed if it is gzipped, whatever its name; close it at the end."""
    with file:
        if file.peek(len(GZIP)).startswith(GZIP):
            with gzip.open(file) as unpacked:
                yield unpacked
        else:
            yield file


@contextmanager
def opened_path(path: Path) -> Iterator[Stream]:
    """The same for a path. Raises InvalidInput for what cannot be read, and for a damaged gzip file."""
    try:
        with opened(path.open("rb")) as stream:
            yield stream
    except (OSError, *DAMAGED) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from error


def without_mark(text: bytes, name: str) -> bytes:
    """Return a text without the byte order mark of UTF-8. Raises InvalidInput for that of another encoding."""
    if text.startswith(_OTHER_MARKS):
        raise InvalidInput(f"{name} is in UTF-16 or UTF-32, not in UTF-8; {AS_UTF8}")
    return text.removeprefix(BOM_UTF8)


def complaint(text: bytes) -> str | None:
    """Say why bytes are no text that we read; None if they are."""
    if (at := text.find(b"\0")) >= 0:
        return f"it has a NUL at byte {at + 1:,}, so it is in UTF-16 or no text at all; {AS_UTF8}"
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return (
            f"it is not in UTF-8: byte {error.start + 1:,} is {text[error.start]:#04x}, as in Latin-1 or Windows-1252; "
            f"{AS_UTF8}"
        )
    return None


def lines(stream: Iterable[bytes], name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, stripped, with their numbers.

    Lines end with a line feed, a carriage return, or both; the last one need not. name: of the source, for messages.
    Raises InvalidInput for what is not UTF-8, and for a NUL.
    """
    number = 0
    for block in stream:
        for line in (block if number else without_mark(block, name)).splitlines():
            number += 1
            if (wrong := complaint(line)) is not None:
                raise InvalidInput(f"{name}, line {number}: {wrong}")
            if text := line.removeprefix(BOM_UTF8).decode().strip():  # files that were joined have a mark in between
                yield number, text


def records(stream: Iterable[bytes], name: str) -> Iterator[Record]:
    """Yield the JSON objects and the lines of text of a file; of a JSON array, its elements.

    Raises InvalidInput as `lines` does, for a line that begins like an object and is not JSON, and for CSV.
    """
    numbered = lines(stream, name)
    first = next(numbered, None)
    if first is None:
        return
    if first[1].startswith("["):
        every = [first, *numbered]
        elements = _elements("\n".join(text for _, text in every), name)
        if elements is not None:
            yield from elements
            return
        numbered = iter(every[1:])
    elif is_table(first[1]) and "\t" not in first[1]:
        raise InvalidInput(f"{name}: {AS_LINES}")
    yield _record(*first, name)
    for number, text in numbered:
        yield _record(number, text, name)


def is_table(line: str) -> bool:
    """Whether a first line names the columns of a table: words between commas, semicolons or tabs, one of them ours."""
    for mark in ",;\t":
        cells = [_CELL.fullmatch(cell) for cell in line.strip().split(mark)]
        if len(cells) > 1 and all(cells) and any(cell and cell[1].lower() in _COLUMNS for cell in cells):
            return True
    return False


def _record(number: int, text: str, name: str) -> Record:
    place = f"{name}, line {number}"
    if not text.startswith("{"):
        return Record(place, number, text)
    try:
        return Record(place, number, orjson.loads(text))
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{place} is not JSON: {error}; {ONE_A_LINE}") from None


def _elements(text: str, name: str) -> list[Record] | None:
    """Return the elements of a JSON array; None if it is a text that merely begins with a bracket."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if _ARRAY.match(text):
            raise InvalidInput(f"{name} begins like a JSON array, and is not JSON: {error}") from None
        return None
    places = [f"{name}, element {number}" for number in range(1, len(found) + 1)]
    for place, value in zip(places, found, strict=True):
        if not isinstance(value, dict | str):
            raise InvalidInput(f"{place} is neither an object nor a text")
    return [Record(place, number, value) for number, (place, value) in enumerate(zip(places, found, strict=True), 1)]
