"""Filters over the fields of existing collections, as expressions of Milvus.

Expressions differ from our filters in types, lists and missing fields, and between releases; see `filters.bounds`.
Strings are compared whole, so one with a NUL is found only if it is equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from boundarymorph.retrieval.filters import NEVER, UNKNOWN, Bounds, Compare, Exists, Scalar, whole

_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_INTEGERS = {"INT8": 7, "INT16": 15, "INT32": 31, "INT64": 63}
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_ .-]*")  # keys that all releases accept
_EXACT = 2**53  # integers up to this are exact as floats


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a schema. type, element: Milvus's names, such as VARCHAR; element: type of an array's elements.

    size: the dimension of a vector, or the most bytes of a string.
    """

    type: str
    element: str = ""
    nullable: bool = False
    size: int = 0


class Native:
    """Translates filters, given the fields of a collection."""

    def __init__(
        self,
        fields: Mapping[str, Field],
        place: Callable[[tuple[str, ...]], tuple[str, ...] | None],
        *,
        dynamic: bool,
        lite: bool,
    ) -> None:
        """place: as `Payload.path`. dynamic: whether documents have fields beyond the schema. lite: whether it is
        milvus-lite, where in JSON true equals 1 and a comparison of different types is not false."""
        self._fields = fields
        self._place = place
        self._dynamic = dynamic
        self._lite = lite

    def joined(self, by: Literal["and", "or"], parts: Sequence[str]) -> str:
        return str(joined(by, parts))

    def negated(self, part: str) -> str:
        return f"(not {part})"

    def leaf(self, condition: Exists | Compare) -> Bounds[str]:
        path = self._place(condition.path)
        if path is None:
            return NEVER
        name = path[0]
        field = self._fields.get(name)
        if field is None and not self._dynamic:
            return NEVER
        if field is None or field.type == "JSON":
            keys = path if field is None else path[1:]
            if not keys or not all(map(_PLAIN.fullmatch, keys)):
                return UNKNOWN
            place = ("$meta" if field is None else name) + "".join(f'["{key}"]' for key in keys)
            return self._json(place, condition)
        if len(path) > 1:
            return NEVER
        return _nullable(name, field, _scalar(name, field, condition))

    def _json(self, place: str, condition: Exists | Compare) -> Bounds[str]:
        exists = f"(exists {place})"
        if isinstance(condition, Exists):
            return Bounds(True, exists)  # some releases say that a field that is null does not exist
        if condition.type == "null":
            return UNKNOWN
        if condition.comparison in _OPERATORS:
            value = _literal(condition.values[0])
            if value is None or self._lite:
                return Bounds(exists, False)
            compared = f"{place} {_OPERATORS[condition.comparison]} {value}"
            return Bounds(f"({exists} and (({compared}) or (exists {place}[0])))", f"({exists} and ({compared}))")
        literals = [_literal(value) for value in condition.values]
        if None in literals or (self._lite and place.startswith("$meta")):  # milvus-lite finds no lists there
            return Bounds(exists, False)
        equal = [f"({place} == {literal})" for literal in literals]
        listed = f"(json_contains_any({place}, [{', '.join(map(str, literals))}]))"
        met = f"({exists} and {joined('or', [*equal, listed])})"
        return Bounds(met, met if condition.type == "text" or not self._lite else False)


def quoted(text: str) -> str:
    """Quote a string for an expression, in which no other characters need escaping."""
    return '"' + text.translate({ord("\\"): r"\\", ord('"'): r"\"", ord("\n"): r"\n", ord("\r"): r"\r"}) + '"'


def joined(by: str, parts: Sequence[str | bool]) -> str | bool:
    """Join sorted expressions by `and` or `or` into a balanced tree, since parsers limit the depth."""
    absorbing = by == "or"
    if any(part is absorbing for part in parts):
        return absorbing
    pieces = sorted({part for part in parts if isinstance(part, str)})
    while len(pieces) > 1:
        pairs = [pieces[start : start + 2] for start in range(0, len(pieces), 2)]
        pieces = [f"({f' {by} '.join(pair)})" if len(pair) > 1 else pair[0] for pair in pairs]
    return pieces[0] if pieces else not absorbing


def _nullable(name: str, field: Field, bounds: Bounds[str]) -> Bounds[str]:
    """Account for a field that may be null, which is treated like a missing one."""
    if not field.nullable:
        return bounds
    there = f"({name} is not null)"
    return Bounds(joined("and", [there, bounds.possible]), joined("and", [there, bounds.certain]))


def _scalar(name: str, field: Field, condition: Exists | Compare) -> Bounds[str]:
    if isinstance(condition, Exists):
        return Bounds(True, True)
    type, comparison, literals = (
        field.element or field.type,
        condition.comparison,
        list(map(_literal, condition.values)),
    )
    if field.type == "ARRAY" and (comparison != "in" or type not in ("VARCHAR", *_INTEGERS)):
        return UNKNOWN
    match type, condition.type:
        case ("VARCHAR", "text") | ("BOOL", "true" | "false") | ("FLOAT" | "DOUBLE", "number"):
            pass
        case (("INT8" | "INT16" | "INT32" | "INT64"), "number"):
            comparison, numbers = whole(comparison, condition.values)
            limit = 2 ** _INTEGERS[type]
            literals = [str(number) for number in numbers if -limit <= number < limit]
            if comparison != "in" and not literals:  # beyond the type, so all match or none
                return Bounds.exactly((numbers[0] < 0) == (comparison == "gte"))
        case (("VARCHAR" | "BOOL" | "FLOAT" | "DOUBLE" | "INT8" | "INT16" | "INT32" | "INT64"), _):
            return NEVER
        case _:
            return UNKNOWN
    if None in literals:
        return UNKNOWN
    if not literals:
        return NEVER
    listed = ", ".join(map(str, literals))
    if field.type == "ARRAY":
        return Bounds.exactly(f"(array_contains_any({name}, [{listed}]))")
    if comparison != "in":
        operator = _OPERATORS[comparison]
        met: str | bool = f"({name} {operator} {listed})"
        possible: str | bool = f"({name} {operator[0]}= {listed})"  # as Milvus rounds the bound of a FLOAT, too
    elif type in ("FLOAT", "DOUBLE"):
        possible = met = joined("or", [f"({name} == {literal})" for literal in literals])
    else:
        possible = met = f"({name} in [{listed}])"
    return Bounds(possible, False) if type == "FLOAT" else Bounds.exactly(met)


def _literal(value: Scalar) -> str | None:
    """Return a value as a literal; None for numbers that not all releases read alike."""
    match value:
        case str():
            return quoted(value)
        case bool():
            return "true" if value else "false"
        case int() | float() if abs(value) <= _EXACT:
            return repr(value)
        case _:
            return None
