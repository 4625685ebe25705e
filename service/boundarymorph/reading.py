"""Read files, JSON from callers, and the readable parts of texts."""

from __future__ import annotations

import gzip
import math
import re
import secrets
import unicodedata
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import numpy as np
import orjson
from pydantic import BaseModel, BeforeValidator, Field
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, from_json

from boundarymorph.errors import InvalidInput, LimitExceeded

# Letters and symbols that are drawn as nothing, and the replacement of what could not be decoded.
_INVISIBLE = "\u115f\u1160\u2800\u3164\uffa0\ufffd"
_WORDS = re.compile(rf"[^\W_{_INVISIBLE}]")
_VISIBLE_CATEGORIES = "LNPS"


def has_words(text: str) -> bool:
    """Return whether a text has a letter or digit that is drawn.

    Models have not learned from texts without any.
    """
    return _WORDS.search(text) is not None


def has_content(text: str) -> bool:
    """Return whether a text has a visible letter, digit, punctuation mark or symbol."""
    return has_words(text) or any(
        unicodedata.category(character)[0] in _VISIBLE_CATEGORIES and character not in _INVISIBLE for character in text
    )


MOST_MARKS = 30  # the bound of Unicode's Stream-Safe Text Format (UAX #15); no language needs as many
_DECOMPOSED_MARKS = "\u0f73\u0f75\u0f81"  # marks are in Unicode's order only after decomposition
# All marks of the Basic Multilingual Plane, and other characters of the Supplementary one, so that the scan is fast.
_MARK = "".join(filter(unicodedata.combining, map(chr, range(0x300, 0x10000)))) + _DECOMPOSED_MARKS
_MARK = f"[{_MARK}\U00010000-\U0001efff]"
_MANY_MARKS = re.compile(f"{_MARK}{_MARK}{{{MOST_MARKS},}}")


def compose(text: str) -> str:
    """Return a text in Unicode's form NFC, with at most MOST_MARKS combining marks in a row.

    The time of `unicodedata.normalize` grows with the square of a run of marks and blocks other threads, so no other
    code may normalize a text.
    """
    return unicodedata.normalize("NFC", _MANY_MARKS.sub(_first_marks, text))


def _first_marks(run: re.Match[str]) -> str:
    kept, marks = [], 0
    for character in run[0]:
        marks = marks + 1 if unicodedata.combining(character) or character in _DECOMPOSED_MARKS else 0
        if marks <= MOST_MARKS:
            kept.append(character)
    return "".join(kept)


def readable(query: str) -> str:
    """Return a query. Raises ValueError if it has no content."""
    if not has_content(query):
        raise ValueError("must have something to read, such as a word")
    return query


def blank_positions(texts: Sequence[str]) -> list[int]:
    """Return the positions of the texts without words."""
    return [place for place, text in enumerate(texts) if not has_words(text)]


def quantity(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _decimal(id: object) -> object:
    return str(id) if isinstance(id, int) and not isinstance(id, bool) and -(2**63) <= id < 2**64 else id


Id = Annotated[
    str,
    Field(min_length=1, max_length=512),
    BeforeValidator(_decimal, json_schema_input_type=Annotated[str, Field(min_length=1, max_length=512)] | int),
]
"""The id of a document."""
Stream = BufferedReader | gzip.GzipFile
GZIP = b"\x1f\x8b"  # the first bytes of a gzip file
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)  # the errors of reading a gzip file
AS_UTF8 = "save it as UTF-8, or convert it with 'iconv'"
ONE_A_LINE = "write one JSON object a line, or an array of them"
AS_LINES = (
    "it looks like CSV; convert it to lines of JSON: python3 -c 'import csv, json, sys; "
    "[print(json.dumps(row)) for row in csv.DictReader(sys.stdin)]' < FILE.csv > FILE.ndjson"
)
_OTHER_MARKS = (BOM_UTF16_LE, BOM_UTF16_BE, BOM_UTF32_BE)  # the mark of UTF-32 LE begins with the mark of UTF-16 LE
_ARRAY = re.compile(
    r'\[\s*(?:[{"\]]|$)'
)  # the beginning of a JSON array of objects or texts; a query hardly ever begins so
_CELL = re.compile(r'"?([A-Za-z_][\w.-]*)"?')
_COLUMNS = {"_id", "id", "text", "title", "query", "question", "qid", "query_id", "query-id", "document", "document_id"}
_COLUMNS |= {"doc_id", "docid", "corpus-id", "passage", "grade", "score", "label"}


