"""Spend B cross-encoder calls where they change which k documents are returned."""

from importlib import import_module
from importlib.metadata import version
from typing import Any

__version__ = version("boundarymorph")
_LIBRARY = ("InvalidScores", "Selector", "extend")


def __getattr__(name: str) -> Any:
    """Return a name of `boundarymorph.library`, which is imported at its first use."""
    if name in _LIBRARY:
        return getattr(import_module("boundarymorph.library"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
