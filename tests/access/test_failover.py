"""Test a Redis URL that leads to another server after a failover."""

from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest

from boundarymorph.caching.redis import FAILURES
from tests.access.test_rates import admitted, limits_of, unshared
from tests.caching.servers import RedisServer, Relay, fixed_answer_server

pytestmark = pytest.mark.strangers


@pytest.mark.parametrize(
    "answer",
    [
        "READONLY You can't write against a read only replica.",
        "ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write against a replica.",
        "LOADING Redis is loading the dataset in memory",
        "MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.",
        "ERR max number of clients reached",
    ],
    ids=lambda answer: answer[:40],
)
async def test_rate_limits_connect_again_after_an_error_of_redis(
    resources: AsyncExitStack, server: RedisServer, answer: str
) -> None:
    url = await resources.enter_async_context(fixed_answer_server(f"-{answer}\r\n".encode(), after=0.001))
    port = urlsplit(url).port
    assert port is not None
    relay = await resources.enter_async_context(Relay.to(port))
    limits, before = limits_of(resources, relay.url, default="9/hour"), unshared()
    await admitted(limits, "rag", FAILURES - 1)  # so that Redis is still asked
    assert unshared() == before + FAILURES - 1
    relay.target = server.port
    assert [(await limits.take("rag")).limits[0].remaining for _ in range(2)] == [8, 7]
    assert unshared() == before + FAILURES - 1
