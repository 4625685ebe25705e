"""What an operator sees of it."""

from boundarymorph.caching.redis import RedisLink, RedisScoreCache
from tests import metrics
from tests.caching.counted import Counted
from tests.caching.servers import RedisServer
from tests.clocks import Clock
from tests.contract.score_cache import MODEL, QUERY, SCORES, TEXTS
from tests.ports import free_port


def circuit(operation: str) -> float | None:
    return metrics.sample("boundarymorph_cache_circuit_state", operation=operation)


def commands(operation: str, of: str = "count") -> float:
    name = f"boundarymorph_cache_operation_duration_seconds_{of}"
    return metrics.counted(name, cache="scores", operation=operation)


async def test_lookups_and_writes_are_counted_by_the_score(server: RedisServer) -> None:
    link = RedisLink(server.url, timeout=10)
    cache = RedisScoreCache(link)
    reads, writes = commands("read"), commands("write")
    seconds = commands("read", "sum")
    with Counted("scores") as counted:
        await cache.write(MODEL, QUERY, dict(zip(TEXTS[:2], SCORES, strict=False)))
        await cache.read(MODEL, QUERY, TEXTS)
        await cache.recall(MODEL, QUERY)
    await link.close()
    assert counted.lookups == {"hit": 2, "miss": 1}
    assert counted.writes == {"ok": 2}
    assert (commands("read") - reads, commands("write") - writes) == (2, 3)
    assert 0 < commands("read", "sum") - seconds < 2 * 10  # the timeout of both


async def test_the_circuits_are_shown_while_there_is_a_link() -> None:
    clock = Clock()
    link = RedisLink(f"redis://127.0.0.1:{free_port()}", timeout=5, failures=2, clock=clock)
    cache = RedisScoreCache(link)
    assert (circuit("read"), circuit("write")) == (0, 0)
    for _ in range(2):
        await cache.read(MODEL, QUERY, TEXTS)
    assert (circuit("read"), circuit("write")) == (2, 0)
    clock.now += 1
    assert (circuit("read"), circuit("write")) == (1, 0)
    await cache.read(MODEL, QUERY, TEXTS)
    assert (circuit("read"), circuit("write")) == (2, 0)
    await link.close()
    assert circuit("read") is None


async def test_commands_that_are_not_sent_are_not_timed() -> None:
    link = RedisLink(f"redis://127.0.0.1:{free_port()}", timeout=5, failures=1, clock=Clock())
    cache = RedisScoreCache(link)
    before = commands("read")
    for _ in range(5):
        await cache.read(MODEL, QUERY, TEXTS)
    await link.close()
    assert commands("read") - before == 1
