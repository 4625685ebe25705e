"""Filter documents by their metadata, with a small JSON language.

    {"language": "en"}                                        a field equals a value
    {"year": {"gte": 1990, "lt": 2000}}                       all of several comparisons of one field
    {"language": "en", "author.name": {"in": ["A", "B"]}}     all of several fields; dots lead into objects or, where
                                                              that leads nowhere, are part of the name
    {"and": [...]}, {"or": [...]}, {"not": {...}}             combine filters

The comparisons are `eq`, `ne`, `in`, `nin`, `gt`, `gte`, `lt`, `lte`, and `exists`. A value is a string, a number, a
boolean, or null, and equals only values of its own type. Numbers compare with numbers, and strings with strings, by
code points. A list matches a comparison if one of its elements does. An object matches none of them. `ne` and `nin`
are the negations of `eq` and `in`, so documents without the field match them. `exists` tests whether the field is
present, even if it is null. `{}` matches everything. A string of the metadata is compared up to its first NUL.

The expressions of a store often mean something else for other types and lists. For a store, a filter becomes two
expressions (`bounds`): one that matches at least, and one that matches at most, the documents that the filter matches.
If they are equal, the store decides; otherwise it selects by the first one, and `Filter.matches` decides here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from reprlib import Repr
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from boundarymorph.errors import InvalidInput, LimitExceeded
from boundarymorph.inference.concurrency import check_awaited

MAX_DEPTH = 8  # nesting of and, or and not
MAX_VALUES = 1_000  # values in all comparisons and lists together
MAX_STRING = 1_024
MOST_SPELLED = 4

Scalar = str | int | float | bool | None

_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
_BRIEFLY = Repr()
_BRIEFLY.maxstring = _BRIEFLY.maxother = _BRIEFLY.maxlong = 60
E = TypeVar("E")


@dataclass(init=False, unsafe_hash=True)
class Filter:
    """A validated filter. Filters that differ only in the order of their fields are equal."""

    condition: Condition

    def __init__(self, filter: object, place: str = "filter") -> None:
        """Parse a decoded JSON value at a place of the request.

        Raises:
            InvalidInput: With the place, if it is malformed.
            LimitExceeded: With the place, if it is too large.
        """
        self.condition = _read(filter, place, 1, _Count())

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        return self.condition.matches(metadata)

    def refuse_everything(self) -> None:
        """Raise InvalidInput if it matches all documents, whatever their metadata."""
        if _always(self.condition) is True:
            raise InvalidInput("filter: it matches all documents; to delete all of them, delete the index")


@dataclass(frozen=True, slots=True)
class AllOf:
    parts: frozenset[Condition]

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        return all(part.matches(metadata) for part in self.parts)


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: frozenset[Condition]

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        return any(part.matches(metadata) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        return not self.part.matches(metadata)


@dataclass(frozen=True, slots=True)
class Exists:
    path: tuple[str, ...]

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        return bool(values_at(metadata, self.path))


@dataclass(frozen=True)
class Compare:
    """Compare a field, or an element of its list, with a value of one `type_of`.

    "in" has several values.
    """

    path: tuple[str, ...]
    type: str
    comparison: str
    values: tuple[Scalar, ...]

    @cached_property
    def _value_set(self) -> frozenset[Scalar]:
        return frozenset(self.values)  # a list of the metadata may have millions of elements to look up

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        for found in values_at(metadata, self.path):
            return any(self._meets(element) for element in (found if isinstance(found, list) else [found]))
        return False

    def _meets(self, value: object) -> bool:
        if isinstance(value, (dict, list)) or type_of(value) != self.type:
            return False
        if isinstance(value, str):
            value = value.partition("\0")[0]
        if self.comparison == "in":
            return value in self._value_set
        return _ORDER[self.comparison](value, self.values[0])


Condition = AllOf | AnyOf | Not | Exists | Compare


def _always(condition: Condition) -> bool | None:
    """Return True for a condition that all metadata meet, False if none do, else None."""
    match condition:
        case Not(part):
            inner = _always(part)
            return None if inner is None else not inner
        case AllOf(parts) | AnyOf(parts):
            found, decisive = {_always(part) for part in parts}, isinstance(condition, AnyOf)
            if decisive in found:
                return decisive
            return None if None in found else not decisive
    return None


@dataclass(slots=True)
class _Count:
    values: int = 0

    def add(self, place: str, values: int = 1) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            raise LimitExceeded(f"{place}: a filter may have at most {MAX_VALUES} values; use fewer")


def _read(filter: object, place: str, depth: int, count: _Count) -> Condition:
    if not isinstance(filter, dict):
        raise InvalidInput(f'{place}: expected an object such as {{"field": value}}, not {_shown(filter)}')
    if depth > MAX_DEPTH:
        raise LimitExceeded(f"{place}: a filter may be nested at most {MAX_DEPTH} deep")
    parts: list[Condition] = []
    for key, value in filter.items():
        count.add(place)
        where = f"{place}.{key}"
        match key:
            case "and" | "or":
                if not isinstance(value, list) or not value:
                    raise InvalidInput(f"{where}: expected a list of at least one filter, not {_shown(value)}")
                each = frozenset(_read(part, f"{where}[{n}]", depth + 1, count) for n, part in enumerate(value))
                parts.append(AllOf(each) if key == "and" else AnyOf(each))
            case "not":
                parts.append(Not(_read(value, where, depth + 1, count)))
            case str():
                parts += _read_field(read_path(key, where), value, where, count)
            case _:
                raise InvalidInput(f"{place}: a field name must be a string, not {_shown(key)}")
    return parts[0] if len(parts) == 1 else AllOf(frozenset(parts))


def _read_field(path: tuple[str, ...], value: object, place: str, count: _Count) -> list[Condition]:
    if not isinstance(value, dict):
        return [_any_of(path, [_scalar(value, place, hint=' or an object such as {"gte": 1}')])]
    if not value:
        raise InvalidInput(f'{place}: expected a comparison such as {{"gte": 1}} in the object')
    conditions: list[Condition] = []
    for comparison, operand in value.items():
        where = f"{place}.{comparison}"
        count.add(where)
        match comparison:
            case "eq" | "ne":
                equal = _any_of(path, [_scalar(operand, where)])
                conditions.append(equal if comparison == "eq" else Not(equal))
            case "in" | "nin":
                if not isinstance(operand, list):
                    raise InvalidInput(f"{where}: expected a list of values, not {_shown(operand)}")
                count.add(where, len(operand))
                among = _any_of(path, [_scalar(each, f"{where}[{number}]") for number, each in enumerate(operand)])
                conditions.append(among if comparison == "in" else Not(among))
            case "gt" | "gte" | "lt" | "lte":
                bound = _scalar(operand, where)
                if bound is None or isinstance(bound, bool):
                    raise InvalidInput(f"{where}: expected a number or a string, not {_shown(operand)}")
                conditions.append(Compare(path, type_of(bound), comparison, (bound,)))
            case "exists":
                if not isinstance(operand, bool):
                    raise InvalidInput(f"{where}: expected true or false, not {_shown(operand)}")
                conditions.append(Exists(path) if operand else Not(Exists(path)))
            case _:
                raise InvalidInput(
                    f"{place}: there is no comparison {_shown(comparison)}; use eq, ne, in, nin, gt, gte, lt, lte or "
                    "exists, and dots in the field's name for an object within the metadata"
                )
    return conditions


def _any_of(path: tuple[str, ...], values: Sequence[Scalar]) -> Condition:
    by_type: dict[str, list[Scalar]] = {}
    for value in values:
        by_type.setdefault(type_of(value), []).append(value)
    parts = [Compare(path, type, "in", tuple(dict.fromkeys(of_type))) for type, of_type in by_type.items()]
    return parts[0] if len(parts) == 1 else AnyOf(frozenset(parts))


def read_path(key: str, place: str) -> tuple[str, ...]:
    """Return the parts of a field's name, between its dots. Raises InvalidInput."""
    path = tuple(key.split("."))
    if not all(path) or len(key) > MAX_STRING or any(letter in '"\\' or letter < " " for letter in key):
        raise InvalidInput(
            f"{place[: MAX_STRING + 100]!r}: the name of a field has 1 to {MAX_STRING} characters, no quotes, "
            "backslashes, or control characters, and something before and after each dot"
        )
    _encodable(key, place)
    return path


