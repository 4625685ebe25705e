from collections.abc import AsyncIterator
from typing import Any

import pytest

from boundarymorph.selector import run
from boundarymorph.selector.selector import Selector
from tests.selector.fakes import MakeSelector


@pytest.fixture(autouse=True)
def nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read only the requested documents, unless a test says otherwise."""
    monkeypatch.setattr(run, "AHEAD", 0)


@pytest.fixture
async def selector_of() -> AsyncIterator[MakeSelector]:
    """Yield a function that makes selectors, and close them after the test."""
    made: list[Selector] = []

    def make(*args: Any, **options: Any) -> Selector:
        made.append(Selector(*args, **options))
        return made[-1]

    yield make
    for selector in made:
        await selector.close()
