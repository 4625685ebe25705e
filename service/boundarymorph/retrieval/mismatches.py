"""Detecting filters that compare a field with a type of value that no document has there."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from boundarymorph.retrieval.catalog import Index
from boundarymorph.retrieval.filters import AllOf, AnyOf, Compare, Condition, Not
from boundarymorph.retrieval.retriever import Search

MOST_CHECKS = 5  # searches for a document with the type, each for a single result
ANY_VALUE: dict[str, object] = {"text": {"gte": ""}, "number": {"gte": -sys.float_info.max}}


def mismatches(index: Index, search: Search) -> list[str]:
    """Return a warning for each field that a filter compares with a string or a number, if no document has one there.

    Only the first MOST_CHECKS comparisons are checked.
    """
    if search.condition is None:
        return []
    compared = sorted({(".".join(part.path), part.type) for part in _comparisons(search.condition.condition)})
    warnings = []
    for field, type in [pair for pair in compared if pair[1] in ANY_VALUE][:MOST_CHECKS]:
        if not len(index.retrieve(Search("", 1, search.embedding, {field: ANY_VALUE[type]})).pool):
            noun = "string" if type == "text" else "number"
            warnings.append(f"the filter compares {field!r} with a {noun}, and no document has a {noun} there")
    return warnings


def _comparisons(condition: Condition) -> Iterator[Compare]:
    match condition:
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from _comparisons(part)
        case Not(part):
            yield from _comparisons(part)
        case Compare():
            yield condition
