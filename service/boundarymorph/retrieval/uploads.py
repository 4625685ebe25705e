"""Uploads: cutting them into lines or elements of an array as they arrive, parsing these into documents, and reporting
what is wrong with malformed ones."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph import reading
from boundarymorph.errors import InvalidInput
from boundarymorph.inference.concurrency import Run, in_default_thread
from boundarymorph.reading import has_content
from boundarymorph.retrieval.document import Document

MAX_LINE_BYTES = 4 * 2**20
MAX_ID_LENGTH = 512
PIECE_BYTES = 2**18  # of an array, parsed at a time
UNFINISHED = "the documents are not JSON: the array does not end where the body does"
FIELDS = frozenset({"id", "_id", "text", "title", "metadata", "embedding"})
MAX_FIELD_NAME = 100  # characters kept of an unknown field's name
MAX_FIELDS_NAMED = 5  # in the message about a missing one
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # or the beginning of an unterminated one
_NOT_A_NUMBER = re.compile(rb"\b(NaN|Infinity)\b")
BLANK = b" \t\r\n"  # of JSON
HEAD_BYTES = 2**12  # within which an array must show itself
_ARRAY = re.compile(rb"\[[ \t\r\n]*[{\]]")
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_OUTSIDE = re.compile(rb'["\[\]{},]')
_QUOTE, _COMMA, _BACKSLASH = b'",\\'


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """A document of an upload, from line (or array position) `line`, counted from 1.

    embedding: (d,) float32 unit; end: offset in bytes of the end of its line or element; unknown: names of its
    unknown fields.
    """

    line: int
    document: Document
    embedding: NDArray[np.float32] | None = None
    end: int = field(default=0, compare=False)
    unknown: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line (or array position), counted from 1, without a usable document, and the reason."""

    line: int
    reason: str


async def parse_ndjson(
    chunks: AsyncIterable[bytes],
    dimension: int,
    *,
    max_line_bytes: int = MAX_LINE_BYTES,
    run: Run = in_default_thread,
) -> AsyncIterator[ParsedDocument | BadLine]:
    """Parse one JSON object per line, in UTF-8, or the elements of a JSON array; keeps no more than a chunk and a
    document in memory. Ignores blank lines. Raises InvalidInput as `pieces` does.

    Fields: id (string or integer; or `_id`, as in BEIR), text, title, metadata (object), embedding (`dimension`
    numbers); the names of others are reported. The lines of each chunk are parsed by `run`.
    """
    async for found in pieces(chunks, max_line_bytes):
        for entry in await run(_parse_pieces, found, dimension, max_line_bytes):
            yield entry


async def parse_array(
    body: bytes, dimension: int, *, max_line_bytes: int = MAX_LINE_BYTES, run: Run = in_default_thread
) -> AsyncIterator[ParsedDocument | BadLine]:
    """Parse a JSON array of objects with the fields of `parse_ndjson`, some elements at a time, by `run`.

    Raises InvalidInput if it is not a JSON array, before the first entry.
    """
    body = reading.without_mark(body, "the body").strip(BLANK)
    if not body.startswith(b"["):
        raise InvalidInput("the documents must be a JSON array of objects")
    checks = (_check_pieces(found, max_line_bytes) for found in _in_array(body, max_line_bytes))
    while await run(next, checks, None) is not None:
        pass
    parsed = (_parse_pieces(found, dimension, max_line_bytes) for found in _in_array(body, max_line_bytes))
    while (entries := await run(next, parsed, None)) is not None:
        for entry in entries:
            yield entry


def parse_record(record: object, line: int, dimension: int, end: int = 0) -> ParsedDocument | BadLine:
    """Convert a decoded JSON value to a document, or say what is wrong with it."""
    try:
        if not isinstance(record, dict):
            raise _RecordError("a document must be a JSON object")
        document = Document(_id(record), _text(record), _title(record), _metadata(record))
        unknown = tuple(name[:MAX_FIELD_NAME] for name in record if name not in FIELDS)
        return ParsedDocument(line, document, _embedding(record, dimension), end, unknown)
    except _RecordError as problem:
        return BadLine(line, str(problem))


def _parse_pieces(found: Sequence[Piece], dimension: int, limit: int) -> list[ParsedDocument | BadLine]:
    return [_parse(text, number, dimension, limit, end) for number, text, end in found]


