"""Provide the parts that the filters of frameworks share, in the service's words."""

from __future__ import annotations

import sys
from typing import Any

Filter = dict[str, Any]
EVERYTHING: Filter = {}
NOTHING: Filter = {"not": {}}
COMBINING = ("and", "or", "not")  # operators of filters, which cannot be names of fields


def present(field: str) -> Filter:
    """Return a filter for fields that exist and are not null.

    The service treats a list as null if an element is, so the filter looks for other elements.
    """
    return {
        "or": [
            {field: {"exists": True, "ne": None}},
            {field: {"gte": ""}},
            {field: {"gte": -sys.float_info.max}},
            {field: {"in": [True, False]}},
        ]
    }
