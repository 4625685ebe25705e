"""Parsing JSON from callers in bounded memory, without keeping other threads waiting for long, and saying what is wrong
with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, from_json

from boundarymorph import reading
from boundarymorph.errors import InvalidInput, LimitExceeded

PIECE_BYTES = 2**18  # parsed at a time, since no other thread runs meanwhile
OBJECT_BYTES, ARRAY_BYTES = 250, 100  # in memory, without what they contain
TIMES, LEAST_BYTES = 15, 32 * 2**20  # most memory of objects and arrays: times the body, or this if it is more
LONGEST_NAME = 100  # characters of an unknown field that are shown and compared
DEEPEST = 200  # nesting, also of `from_json`
_CLOSED_BY = {ord("{"): ord("}"), ord("["): ord("]")}
_BLANK = b" \t\r\n"
_QUOTE, _BACKSLASH = b'"\\'
_STRING = rb'"[^"\\]{0,1024}+(?:\\.[^"\\]{0,1024}+){0,64}+"'
# A short string, an object of scalars and an array of numbers are mostly one token.
_TOKEN = re.compile(
    _STRING + rb'|\{(?:[^"\[\]{}]++|' + _STRING + rb'){0,64}+\}|\[[^"\[\]{}]{0,262144}+\]|["\[\]{}]', re.DOTALL
)
_ESCAPE = re.compile(
    rb"\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_WINDOW = 2**20  # bytes searched for a token at a time


_NAMED = "must have 1 to 64 of a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"
ALLOWED = {  # by the `pattern` of a field
    r"\S": "must have a character that is not white space",
    r"^[a-z0-9][a-z0-9._-]{0,63}$": _NAMED,
    r"^(\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|[0-9a-f:]+)$": "must be the name of a host, its address, "
    "'*.' and a domain, or '*' for all",
    r"^[\w./-]{1,128}$": "must have 1 to 128 letters, digits, '.', '_', '-' and '/'",
    r"^(auto|cpu|cuda(:\d+)?)$": "must be auto, cpu, cuda or cuda:N",
    r"^(cpu|faiss(:\d+)?)$": "must be cpu, faiss or faiss:N",
    r"^[A-Za-z0-9_.-]{1,64}$": "must have 1 to 64 of A-Z, a-z, 0-9, '_', '.' and '-'",
    r"^https?://": "must begin with http:// or https://",
    r"^[A-Za-z_][A-Za-z0-9_]{0,99}$": "must have 1 to 100 of A-Z, a-z, 0-9 and '_', and not begin with a digit",
}


_IN_WORDS = {  # of JSON, by pydantic's type of a mistake
    "missing": "is missing",
    "model_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "list_type": "Input should be an array",
}


def in_words(mistake: ErrorDetails, model: str) -> str:
    """Return pydantic's message about a field in words that need no knowledge of it: with JSON's names of types, with
    what is allowed in place of a regular expression, and with a likely name in place of an unknown one.

    model: the name of the whole, pydantic's `title` of the error.
    """
    if mistake["type"] == "extra_forbidden":
        *path, name = mistake["loc"]
        near = get_close_matches(str(name)[:LONGEST_NAME], _fields_at(model, path), n=1)
        return f"unknown field {str(name)[:LONGEST_NAME]!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    if mistake["type"] == "string_pattern_mismatch":
        return ALLOWED.get(mistake["ctx"]["pattern"], "is not of the form that the documentation describes")
    return _IN_WORDS.get(mistake["type"]) or mistake["msg"].removeprefix("Value error, ")


def _fields_at(model: str, path: Sequence[str | int]) -> list[str]:
    """Return the names of the fields that an object may have at this place of a model of ours."""
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
    """Return the models in the type of a field."""
    waiting: list[Any] = [field.annotation]
    for type_ in waiting:
        waiting += get_args(type_)
    return [found for found in waiting if isinstance(found, type) and issubclass(found, BaseModel)]


def parse(body: bytes, most_numbers: int) -> Any:
    """Return the value of a JSON body, parsing a large one in pieces.

    most_numbers: in an array that has nothing else. Raises InvalidInput for malformed JSON, and LimitExceeded for JSON
    that would take far more memory than the body. If a name occurs twice in a large object, either value may count.
    """
    body = reading.without_mark(body, "the body")
    if len(body) <= PIECE_BYTES:
        return _parsed(body)
    value, start, around = None, 0, list[bytes]()
    for end, still_open in list(_cuts(body, most_numbers)):  # all is counted before anything is built
        text = body[start:end]
        if (start and text.lstrip(_BLANK)[:1] in b"]}") or (still_open and text.rstrip(_BLANK)[-1:] in b"[{"):
            raise InvalidInput("the body is not JSON: a comma has nothing before or after it")
        piece = _parsed(b"".join(around) + text + bytes(_CLOSED_BY[mark[-1]] for mark in reversed(still_open)))
        value = _joined(value, piece, len(around)) if around else piece
        start, around = end + 1, still_open
    return value


def check(body: bytes) -> None:
    """Raise as `parse` does, without parsing, for any number of numbers. Finds only some of what is not JSON."""
    if len(body) > PIECE_BYTES:
        for _ in _cuts(body, len(body)):
            pass


def _parsed(text: bytes) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        repaired = with_whole_characters(text)
        if repaired != text:
            return _parsed(repaired)
        raise InvalidInput(f"the body is not JSON: {reading.complaint(text) or error}") from None


def with_whole_characters(text: bytes) -> bytes:
    """Return JSON with the escape of U+FFFD for that of each half of a surrogate pair without its other half.

    Whoever cuts a text between the two, as within an emoji, writes such an escape, and strict parsers refuse it.
    """
    return _ESCAPE.sub(lambda escape: rb"\ufffd" if escape.lastgroup == "half" else escape[0], text)


def _cuts(body: bytes, most_numbers: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the position of a comma after each piece, and the beginnings of the objects and arrays that are open there;
    finally the end of the body."""
    opened, memory, most = list[bytes](), 0, max(LEAST_BYTES, TIMES * len(body))
    start = position = 0  # of this piece, and after the last token
    name = b'""'
    for begin, end in _tokens(body):
        mark = body[begin : begin + 1]
        if end - position > 2 * most_numbers:
            _check_numbers(body[position:begin], body[begin:end], most_numbers)
        if begin - start >= PIECE_BYTES and opened:
            comma = body.rfind(b",", max(position, start), begin)
            if comma >= 0:
                yield comma, opened.copy()
                start = comma + 1
        if mark == b'"':
            name = body[begin:end]
        elif mark in b"{[":
            memory += OBJECT_BYTES if mark == b"{" else ARRAY_BYTES
            if memory > most:
                raise LimitExceeded(
                    f"the body has too many small objects or arrays: beyond {LEAST_BYTES:,} bytes of memory, they may "
                    f"take {TIMES} times the size of the body"
                )
            if end == begin + 1:
                in_object = opened and opened[-1].endswith(b"{")
                opened.append(name + b":" + mark if in_object else mark)
                if len(opened) > DEEPEST:
                    raise LimitExceeded(f"the body is nested more than {DEEPEST} deep")
        elif not opened or _CLOSED_BY[opened.pop()[-1]] != mark[0]:
            raise InvalidInput(f"the body is not JSON: unexpected {mark.decode()} at byte {begin:,}")
        position = end
    _check_numbers(body[position:], b"", most_numbers)
    yield len(body), []


