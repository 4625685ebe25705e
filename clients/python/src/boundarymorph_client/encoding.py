"""Encode values as JSON.

A value with one obvious form in JSON is written so; any other is an error that names its place.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from boundarymorph_client.errors import InvalidArgument

LARGEST_INTEGER = 2**63 - 1


def encoded(value: Any) -> bytes:
    """Return a value as JSON in UTF-8, see `plain` and `utf8`.

    Raises:
        InvalidArgument: With the place of a value that JSON cannot express.
    """
    try:
        return utf8(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=json_value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(_located(value) or str(error)) from error


def utf8(text: str) -> bytes:
    """Return a text in UTF-8, with U+FFFD for each unpaired half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def json_value(value: object) -> object:
    """Return a value's form in JSON.

    It is ISO 8601 for times, in UTC if they have a zone; a string for a UUID; a number for a Decimal; and lists and
    numbers for NumPy's.

    Raises:
        TypeError: For anything else.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, date | time) and value == value:  # pandas' NaT does not
        if isinstance(value, datetime) and value.tzinfo is not None:
            value = value.astimezone(UTC)
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Decimal):
        number = float(value)
        return int(value) if abs(number) <= LARGEST_INTEGER and value == value.to_integral_value() else number
    if hasattr(value, "tolist") and (found := _of_array(value)) is not None:
        return found
    raise TypeError(f"{type(value).__name__} is no JSON")


def _of_array(value: Any) -> object:
    times = getattr(getattr(value, "dtype", None), "kind", None) == "M"
    return (value.astype("datetime64[us]") if times else value).tolist()


def _located(value: Any) -> str | None:
    try:
        return _fault(value, "")
    except RecursionError:
        return "a list or an object contains itself, or is nested too deeply"


def _fault(value: Any, place: str) -> str | None:
    """Describe the first part of a value that JSON cannot express, with its place.

    Returns None if there is no such part.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str | int | float | None):
                return f"{place or 'it'} has the key {reprlib.repr(key)}; make it a string"
            if found := _fault(inner, f"{place}.{key}" if place else f"{key}"):
                return found
        return None
    if isinstance(value, list | tuple):
        faults = (_fault(inner, f"{place}[{number}]{id_phrase(inner)}") for number, inner in enumerate(value))
        return next((fault for fault in faults if fault), None)
    try:
        json.dumps(value, allow_nan=False, default=json_value)
    except (TypeError, ValueError, OverflowError):
        kind = type(value).__name__
        return (
            f"{place or 'it'} is {reprlib.repr(value)} ({kind}), which JSON does not have; leave it out or convert it"
        )
    return None


def id_phrase(document: object) -> str:
    """Return the id of a document, for messages, if it has one."""
    return f" (id {document['id']!r})" if isinstance(document, Mapping) and "id" in document else ""