class Record(NamedTuple):
    """A JSON object or a line of text.

    Attributes:
        place: The file and the place in it, for messages.
        number: The number of its line or element, from 1.
        value: The object or the text.
    """

    place: str
    number: int
    value: dict[str, Any] | str


@contextmanager
def open_stream(file: BufferedReader) -> Iterator[Stream]:
    """Yield the content of a file, decompressed if it is gzipped, and close it at the end."""
    with file:
        if file.peek(len(GZIP)).startswith(GZIP):
            with gzip.open(file) as unpacked:
                yield unpacked
        else:
            yield file


@contextmanager
def open_path(path: Path) -> Iterator[Stream]:
    try:
        with open_stream(path.open("rb")) as stream:
            yield stream
    except (OSError, *DAMAGED) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from error


def without_byte_order_mark(text: bytes, name: str) -> bytes:
    """Return a text without the byte order mark of UTF-8.

    Raises:
        InvalidInput: If the mark belongs to another encoding.
    """
    if text.startswith(_OTHER_MARKS):
        raise InvalidInput(f"{name} is in UTF-16 or UTF-32, not in UTF-8; {AS_UTF8}")
    return text.removeprefix(BOM_UTF8)


def complaint(text: bytes) -> str | None:
    """Return why bytes are not a text that we read, or None if they are."""
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

    Raises:
        InvalidInput: If a line is not text.
    """
    number = 0
    for block in stream:
        for line in (block if number else without_byte_order_mark(block, name)).splitlines():
            number += 1
            if (wrong := complaint(line)) is not None:
                raise InvalidInput(f"{name}, line {number}: {wrong}")
            if text := line.removeprefix(BOM_UTF8).decode().strip():  # joined files have a mark in between
                yield number, text


def records(stream: Iterable[bytes], name: str) -> Iterator[Record]:
    """Yield the JSON objects and the lines of text of a file, or the elements of a JSON array.

    Raises:
        InvalidInput: As `lines` does, for a line that begins like an object and is not JSON, and for CSV.
    """
    numbered = lines(stream, name)
    first = next(numbered, None)
    if first is None:
        return
    if first[1].startswith("["):
        rest = list(numbered)
        elements = _elements("\n".join(text for _, text in (first, *rest)), name)
        if elements is not None:
            yield from elements
            return
        numbered = iter(rest)
    elif is_table(first[1]) and "\t" not in first[1]:
        raise InvalidInput(f"{name}: {AS_LINES}")
    yield _record(*first, name)
    for number, text in numbered:
        yield _record(number, text, name)


def is_table(line: str) -> bool:
    """Return whether a first line names the columns of a table.

    Such a line has words between commas, semicolons, or tabs, and one of them is a field of ours.
    """
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
    """Return the elements of a JSON array, or None for a text that begins with a bracket."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if _ARRAY.match(text):
            raise InvalidInput(f"{name} begins like a JSON array, and is not JSON: {error}") from None
        return None
    elements = [Record(f"{name}, element {number}", number, value) for number, value in enumerate(found, 1)]
    for element in elements:
        if not isinstance(element.value, dict | str):
            raise InvalidInput(f"{element.place} is neither an object nor a text")
    return elements


