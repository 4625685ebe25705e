from collections.abc import Iterator

import pytest

from tests.caching.servers import RedisServer, running_cluster


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """A healthy server without data, for tests that leave it as it is."""
    with shared_server.admin() as admin:
        admin.flushall()
    return shared_server


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


@pytest.fixture
def cluster(shared_cluster: list[RedisServer]) -> list[RedisServer]:
    """A healthy cluster without data, for tests that leave it as it is."""
    for server in shared_cluster:
        with server.admin() as admin:
            admin.flushall()
    return shared_cluster


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that a test may do anything to."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()
