from collections.abc import Iterator

import pytest

from tests.caching.servers import RedisServer


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """Return an empty Redis that tests share and must leave working."""
    with shared_server.admin() as admin:
        admin.flushall()
    return shared_server


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Yield a server that the test may stop or damage."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()