def _scalar(value: object, place: str, hint: str = "") -> Scalar:
    if isinstance(value, str):
        _encodable(value, place)
        if len(value) > MAX_STRING or "\0" in value:
            raise InvalidInput(f"{place}: a string has at most {MAX_STRING} characters here, and no NUL")
        return value
    if isinstance(value, (bool, type(None))):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (int, float)):
        raise InvalidInput(f"{place}: a number must be finite and an integer of at most 64 bits, not {_shown(value)}")
    raise InvalidInput(f"{place}: expected a string, a number, true, false, or null{hint}, not {_shown(value)}")


def _encodable(text: str, place: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{place!r} contains half a surrogate pair, which is not a character") from error


def type_of(value: object) -> str:
    """Return text, number, true, false, or null for a value that is not a list or an object."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return "text"
        case _:
            return "number"


def _shown(value: object) -> str:
    shown = _BRIEFLY.repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def values_at(metadata: Mapping[str, Any], path: tuple[str, ...]) -> list[Any]:
    """Return a list of the value at a path; it is empty if there is no value. See `spellings`.

    Raises CallerGone, as filters and boosts may look up millions of values.
    """
    check_awaited()
    for names in spellings(path):
        value: Any = metadata
        for name in names:
            if not isinstance(value, Mapping) or name not in value:
                break
            value = value[name]
        else:
            return [value]
    return []


def spellings(path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the paths that a field may have.

    They lead through objects or, if that leads nowhere, have dots in names, as in metadata that were flattened. A path
    of more than MOST_SPELLED names gives only the whole as one name.
    """
    whole = (".".join(path),)
    if len(path) > MOST_SPELLED:
        return [path, whole]
    split = ((".".join(path[:size]), *rest) for size in range(1, len(path)) for rest in spellings(path[size:]))
    return [*split, whole]


def by_spelling(leaf: Exists | Compare) -> Condition:
    """Return the condition of a field with dots as one of leaves that name a single path each."""
    *others, last = spellings(leaf.path)
    condition: Condition = replace(leaf, path=last)
    for path in reversed(others):
        if isinstance(leaf, Compare):  # the first path with a value counts
            condition = AllOf(frozenset({Not(Exists(path)), condition}))
        condition = AnyOf(frozenset({replace(leaf, path=path), condition}))
    return condition


class Bounds(NamedTuple, Generic[E]):
    """Expressions of a store; True matches all documents, False none.

    Attributes:
        possible: Matches what the condition matches, and perhaps more.
        certain: Matches only documents that the condition matches.
    """

    possible: E | bool
    certain: E | bool

    @classmethod
    def from_expression(cls, expression: E | bool) -> Bounds[E]:
        return cls(expression, expression)


UNKNOWN: Bounds[Any] = Bounds(True, False)
NEVER: Bounds[Any] = Bounds(False, False)


def whole(comparison: str, values: Sequence[Scalar]) -> tuple[Literal["in", "gte", "lte"], list[int]]:
    """Return a comparison with numbers as one with integers that lets the same integers pass."""
    numbers = [value for value in values if isinstance(value, int | float)]
    match comparison:
        case "in":
            return "in", [int(value) for value in numbers if value == int(value)]
        case "gt" | "gte":
            return "gte", [math.ceil(numbers[0]) if comparison == "gte" else math.floor(numbers[0]) + 1]
        case _:
            return "lte", [math.floor(numbers[0]) if comparison == "lte" else math.ceil(numbers[0]) - 1]


class Language(Protocol[E]):
    def leaf(self, condition: Exists | Compare) -> Bounds[E]:
        """Translate the condition of the field at a path, whose names may have dots."""

    def join(self, by: Literal["and", "or"], parts: Sequence[E]) -> E: ...

    def negate(self, part: E) -> E: ...


def bounds(condition: Condition, language: Language[E]) -> Bounds[E]:
    """Translate a condition. See `spellings` for names with dots."""

    def joined(by: Literal["and", "or"], parts: Sequence[E | bool]) -> E | bool:
        absorbing = by == "or"
        if any(part is absorbing for part in parts):
            return absorbing
        rest = [part for part in parts if not isinstance(part, bool)]
        if not rest:
            return not absorbing
        return rest[0] if len(rest) == 1 else language.join(by, rest)

    def inverse(expression: E | bool) -> E | bool:
        return not expression if isinstance(expression, bool) else language.negate(expression)

    def translated(condition: Condition, *, split: bool) -> Bounds[E]:
        match condition:
            case AllOf(parts) | AnyOf(parts):
                by: Literal["and", "or"] = "and" if isinstance(condition, AllOf) else "or"
                inner = [translated(part, split=split) for part in sorted(parts, key=repr)]
                possible, certain = ([each[side] for each in inner] for side in (0, 1))
                return Bounds(joined(by, possible), joined(by, certain))
            case Not(part):
                negated = translated(part, split=split)
                return Bounds(inverse(negated.certain), inverse(negated.possible))
            case Exists() | Compare():
                return translated(by_spelling(condition), split=False) if split else language.leaf(condition)

    return translated(condition, split=True)