def _parse(line: bytes, number: int, dimension: int, limit: int, end: int = 0) -> ParsedDocument | BadLine:
    if len(line) > limit:
        return BadLine(number, f"longer than {limit} bytes")
    try:
        return parse_record(_loaded(line), number, dimension, end)
    except orjson.JSONDecodeError as error:
        if _NOT_A_NUMBER.search(_STRINGS.sub(b"", line)):
            return BadLine(
                number, "not JSON: NaN and Infinity are no numbers of JSON; write null, or leave the field out"
            )
        return BadLine(number, reading.complaint(line) or f"not JSON: {error}")
    except InvalidInput as error:
        return BadLine(number, str(error))


def _loaded(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        repaired = reading.with_whole_characters(line)
        if repaired == line:
            raise
        return orjson.loads(repaired)


def _in_array(body: bytes, limit: int) -> Iterator[list[Piece]]:
    """Yield the elements of a JSON array, not validated yet, those of PIECE_BYTES at a time."""
    cutter = Elements(limit)
    try:
        for start in range(0, len(body), PIECE_BYTES):
            yield cutter.feed(body[start : start + PIECE_BYTES])
        cutter.finish()
    except InvalidInput:
        raise InvalidInput(UNFINISHED) from None
    if not body.endswith(b"]"):
        raise InvalidInput(UNFINISHED)


def _check_pieces(found: Sequence[Piece], limit: int) -> bool:
    """Return True. Raises InvalidInput for malformed JSON in an element that is not too long."""
    for _, element, _ in found:
        try:
            if len(element) <= limit:
                _loaded(element)
        except orjson.JSONDecodeError as error:
            raise InvalidInput(f"the documents are not JSON: {error}") from error
    return True


class _RecordError(Exception):
    """What is wrong with a record."""


def _missing(record: dict[str, Any], field: str) -> _RecordError:
    there = ", ".join(name[:MAX_FIELD_NAME] for name in list(record)[:MAX_FIELDS_NAMED])
    return _RecordError(f"{field} is missing: a document has id and text; this one has {there or 'nothing'}")


def _id(record: dict[str, Any]) -> str:
    if "id" not in record and "_id" not in record:
        raise _missing(record, "id")
    value = record.get("id", record.get("_id"))
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _RecordError("id must be a string or an integer of at most 64 bits")
    id = str(value)
    if not 1 <= len(id) <= MAX_ID_LENGTH:
        raise _RecordError(f"id must have 1 to {MAX_ID_LENGTH} characters")
    return id


def _text(record: dict[str, Any]) -> str:
    if "text" not in record:
        raise _missing(record, "text")
    value = record["text"]
    if not isinstance(value, str):
        raise _RecordError("text must be a string")
    if not has_content(value) and not has_content(str(record.get("title") or "")):
        raise _RecordError("text has nothing to read and there is no title")
    return value


def _title(record: dict[str, Any]) -> str | None:
    value = record.get("title")
    if value is not None and not isinstance(value, str):
        raise _RecordError("title must be a string")
    return value


def _metadata(record: dict[str, Any]) -> dict[str, Any]:
    value = record.get("metadata")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _RecordError("metadata must be an object")
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError as error:  # orjson reads deeper nesting than it writes
        raise _RecordError(f"metadata cannot be stored: {error}") from None
    return value


def _embedding(record: dict[str, Any], dimension: int) -> NDArray[np.float32] | None:
    value = record.get("embedding")
    if value is None:
        return None
    if not dimension:
        raise _RecordError("it has an embedding, but the index has no vectors; leave it out")
    if not isinstance(value, list) or not all(type(component) in (int, float) for component in value):
        raise _RecordError("embedding must be a list of numbers")
    if len(value) != dimension:
        raise _RecordError(f"embedding has {len(value)} dimensions and the index {dimension}")
    vector = np.array(value, dtype=np.float64)
    with np.errstate(over="ignore"):
        length = np.linalg.norm(vector)
    if not 0 < length < np.inf:
        raise _RecordError("embedding has no direction: its length is zero or not finite")
    return (vector / length).astype(np.float32)


class Piece(NamedTuple):
    """A line or an element. number: from 1; text: of one that is too long, only limit + 1 bytes; end: the offset in
    bytes of its end."""

    number: int
    text: bytes
    end: int


async def pieces(chunks: AsyncIterable[bytes], limit: int) -> AsyncIterator[list[Piece]]:
    """Yield the lines that end in each chunk, without blank ones, or the elements if the upload is a JSON array; keeps
    no more than a chunk and one of them in memory.

    Raises InvalidInput for another encoding than UTF-8 and for CSV, before the first; at the end, for an array that has
    none.
    """
    arriving = aiter(chunks)
    head = b""
    async for chunk in arriving:
        head += chunk
        if len(head) >= HEAD_BYTES or _tells(head):
            break
    cutter = _cutter(head[:HEAD_BYTES], limit)
    if found := cutter.feed(head):
        yield found
    async for chunk in arriving:
        if found := cutter.feed(chunk):
            yield found
    if found := cutter.finish():
        yield found


def _tells(head: bytes) -> bool:
    """Whether the head has its first line and, if that begins an array, also what comes first in it."""
    text = head.removeprefix(BOM_UTF8).lstrip(BLANK)
    return b"\n" in text and (not text.startswith(b"[") or bool(text[1:].strip(BLANK)))


def _cutter(head: bytes, limit: int) -> _Lines | Elements:
    text = reading.without_mark(head, "the upload").lstrip(BLANK)
    first = text.splitlines()[0] if text else b""
    if reading.complaint(first) is None and reading.is_table(first.decode()):
        raise InvalidInput(reading.AS_LINES)
    return Elements(limit) if _ARRAY.match(text) else _Lines(limit)


class _Lines:
    """Cuts at line feeds, carriage returns, or both."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._number, self._line, self._end, self._held = 1, bytearray(), 0, b""

    def feed(self, chunk: bytes) -> list[Piece]:
        """Return the lines that end in the chunk, without blank ones."""
        chunk = self._held + chunk
        self._held = chunk[-1:] if chunk.endswith(b"\r") else b""  # the first half of a line's end, or all of it
        found = []
        for part in chunk[: len(chunk) - len(self._held)].splitlines(keepends=True):
            text = part.rstrip(b"\r\n")
            self._line += text[: self._limit + 1 - len(self._line)]
            self._end += len(part)
            if len(text) < len(part):
                found += self._ended()
        return found

    def finish(self) -> list[Piece]:
        """Return the last line, unless it is blank."""
        self._end += len(self._held)
        return self._ended()

    def _ended(self) -> list[Piece]:
        text = bytes(self._line).removeprefix(BOM_UTF8)  # also between files that were joined
        piece = Piece(self._number, text, self._end)
        self._number += 1
        self._line.clear()
        return [piece] if len(text) > self._limit or text.strip() else []


class Elements:
    """Cuts an array at the commas between its elements, found only by brackets and strings."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._number, self._element, self._offset = 1, bytearray(), 0
        self._depth, self._closed = 0, False
        self._in_string, self._escaped = False, False

    def feed(self, chunk: bytes) -> list[Piece]:
        """Return the elements that end in the chunk. Raises InvalidInput for what comes after the array."""
        found = list[Piece]()
        position = start = 0
        while position < len(chunk) and not self._closed:
            if self._in_string:
                position = self._rest_of_string(chunk, position)
                continue
            mark = _OUTSIDE.search(chunk, position)
            if mark is None:
                break
            position = mark.end()
            byte = chunk[mark.start()]
            if byte == _QUOTE:
                self._in_string = True
            elif byte in b"[{":
                self._depth += 1
                start = position if self._depth == 1 else start
            elif byte in b"]}":
                self._depth -= 1
                self._closed = self._depth == 0
            if self._closed or (byte == _COMMA and self._depth == 1):
                self._take(chunk[start : mark.start()])
                found += self._ended(self._offset + position)
                start = position
        if not self._closed:
            self._take(chunk[start:])
        elif chunk[position:].strip(BLANK):
            raise InvalidInput("the upload has more after the end of its array")
        self._offset += len(chunk)
        return found

    def finish(self) -> list[Piece]:
        """Return nothing. Raises InvalidInput if the array has not ended."""
        if not self._closed:
            raise InvalidInput(f"the array ends within element {self._number:,}; what came before may be written")
        return []

    def _rest_of_string(self, chunk: bytes, position: int) -> int:
        """Return where the string ends, or the chunk."""
        rest = _IN_STRING.match(chunk, position + self._escaped)
        assert rest is not None
        position = rest.end()
        self._escaped = position < len(chunk) and chunk[position] == _BACKSLASH  # the last byte
        self._in_string = position == len(chunk) or self._escaped
        return min(position + 1, len(chunk))

    def _take(self, part: bytes) -> None:
        self._element += part[: self._limit + 1 - len(self._element)]

    def _ended(self, end: int) -> list[Piece]:
        text = bytes(self._element).strip(BLANK)
        self._element.clear()
        if not text and self._closed and self._number == 1:
            return []  # an empty array
        self._number += 1
        return [Piece(self._number - 1, text, end)]
