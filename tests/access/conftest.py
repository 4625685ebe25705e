from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.caching.conftest import own_server as own_server  # fixtures
from tests.caching.conftest import server as server
from tests.caching.conftest import shared_server as shared_server


@pytest.fixture
async def resources() -> AsyncIterator[AsyncExitStack]:
    """Yield a stack of resources that are closed after the test."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture(params=["process", "redis"])
def url(request: pytest.FixtureRequest) -> str | None:
    """Return the URL of a Redis, or None for counters in this process."""
    return request.getfixturevalue("server").url if request.param == "redis" else None
