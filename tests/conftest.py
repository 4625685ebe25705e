"""Which tests a worker of pytest-xdist takes, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stateful import profile as profile  # registers its profile before the command line is read

TESTS = Path(__file__).parent
TOGETHER = ("faults",)  # packages whose files share what is slow to start
LONGEST_FIRST = ("faults", "system", "telemetry", "fuzz", "test_demo.py", "stateful")


def pytest_itemcollected(item: pytest.Item) -> None:
    """A file is one worker's, and so is a package in TOGETHER."""
    path = item.path.relative_to(TESTS)
    item.add_marker(pytest.mark.xdist_group(path.parts[0] if path.parts[0] in TOGETHER else path.as_posix()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins, so that no worker ends late."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    first = item.path.relative_to(TESTS).parts[0]
    return LONGEST_FIRST.index(first) if first in LONGEST_FIRST else len(LONGEST_FIRST)
