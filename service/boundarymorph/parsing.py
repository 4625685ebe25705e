"""Parse JSON from callers, and say what is wrong with it."""

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

TIMES, LEAST_BYTES = 15, 32 * 2**20  # most memory of the values of a body: times its size, or this if it is more
OBJECT, ARRAY, ENTRY = 184, 56, 16  # bytes of memory that an object, an array and a value in one take
LONGEST_NAME = 100  # characters of an unknown field that are shown and compared
_ESCAPE = re.compile(
    rb"\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)

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
    r"^[a-z][a-z0-9_]{0,39}$": "must have 1 to 40 of a-z, 0-9 and '_', and begin with a letter",
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


def parse(body: bytes) -> Any:
    """Return the value of a JSON body.

    Raises InvalidInput for what is not JSON, is nested more than 200 deep, or would take far more memory than its size.
    """
    body = reading.without_mark(body, "the body")
    check_memory(body)
    try:
        return from_json(body)
    except ValueError as error:
        repaired = with_whole_characters(body)
        if repaired != body:
            return parse(repaired)
        raise InvalidInput(f"the body is not JSON: {reading.complaint(body) or error}") from None


def check_memory(body: bytes) -> None:
    """Raise InvalidInput for a body of so many small values that they would take TIMES its size."""
    values = OBJECT * body.count(b"{") + ARRAY * body.count(b"[") + ENTRY * body.count(b",")
    if values > max(LEAST_BYTES, TIMES * len(body)):
        raise InvalidInput(
            f"the body has so many small objects and arrays that they would take more than {TIMES} times its "
            f"{len(body):,} bytes; send fewer at a time, and vectors as blocks"
        )


def bound(field: str, value: int, limit: int, unit: str) -> None:
    """Raises LimitExceeded if the value is over the limit."""
    if value > limit:
        raise LimitExceeded(f"{field}: over this service's limit of {limit:,} {unit}: {value:,}")


def with_whole_characters(text: bytes) -> bytes:
    """Return JSON with the escape of U+FFFD for that of each half of a surrogate pair without its other half.

    Whoever cuts a text between the two, as within an emoji, writes such an escape, and strict parsers refuse it.
    """
    return _ESCAPE.sub(lambda escape: rb"\ufffd" if escape.lastgroup == "half" else escape[0], text)
