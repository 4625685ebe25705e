"""Times of stores in one form, RFC 3339 in UTC, so that the order of the texts is that of the times.

timestamp   2025-03-05T00:00:00+00:00, 2025-03-05T00:00:00.25+00:00    one without a zone is in UTC
date        2025-03-05                                                 compares as the beginning of that day
time        13:45:00, 13:45:00.5                                       of a day
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np

from boundarymorph.retrieval.filters import AllOf, AnyOf, Compare, Condition, Exists, Not, spellings

Kind = Literal["timestamp", "date", "time"]
Unit = Literal["D", "s", "ms", "us", "ns"]
KindOf = Callable[[tuple[str, ...]], Kind | None]

_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400
_CLOCK = r"(?P<minute>\d\d:\d\d)(?::(?P<second>[0-5]\d|60)(?:[.,](?P<fraction>\d+))?)?"
_ZONE = r" ?(?:[Zz]|(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d))?)?"
_MOMENT = re.compile(rf"(?P<date>\d{{4}}-\d\d-\d\d)(?:[Tt ]{_CLOCK}{_ZONE})?", re.ASCII)
_TIME = re.compile(_CLOCK + _ZONE, re.ASCII)


class Moment(NamedTuple):
    """Whole seconds since 1970 in UTC, or of a day, and the digits of a fraction of a second, without zeros at its
    end."""

    seconds: int
    fraction: str = ""

    @classmethod
    def read(cls, text: str, kind: Kind) -> Moment | None:
        """Return the time that a text means where times of a kind are; None if it means none.

        A date is the beginning of its day. A zone may be left out, and a space may stand for the T.
        """
        found = (_TIME if kind == "time" else _MOMENT).fullmatch(text)
        if found is None:
            return None
        parts = found.groupdict()
        east = timedelta(hours=int(parts["hours"] or 0), minutes=int(parts["minutes"] or 0))
        try:
            local = datetime.fromisoformat(f"{parts.get('date', '1970-01-01')}T{parts['minute'] or '00:00'}")
            moment = local + timedelta(seconds=int(parts["second"] or 0)) + (east if parts["sign"] == "-" else -east)
        except (ValueError, OverflowError):
            return None
        seconds = (moment - _EPOCH) // timedelta(seconds=1)
        return cls(seconds % _DAY if kind == "time" else seconds, (parts["fraction"] or "").rstrip("0"))

    def text(self, kind: Kind) -> str:
        """Return the one form; of a date, that of its day."""
        moment, fraction = _EPOCH + timedelta(seconds=self.seconds), f".{self.fraction}" if self.fraction else ""
        match kind:
            case "date":
                return moment.date().isoformat()
            case "time":
                return moment.time().isoformat() + fraction
            case _:
                return f"{moment.isoformat()}{fraction}+00:00"

    def ticks(self, in_second: Fraction) -> Fraction:
        """Return the time in units, of which a second has this many."""
        return in_second * (self.seconds + Fraction(int(self.fraction or 0), 10 ** len(self.fraction)))


def of_number(value: int, unit: Unit, kind: Kind) -> str:
    """Return the one form of a number of units since 1970, or of a day."""
    date, _, clock = str(np.datetime64(value, unit)).partition("T")
    if "." in clock:
        clock = clock.rstrip("0").rstrip(".")
    return {"date": date, "time": clock, "timestamp": f"{date}T{clock}+00:00"}[kind]


def in_one_form(value: Any, kind: Kind = "timestamp") -> Any:
    """Return a value of JSON with its times, alone or in lists, in the one form, and everything else unchanged."""
    match value:
        case str():
            return value if (moment := Moment.read(value, kind)) is None else moment.text(kind)
        case list():
            return [in_one_form(each, kind) for each in value]
        case _:
            return value


def with_times(condition: Condition, kind_of: KindOf) -> Condition:
    """Return a filter whose times, where a field holds times, are in the one form, so that comparing texts decides.

    kind_of: returns what times a field holds, None for another field. Texts that are no times are left as they are.
    """
    match condition:
        case AllOf(parts):
            return AllOf(frozenset(with_times(part, kind_of) for part in parts))
        case AnyOf(parts):
            return AnyOf(frozenset(with_times(part, kind_of) for part in parts))
        case Not(part):
            return Not(with_times(part, kind_of))
        case Compare(path, "text"):
            kind = next((kind for names in spellings(path) if (kind := kind_of(names)) is not None), None)
            return condition if kind is None else _compared(condition, kind)
        case Exists() | Compare():
            return condition


def _compared(condition: Compare, kind: Kind) -> Condition:
    read = {str(value): Moment.read(str(value), kind) for value in condition.values}
    comparison = condition.comparison
    within_a_day = {
        text
        for text, moment in read.items()
        if kind == "date" and moment and moment.ticks(Fraction(1, _DAY)).denominator > 1
    }
    if comparison == "in":  # no date is a time within a day
        read = {text: moment for text, moment in read.items() if text not in within_a_day}
    elif within_a_day:
        comparison = {"gte": "gt", "lt": "lte"}.get(comparison, comparison)
    values = dict.fromkeys(text if moment is None else moment.text(kind) for text, moment in read.items())
    return Compare(condition.path, "text", comparison, tuple(values)) if values else AnyOf(frozenset())
