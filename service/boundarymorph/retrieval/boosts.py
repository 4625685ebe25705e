"""Multiply relevance by rules over metadata.

The rules are named and shaped as in Elasticsearch's function_score and Milvus's decay ranker. The boost of a document
is the product of its rules. Every factor, and the product, is held between LEAST and MOST. A rule whose filter the
document does not match, and a function of a field that it does not have, give 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import Filter, read_path, values_at

LEAST, MOST = 1e-3, 1e3
MAX_RULES = 16
LARGEST = 1e300  # larger numbers of a field are not read
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)

Shape = Literal["gauss", "exp", "linear"]
Modifier = Literal["none", "log", "log1p", "log2p", "ln", "ln1p", "ln2p", "square", "sqrt", "reciprocal"]
_MODIFIERS: Mapping[Modifier, Callable[[np.float64], np.float64]] = {
    "none": lambda value: value,
    "log": lambda value: np.log10(value),
    "log1p": lambda value: np.log10(value + 1.0),
    "log2p": lambda value: np.log10(value + 2.0),
    "ln": lambda value: np.log(value),
    "ln1p": lambda value: np.log(value + 1.0),
    "ln2p": lambda value: np.log(value + 2.0),
    "square": lambda value: value * value,
    "sqrt": lambda value: np.sqrt(value),
    "reciprocal": lambda value: np.float64(1.0) / value,
}


@dataclass(frozen=True, slots=True)
class Decay:
    """A factor that falls with the distance from an origin.

    It is 1 within `offset` of the origin, `decay` at a distance of `scale` beyond that, and less farther away.

    Attributes:
        shape: How it falls.
        path: The field of the metadata. Of a list the element nearest to the origin counts.
        dates: Whether the field is a date: a string in ISO 8601, or a number of seconds since 1970.
        origin: A number, or a date in seconds since 1970.
        scale: Above 0; for dates in seconds, as `offset` is.
        offset: 0 or more.
        decay: Above 0 and below 1.
    """

    shape: Shape
    path: tuple[str, ...]
    dates: bool
    origin: float
    scale: float
    offset: float = 0.0
    decay: float = 0.5

    @classmethod
    def from_fields(
        cls,
        place: str,
        shape: Shape,
        field: str,
        origin: float | str,
        scale: float | str,
        offset: float | str,
        decay: float,
        now: float,
    ) -> Decay:
        """Read the fields of a rule at a place of the request; `now` is in seconds since 1970.

        Raises:
            InvalidInput: With the place, if a field is wrong.
        """
        dates = isinstance(origin, str)
        start = now if origin == "now" else seconds_of(origin) if isinstance(origin, str) else origin
        if start is None:
            raise InvalidInput(f'{place}.origin: give a number, "now", or a date such as "2026-01-31"')
        lengths = [_length(f"{place}.{name}", given, dates) for name, given in (("scale", scale), ("offset", offset))]
        if lengths[0] <= 0.0 or lengths[1] < 0.0:
            raise InvalidInput(f"{place}: 'scale' is above 0, and 'offset' is 0 or more")
        return cls(shape, read_path(field, f"{place}.field"), dates, start, lengths[0], lengths[1], decay)

    def __call__(self, metadata: Mapping[str, Any]) -> float | None:
        """Return the factor, or None for a document without the field."""
        distances = [abs(value - self.origin) - self.offset for value in numbers(metadata, self.path, self.dates)]
        if not distances:
            return None
        far = max(0.0, min(distances)) / self.scale
        match self.shape:
            case "gauss":
                return math.pow(self.decay, far * far)
            case "exp":
                return math.pow(self.decay, far)
            case "linear":
                return max(0.0, 1.0 - (1.0 - self.decay) * far)


@dataclass(frozen=True, slots=True)
class FieldValueFactor:
    """A number of the metadata, times a factor, modified.

    Attributes:
        path: The field. Of a list the first number counts.
        factor: Above 0.
        modifier: The function.
        missing: Replaces a missing field.
    """

    path: tuple[str, ...]
    factor: float = 1.0
    modifier: Modifier = "none"
    missing: float | None = None
    dates = False

    def __call__(self, metadata: Mapping[str, Any]) -> float | None:
        """Return the factor, or None for a document without the field."""
        value = next(iter(numbers(metadata, self.path)), self.missing)
        if value is None:
            return None
        with np.errstate(all="ignore"):
            return float(_MODIFIERS[self.modifier](np.float64(self.factor) * value))


@dataclass(frozen=True, slots=True)
class Rule:
    """A weight, times a function if there is one.

    It applies to the documents that match its filter, or to all.
    """

    weight: float = 1.0
    function: Decay | FieldValueFactor | None = None
    filter: Filter | None = None

    def __call__(self, metadata: Mapping[str, Any]) -> float:
        if self.filter is not None and not self.filter.matches(metadata):
            return 1.0
        found = None if self.function is None else self.function(metadata)
        return self.weight if found is None else clamp(self.weight * clamp(found))


@dataclass(frozen=True, slots=True)
class Boosts:
    """The factors of relevance.

    Attributes:
        rules: Rules over the metadata.
        weights: Further factors of single documents, by id.
    """

    rules: Sequence[Rule] = ()
    weights: Mapping[str, float] = field(default_factory=dict)

    def factors(self, ids: Sequence[str], documents: Mapping[str, Document]) -> NDArray[np.float64]:
        """Return (N,) boosts of the documents with these ids.

        Without rules the documents are not needed.
        """
        boosts = []
        for id in ids:
            boost, metadata = self.weights.get(id, 1.0), documents[id].metadata if id in documents else {}
            for rule in self.rules:
                boost = clamp(boost * rule(metadata))
            boosts.append(boost)
        return np.array(boosts, dtype=np.float64)

    def unread(self, documents: Iterable[Document]) -> list[str]:
        """Return the names of the fields that have no readable value in any document."""
        functions = [rule.function for rule in self.rules if rule.function is not None]
        there = list(documents)
        return [
            ".".join(one.path)
            for one in functions
            if not any(numbers(document.metadata, one.path, one.dates) for document in there)
        ]


def clamp(boost: float) -> float:
    """Return the nearest number from LEAST to MOST.

    It is LEAST for NaN, such as the logarithm of a negative number.
    """
    return min(max(LEAST, boost), MOST)


def numbers(metadata: Mapping[str, Any], path: tuple[str, ...], dates: bool = False) -> list[float]:
    """Return the numbers of a field, or of the elements of its list.

    With `dates`, strings are dates.
    """
    found: list[float] = []
    for value in values_at(metadata, path):
        for each in value if isinstance(value, list) else [value]:
            number = seconds_of(each) if dates and isinstance(each, str) else each
            if isinstance(number, int | float) and not isinstance(number, bool) and -LARGEST < number < LARGEST:
                found.append(float(number))
    return found


def seconds_of(date: str) -> float | None:
    """Return the seconds from 1970 to a date in ISO 8601, or None if it is not a date.

    A date without a time zone is in UTC.
    """
    try:
        read = datetime.fromisoformat(date)
    except ValueError:
        return None
    return (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp()


def _length(place: str, given: float | str, dates: bool) -> float:
    """Return a distance from the origin; between dates in seconds. Raises InvalidInput."""
    if not dates:
        if isinstance(given, str):
            raise InvalidInput(f"{place}: give a number, as the origin is one, or a date as the origin")
        return given
    read = DURATION.fullmatch(given) if isinstance(given, str) else None
    if read is not None:
        return float(read[1]) * SECONDS[read[2]]
    if given == 0:
        return 0.0
    raise InvalidInput(f'{place}: the origin is a date, so give a duration such as "30d", in ms, s, m, h or d')
