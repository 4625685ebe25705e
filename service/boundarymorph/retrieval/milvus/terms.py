"""Filters inside Milvus, with exactly the meaning that they have elsewhere (`filters`).

Expressions of Milvus over JSON differ from our filters in types, lists and missing fields. So each document has two
additional fields, derived from its metadata, only for filters:

    terms    int64 hashes, one for each (path, "exists"), (path, type) and (path, type, value) in the metadata
    bounds   by path and type the smallest and the greatest string or number, as text with the same order

Equality means that a term is present; "some element is at least x" means that the greatest one is. A false positive
requires a collision of 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from boundarymorph.retrieval.filters import (
    MAX_STRING,
    AllOf,
    AnyOf,
    Compare,
    Condition,
    Exists,
    Not,
    Scalar,
    by_spelling,
    type_of,
)
from boundarymorph.retrieval.milvus.native import joined

_ALWAYS, _NEVER = 'id != ""', 'id == ""'
_COMPARISONS = {"gt": (">", "greatest"), "gte": (">=", "greatest"), "lt": ("<", "least"), "lte": ("<=", "least")}
_ORDERED = ("text", "number")


class Terms(NamedTuple):
    """What is stored for filters of one document's metadata."""

    terms: list[int]
    bounds: dict[str, str]


def terms_of(metadata: Mapping[str, Any]) -> Terms:
    """Return the terms and bounds of metadata, which must be a decoded JSON object."""
    terms: set[int] = set()
    sorted_as: dict[str, list[str]] = {}
    for path, value in _fields(metadata):
        terms.add(_hash(path, "exists"))
        for element in value if isinstance(value, list) else [value]:
            if isinstance(element, (dict, list)):
                continue
            type = type_of(element)
            terms |= {_hash(path, type), _hash(path, type, _sortable(element))}
            if type in _ORDERED:
                sorted_as.setdefault(_key(path, type), []).append(_sortable(element))
    bounds = {}
    for key, values in sorted_as.items():
        bounds[f"{key}_least"], bounds[f"{key}_greatest"] = min(values), max(values)
    return Terms(sorted(terms), bounds)


def expression(condition: Condition, *, split: bool = True) -> str:
    """Translate a filter to an expression over `terms` and `bounds`, which contains digits but no text of a caller.

    split: whether a name with dots may be a path; see `filters.by_spelling`.
    """
    match condition:
        case AllOf(parts):
            return _joined("and", _ALWAYS, [expression(part, split=split) for part in parts])
        case AnyOf(parts):
            return _joined("or", _NEVER, [expression(part, split=split) for part in parts])
        case Not(part):
            return f"(not {expression(part, split=split)})"
        case Exists(path) | Compare(path) if split and len(path) > 1:
            return expression(by_spelling(condition), split=False)
        case Exists(path):
            return _has(_hash(path, "exists"))
        case Compare(path, type, "in", values):
            return _has(*(_hash(path, type, _sortable(value)) for value in values))
        case Compare(path, type, comparison, (value, *_)):
            operator, bound = _COMPARISONS[comparison]
            # Without such a bound, a comparison is neither true nor false for Milvus.
            there = _has(_hash(path, type))
            return f'({there} and (bounds["{_key(path, type)}_{bound}"] {operator} "{_sortable(value)}"))'
    raise AssertionError(condition)


def _has(*terms: int) -> str:
    return f"(array_contains_any(terms, [{', '.join(map(str, terms))}]))"


def _joined(by: str, empty: str, parts: Sequence[str]) -> str:
    return str(joined(by, parts)) if parts else f"({empty})"


def _fields(metadata: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every field with its path, including those within objects."""
    for name, value in metadata.items():
        path = (*above, name)
        yield path, value
        if isinstance(value, dict):
            yield from _fields(value, path)


def _sortable(value: Scalar) -> str:
    """Return text that is equal for equal values of one type, has their order byte by byte, and needs no escaping.

    Strings count only up to a NUL, and only as far as they can differ from an operand of a filter.
    """
    match value:
        case str():
            return "x" + value.partition("\0")[0][: MAX_STRING + 1].encode().hex()
        case None | bool():
            return "x"
        case _:
            nearest = float(value)
            (bits,) = struct.unpack(">Q", struct.pack(">d", nearest + 0.0))
            ascending = bits ^ (2**64 - 1 if bits >> 63 else 2**63)
            beyond = value - int(nearest) if isinstance(value, int) else 0  # for integers that are not exact as floats
            return f"x{ascending:016x}{beyond + 2**12:04x}"


def _hash(*parts: object) -> int:
    return int.from_bytes(blake2b(orjson.dumps(parts), digest_size=8).digest(), signed=True)


def _key(path: tuple[str, ...], type: str) -> str:
    return blake2b(orjson.dumps((path, type)), digest_size=8).hexdigest()