TIMES, LEAST_BYTES = (
    15,
    32 * 2**20,
)  # a body's values may take this many times its size, or LEAST_BYTES if that is more
OBJECT, ARRAY, ENTRY = 184, 56, 16  # bytes of memory of an object, an array and a value inside
MOST_VALUES = 2**21  # values of a body outside of vectors; one call parses them, and no thread interrupts it
_PARTS = re.compile(  # the parts of JSON: a text, a list of many numbers, or a short piece of the rest
    rb'(?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+"?)|(?P<numbers>\[[-+.0-9eE,\s]{32,1048576}+\])|[^"\[]{1,65536}+|\[',
    re.DOTALL,
)
LONGEST_NAME = 100  # characters of an unknown field that are shown and compared
SYNONYMS = {"documents": "pool", "top_n": "k", "top_k": "k", "filters": "filter"}  # names in requests of other services
_REPLACEMENT, _BACKSLASH = rb"\ufffd", ord("\\")
_PIECE = 2**20  # bytes that are handled in one call of a built-in function, which no thread interrupts
_HEXADECIMAL = np.isin(np.arange(256), np.frombuffer(b"0123456789abcdefABCDEF", np.uint8))
_FIRST_HALVES = np.isin(np.arange(256), np.frombuffer(b"89abAB", np.uint8))  # by the second digit, of D800 to DBFF
_SECOND_HALVES = np.isin(np.arange(256), np.frombuffer(b"cdefCDEF", np.uint8))  # in DC00 to DFFF
ALLOWED = {  # by the `pattern` of a field
    r"\S": "must have a character that is not white space",
    r"^[a-z0-9][a-z0-9._-]{0,63}$": "must have 1 to 64 of a-z, 0-9, '.', '_' and '-', and begin with a letter or digit",
    r"^(\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|[0-9a-f:]+)$": "must be the name of a host, its address, "
    "'*.' and a domain, or '*' for all",
    r"^[\w./-]{1,128}$": "must have 1 to 128 letters, digits, '.', '_', '-' and '/'",
    r"^(auto|cpu|cuda(:\d+)?)$": "must be 'auto', 'cpu', 'cuda', or 'cuda:N'",
    r"^(cpu|faiss(:\d+)?)$": "must be 'cpu', 'faiss', or 'faiss:N'",
    r"^[A-Za-z0-9_.-]{1,64}$": "must have 1 to 64 of A-Z, a-z, 0-9, '_', '.' and '-'",
    r"^https?://": "must begin with http:// or https://",
    r"^[a-z][a-z0-9_]{0,39}$": "must have 1 to 40 of a-z, 0-9 and '_', and begin with a letter",
}
_IN_WORDS = {  # JSON's words, by pydantic's type of a mistake
    "missing": "is missing",
    "model_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "list_type": "Input should be an array",
    "too_short": "the list is empty; give at least one",
    "string_unicode": "is not Unicode text",
}


def mistake_message(mistake: ErrorDetails, model: str) -> str:
    """Return pydantic's message about a field, in words of JSON.

    The message has JSON's names of types, the values that a pattern allows, and a likely name in place of an unknown
    one.
    """
    if mistake["type"] == "extra_forbidden":
        *path, name = mistake["loc"]
        name, fields = str(name), _fields_at(model, path)
        synonym = [SYNONYMS[name]] if SYNONYMS.get(name) in fields else []
        near = synonym or get_close_matches(name[:LONGEST_NAME], fields, n=1)
        return f"unknown field {name[:LONGEST_NAME]!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    if isinstance(given := mistake["input"], float) and not math.isfinite(given):
        return f"must be a finite number, not {given}"  # pydantic says of NaN that it is out of bounds
    if mistake["type"] == "string_pattern_mismatch":
        return ALLOWED.get(mistake["ctx"]["pattern"], "is not of the form that the documentation describes")
    return _IN_WORDS.get(mistake["type"]) or mistake["msg"].removeprefix("Value error, ")


def _fields_at(model: str, path: Sequence[str | int]) -> list[str]:
    """Return the names of the fields that an object may have at this place of our model."""
    within = [found for found in _subclasses(BaseModel) if found.__name__ == model]
    for step in path:
        inner = [
            each for found in within if step in found.model_fields for each in _models(found.model_fields[str(step)])
        ]
        named = [found for found in within if found.__name__ == step]  # one of several that the field takes
        within = inner or named or within  # otherwise a number in a list or a name in a mapping
    return [name for found in within for name in found.model_fields]


