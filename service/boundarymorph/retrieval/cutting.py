"""Cutting an upload into its lines, or the elements of its array, as it arrives."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import AsyncIterable, AsyncIterator
from typing import NamedTuple

from boundarymorph import reading
from boundarymorph.errors import InvalidInput

BLANK = b" \t\r\n"  # of JSON
HEAD_BYTES = 2**12  # within which an array must show itself
_ARRAY = re.compile(rb"\[[ \t\r\n]*[{\]]")
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_OUTSIDE = re.compile(rb'["\[\]{},]')
_QUOTE, _COMMA, _BACKSLASH = b'",\\'


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
