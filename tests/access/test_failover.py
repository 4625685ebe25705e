"""Redis behind an address that leads to another server after a failover, as a Service, a DNS name or a VIP does."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from boundarymorph.caching.redis import FAILURES
from tests.access.test_rates import admitted, limits_of, unshared
from tests.caching.servers import RedisServer, Relay, speaking
from tests.patience import until

pytestmark = pytest.mark.strangers


async def test_rate_limits_follow_the_primary(opened: AsyncExitStack, tmp_path: Path) -> None:
    first, second = RedisServer(tmp_path / "first"), RedisServer(tmp_path / "second")
    opened.callback(first.kill)
    opened.callback(second.kill)
    with first.admin() as primary, second.admin() as replica:
        replica.replicaof("127.0.0.1", first.port)
        until(lambda: replica.info("replication")["master_link_status"] == "up")
        relay = await opened.enter_async_context(Relay.to(first.port))
        limits = limits_of(opened, relay.url, default="9/hour")
        other = limits_of(opened, relay.url, default="9/hour")  # of another process
        assert await admitted(limits, "rag", 2) == await admitted(other, "rag", 2) == [True, True]
        until(lambda: replica.dbsize() == primary.dbsize())

        replica.replicaof("NO", "ONE")
        primary.replicaof("127.0.0.1", second.port)
        until(lambda: primary.info("replication")["role"] == "slave")
        relay.target = second.port
        before = unshared()
        await limits.take("rag")
        await other.take("rag")
        assert unshared() == before + 2, "each learns of it by one request"
        assert await admitted(limits, "rag", 3) == [True] * 3
        assert await admitted(other, "rag", 3) == [True, True, False]
        assert unshared() == before + 2


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
async def test_an_error_makes_new_connections(opened: AsyncExitStack, server: RedisServer, answer: str) -> None:
    url = await opened.enter_async_context(speaking(f"-{answer}\r\n".encode(), after=0.001))
    port = urlsplit(url).port
    assert port is not None
    relay = await opened.enter_async_context(Relay.to(port))
    limits, before = limits_of(opened, relay.url, default="9/hour"), unshared()
    await admitted(limits, "rag", FAILURES - 1)  # so that Redis is still asked
    assert unshared() == before + FAILURES - 1
    relay.target = server.port
    assert [(await limits.take("rag")).limits[0].remaining for _ in range(2)] == [8, 7]
    assert unshared() == before + FAILURES - 1
