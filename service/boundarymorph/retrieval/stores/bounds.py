"""Translating filters to the expressions of a store, which often mean something else for other types and lists.

A filter becomes two expressions: one that matches at least, and one that matches at most, the documents that the
filter matches. If they are equal, the store decides; otherwise it selects by the first one, and `Filter.matches`
decides here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from boundarymorph.retrieval.filters import AllOf, AnyOf, Compare, Condition, Exists, Not

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


def whole(condition: Compare) -> tuple[Literal["in", "gte", "lte"], list[int]]:
    """Return a comparison of numbers as one of integers, by which the same integers pass."""
    values = [value for value in condition.values if isinstance(value, int | float)]
    match condition.comparison:
        case "in":
            return "in", [int(value) for value in values if value == int(value)]
        case "gt" | "gte":
            return "gte", [math.ceil(values[0]) if condition.comparison == "gte" else math.floor(values[0]) + 1]
        case _:
            return "lte", [math.floor(values[0]) if condition.comparison == "lte" else math.ceil(values[0]) - 1]


class Language(Protocol[E]):
    """The expressions of a store."""

    def leaf(self, condition: Exists | Compare) -> Bounds[E]:
        """Translate the condition of one field."""

    def joined(self, by: Literal["and", "or"], parts: Sequence[E]) -> E:
        """Join at least two expressions."""

    def negated(self, part: E) -> E:
        """Return the expression that matches all other documents."""


def bounds(condition: Condition, language: Language[E]) -> Bounds[E]:
    """Translate a condition."""

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

    match condition:
        case AllOf(parts) | AnyOf(parts):
            by: Literal["and", "or"] = "and" if isinstance(condition, AllOf) else "or"
            inner: list[Bounds[E]] = [bounds(part, language) for part in sorted(parts, key=repr)]
            return Bounds(joined(by, [each.possible for each in inner]), joined(by, [each.certain for each in inner]))
        case Not(part):
            negated: Bounds[E] = bounds(part, language)
            return Bounds(inverse(negated.certain), inverse(negated.possible))
        case Exists() | Compare():
            return language.leaf(condition)