def _tokens(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield the beginning and the end of each string and bracket, or of a small value as a whole."""
    position = 0
    while position < len(body):
        token = _TOKEN.search(body, position, position + _WINDOW)
        if token is None:
            position += _WINDOW
            continue
        begin, position = token.span()
        if position == begin + 1 and body[begin] == _QUOTE:
            position = _end_of_string(body, begin)
        yield begin, position


def _end_of_string(body: bytes, begin: int) -> int:
    end = begin
    while (end := body.find(b'"', end + 1)) >= 0:
        before = end - 1
        while body[before] == _BACKSLASH:
            before -= 1
        if (end - before) % 2:
            return end + 1
    return len(body)


def _check_numbers(between: bytes, token: bytes, most: int) -> None:
    """Raise LimitExceeded if there are too many numbers between two tokens, or in the second if it is an array."""
    if max(between.count(b","), token.count(b",") if token[:1] == b"[" else 0) >= most:
        raise LimitExceeded(f"the body has a list of more than {most:,} numbers (limits.dimension, limits.pool)")


def _joined(value: Any, piece: Any, depth: int) -> Any:
    """Return a value with its continuation, where so many objects and arrays, one within another, were cut."""
    if type(value) is not type(piece):  # an object has a name twice
        return piece
    if isinstance(value, list):
        if depth > 1:
            value[-1] = _joined(value[-1], piece[0], depth - 1)
            del piece[0]
        value.extend(piece)
    else:
        if depth > 1:
            name = next(iter(piece))
            piece[name] = _joined(value.get(name), piece[name], depth - 1)
        value.update(piece)
    return value
