"""Translate Haystack's filters, with the meaning of `haystack.utils.filters`.

Two things are as in the service: a list in the `meta` passes if one of its elements does, and 1 is not True. Times,
which `meta` have in ISO 8601, are compared as times. They have to be in UTC, and times without a zone count as UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from typing import Any

from haystack import Document
from haystack.errors import FilterError

from boundarymorph_client.encoding import json_value
from boundarymorph_client.filters import COMBINING, EVERYTHING, NOTHING, Filter, present

ATTRIBUTES = {field.name for field in fields(Document)}
ORDER = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
ISO_8601 = re.compile(r"\d{4}-\d\d-\d\d([Tt ].*)?")


def translated(given: Mapping[str, Any]) -> Filter:
    """Return the service's filter.

    Raises:
        FilterError: With the operator, if the service has no such filter.
    """
    operator = given.get("operator")
    if "field" in given and operator in COMPARISONS and "value" in given:
        return COMPARISONS[operator](_name(given["field"], operator), given["value"], operator)
    if "field" not in given and operator in ("AND", "OR", "NOT") and "conditions" in given:
        conditions = [translated(condition) for condition in given["conditions"]]
        if operator == "OR":
            return {"or": conditions} if conditions else NOTHING
        every = {"and": conditions} if conditions else EVERYTHING
        return {"not": every} if operator == "NOT" else every
    raise FilterError(
        f"{dict(given)} is neither a comparison (field, operator out of {', '.join(COMPARISONS)}, value) "
        "nor AND, OR or NOT with conditions"
    )


def _name(field: str, operator: str) -> str:
    """Return the name of a field in the metadata of the service."""
    if field.partition(".")[0] in ATTRIBUTES - {"meta"} or field == "meta":
        raise FilterError(f"{operator!r}: the service filters by fields of meta only, not by {field!r}")
    name = field.removeprefix("meta.")
    if name in COMBINING:
        raise FilterError(f"{operator!r}: the service cannot filter by a field of the name {name!r}")
    return name


def _equal(field: str, value: Any, operator: str) -> Filter:
    return _among(field, [value], operator)


def _in(field: str, values: Any, operator: str) -> Filter:
    if not isinstance(values, list):
        raise FilterError(f"{operator!r} takes a list of values, not {values!r}")
    return _among(field, values, operator)


def _among(field: str, values: list[Any], operator: str) -> Filter:
    """Return a filter for fields with one of these values; a missing field equals None."""
    spelled = [spelling for value in values if value is not None for spelling in _spellings(value, operator)]
    among = {field: {"in": spelled}}
    if not any(value is None for value in values):
        return among
    return {"or": [{"not": present(field)}, among]} if spelled else {"not": present(field)}


def _negated(comparison: Callable[[str, Any, str], Filter]) -> Callable[[str, Any, str], Filter]:
    return lambda field, value, operator: {"not": comparison(field, value, operator)}


def _ordered(field: str, value: Any, operator: str) -> Filter:
    if value is None:
        return NOTHING
    moment = _time(value)
    if moment is not None:
        return _ordered_times(field, moment, operator)
    number = _scalar(value, operator)
    if isinstance(number, bool | str):
        raise FilterError(f"{operator!r} compares numbers and times in ISO 8601, not {value!r}")
    return {field: {ORDER[operator]: number}}


def _ordered_times(field: str, moment: datetime, operator: str) -> Filter:
    """Compare by code points.

    A date comes before its times, a space before T, and a fraction before a zone.
    """
    from_it: Filter
    before: Filter
    day, (spaced, joined) = f"{moment.date()}", (_shortest(moment, between) for between in " T")
    equal = {field: {"in": _spelled(moment)}}
    if moment.time() == time_of_day.min:
        from_it, before = {field: {"gte": day}}, {field: {"lt": day}}
    else:
        from_it = {"or": [{field: {"gte": joined}}, {field: {"gte": spaced, "lt": f"{day}T"}}]}
        before = {field: {"lt": joined}, "not": from_it}
    match operator:
        case ">=":
            return from_it
        case ">":
            return {**from_it, "not": equal}
        case "<":
            return before
        case _:
            return {"or": [before, equal]}


def _spellings(value: Any, operator: str) -> list[Any]:
    """Return the values in JSON that equal this one."""
    moment = _time(value)
    if moment is None:
        return [_scalar(value, operator)]
    return list(dict.fromkeys([*([value] if isinstance(value, str) else []), *_spelled(moment)]))


def _spelled(moment: datetime) -> list[str]:
    microseconds = f"{moment.microsecond:06}"
    digits = {microseconds, microseconds.rstrip("0"), *([] if moment.microsecond % 1000 else [microseconds[:3]])}
    fractions = [f".{each}" if each else "" for each in digits]
    times = [f"{moment.date()}{between}{moment:%H:%M:%S}{fraction}" for between in "T " for fraction in fractions]
    days = [f"{moment.date()}"] if moment.time() == time_of_day.min else []
    return [*days, *sorted(f"{time}{zone}" for time in times for zone in ("", "Z", "+00:00"))]


def _shortest(moment: datetime, between: str) -> str:
    """Return the spelling with which all others of this moment begin."""
    fraction = f".{moment.microsecond:06}".rstrip("0") if moment.microsecond else ""
    return f"{moment.date()}{between}{moment:%H:%M:%S}{fraction}"


def _time(value: Any) -> datetime | None:
    """Return a time, in UTC and without a zone, or None if the value is not a time."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value) if ISO_8601.fullmatch(value) else None
        except ValueError:
            return None
    elif not isinstance(value, datetime) and isinstance(value, date):
        value = datetime.combine(value, time_of_day.min)
    if not isinstance(value, datetime):
        return None
    return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value


def _scalar(value: Any, operator: str) -> str | int | float | bool:
    found = value
    if not isinstance(value, str | int | float | list | tuple | Mapping):
        with suppress(TypeError):
            found = json_value(value)
    if isinstance(found, str | int | float):
        return found
    raise FilterError(f"{operator!r}: the service compares with strings, numbers, and booleans, not with {value!r}")


COMPARISONS: dict[str, Callable[[str, Any, str], Filter]] = {
    "==": _equal,
    "!=": _negated(_equal),
    "in": _in,
    "not in": _negated(_in),
    **dict.fromkeys(ORDER, _ordered),
}