def _subclasses(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for inner in model.__subclasses__():
        if inner.__module__.startswith(f"{__package__}."):
            yield inner
        yield from _subclasses(inner)


def _models(field: FieldInfo) -> list[type[BaseModel]]:
    waiting: list[Any] = [field.annotation]
    for type_ in waiting:
        waiting += get_args(type_)
    return [found for found in waiting if isinstance(found, type) and issubclass(found, BaseModel)]


def parse(body: bytes) -> Any:
    """Parse a JSON body.

    Raises:
        InvalidInput: If it is not JSON, is nested more than 200 deep, or needs far more memory than its size suggests.
        LimitExceeded: If it has too many values.
    """
    body = without_byte_order_mark(body, "the body")
    check_memory(body)
    many = body.count(b",") > MOST_VALUES
    try:
        return _parsed_in_pieces(body) if many else from_json(body)
    except LimitExceeded:
        raise
    except ValueError as error:
        repaired = with_whole_characters(body)
        if repaired != body:
            return parse(repaired)
        raise InvalidInput(f"the body is not JSON: {complaint(body) or error}") from None


def _parsed_in_pieces(body: bytes) -> Any:
    """Parse as `from_json` does, but each list of many numbers by itself.

    So other threads run between the lists.

    Raises:
        ValueError: If it is not JSON.
        LimitExceeded: For more than MOST_VALUES values in a list or outside of lists.
    """
    mark = secrets.token_hex(16)
    lists: list[Any] = []
    rest: list[bytes] = []
    outside = 0
    for found in _PARTS.finditer(body):
        part = found[0]
        if found.lastgroup == "numbers":
            _check_values(part.count(b","))
            part, value = b'["%s%d"]' % (mark.encode(), len(lists)), from_json(part)
            lists.append(value)
        elif found.lastgroup is None:
            outside += part.count(b",")
            _check_values(outside)
        rest.append(part)
    return _with_lists(from_json(b"".join(rest)), mark, lists)


def _check_values(count: int) -> None:
    if count > MOST_VALUES:
        raise LimitExceeded(
            f"the body has {count:,} values in a list or outside of vectors, and {MOST_VALUES:,} are allowed; send "
            "fewer at a time"
        )


def _with_lists(value: Any, mark: str, lists: Sequence[Any]) -> Any:
    match value:
        case [str(found)] if found.startswith(mark):
            return lists[int(found.removeprefix(mark))]
        case list():
            value[:] = [_with_lists(each, mark, lists) for each in value]
        case dict():
            for name, each in value.items():
                value[name] = _with_lists(each, mark, lists)
    return value


def check_memory(body: bytes) -> None:
    """Raise InvalidInput for a body whose values would take more than TIMES its size."""
    values = OBJECT * body.count(b"{") + ARRAY * body.count(b"[") + ENTRY * body.count(b",")
    if values > max(LEAST_BYTES, TIMES * len(body)):
        raise InvalidInput(
            f"the body has too many small objects and arrays: in memory they take more than {TIMES} times its "
            f"{len(body):,} bytes; send fewer at a time, and vectors as blocks"
        )


def check_bound(field: str, value: int, limit: int, unit: str) -> None:
    if value > limit:
        raise LimitExceeded(f"{field}: over this service's limit of {limit:,} {unit}: {value:,}")


def with_whole_characters(text: bytes) -> bytes:
    """Return JSON with U+FFFD for each half of a surrogate pair, as in a text cut in an emoji."""
    letters = np.frombuffer(text, np.uint8)
    if len(letters) < len(_REPLACEMENT):
        return text
    begins = (letters[:-5] == _BACKSLASH) & (letters[1:-4] == ord("u")) & (letters[2:-3] | 32 == ord("d"))
    places = np.flatnonzero(begins)
    places = places[_HEXADECIMAL[letters[places + 4]] & _HEXADECIMAL[letters[places + 5]]]
    if (letters[places - 1] == _BACKSLASH).any():
        places = places[np.frombuffer(_without_escaped_backslashes(text), np.uint8)[places] == _BACKSLASH]
    first, second = _FIRST_HALVES[letters[places + 3]], _SECOND_HALVES[letters[places + 3]]
    pairs = np.flatnonzero(first[:-1] & second[1:] & (np.diff(places) == 6))
    halves = first | second
    halves[pairs] = halves[pairs + 1] = False
    if not halves.any():
        return text
    repaired = np.frombuffer(text, np.uint8).copy()
    for offset, letter in enumerate(_REPLACEMENT):
        repaired[places[halves] + offset] = letter
    return repaired.tobytes()


def _without_escaped_backslashes(text: bytes) -> bytes:
    """Return JSON with two NULs for each escaped backslash: no other escape begins there."""
    pieces, held = [], b""
    for start in range(0, len(text), _PIECE):
        piece = (held + text[start : start + _PIECE]).replace(rb"\\", b"\0\0")
        held = piece[-1:] if piece.endswith(b"\\") else b""  # the first half of an escape
        pieces.append(piece[: len(piece) - len(held)])
    return b"".join([*pieces, held])
