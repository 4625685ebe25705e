"""Translating filters to the expressions of a store, which often mean something else for other types and lists.

A filter becomes two expressions: one that matches at least, and one that matches at most, the documents that the
filter matches. If they are equal, the store decides; otherwise it selects by the first one, and `Filter.matches`
decides here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from boundarymorph.retrieval.filters import AllOf, AnyOf, Compare, Condition, Exists, Not, Scalar, by_spelling

E = TypeVar("E")


class Bounds(NamedTuple, Generic[E]):
    """possible: matches all documents that the condition matches, and perhaps others; certain: only such documents.

    True matches every document, False none.
    """

    possible: E | bool
    certain: E | bool

    @classmethod
    def exactly(cls, expression: E | bool) -> Bounds[E]:
        return cls(expression, expression)


UNKNOWN: Bounds[Any] = Bounds(True, False)
NEVER: Bounds[Any] = Bounds(False, False)


def whole(
    comparison: str, values: Sequence[Scalar] | Sequence[Fraction]
) -> tuple[Literal["in", "gte", "lte"], list[int]]:
    """Return a comparison with numbers as one with integers, by which the same integers pass."""
    numbers = [value for value in values if isinstance(value, int | float | Fraction)]
    match comparison:
        case "in":
            return "in", [int(value) for value in numbers if value == int(value)]
        case "gt" | "gte":
            return "gte", [math.ceil(numbers[0]) if comparison == "gte" else math.floor(numbers[0]) + 1]
        case _:
            return "lte", [math.floor(numbers[0]) if comparison == "lte" else math.ceil(numbers[0]) - 1]


class Language(Protocol[E]):
    """The expressions of a store."""

    def leaf(self, condition: Exists | Compare) -> Bounds[E]:
        """Translate the condition of the field at a path, whose names may have dots."""

    def joined(self, by: Literal["and", "or"], parts: Sequence[E]) -> E:
        """Join at least two expressions."""

    def negated(self, part: E) -> E:
        """Return the expression that matches all other documents."""


def bounds(condition: Condition, language: Language[E]) -> Bounds[E]:
    """Translate a condition. See `spellings` for names with dots."""

    def joined(by: Literal["and", "or"], parts: Sequence[E | bool]) -> E | bool:
        absorbing = by == "or"
        if any(part is absorbing for part in parts):
            return absorbing
        rest = [part for part in parts if not isinstance(part, bool)]
        if not rest:
            return not absorbing
        return rest[0] if len(rest) == 1 else language.joined(by, rest)

    def inverse(expression: E | bool) -> E | bool:
        return not expression if isinstance(expression, bool) else language.negated(expression)

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
