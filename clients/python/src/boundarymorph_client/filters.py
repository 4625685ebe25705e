"""What the filters of frameworks have in common, once they are in the service's words."""

from __future__ import annotations

import sys
from typing import Any

Filter = dict[str, Any]
EVERYTHING: Filter = {}
NOTHING: Filter = {"not": {}}
COMBINING = ("and", "or", "not")  # of filters, and so no names of fields


def present(field: str) -> Filter:
    """Whether a field is there and not null. A list is null to the service if an element is, so look for others."""
    return {
        "or": [
            {field: {"exists": True, "ne": None}},
            {field: {"gte": ""}},
            {field: {"gte": -sys.float_info.max}},
            {field: {"in": [True, False]}},
        ]
    }
