"""Test the cache in a real Redis: its contract, and that its failures never reach a caller."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pydantic import SecretStr

from boundarymorph.caching.build import build_caches
from boundarymorph.caching.redis import RedisLink, RedisScoreCache, State, score_key
from boundarymorph.caching.scores import CachedScore, digest
from boundarymorph.errors import InvalidConfiguration
from boundarymorph.settings import CacheSettings
from tests import metrics
from tests.caching.counted import CacheCounts
from tests.caching.servers import RedisServer, fixed_answer_server
from tests.clocks import Clock
from tests.contract.score_cache import MODEL, QUERY, SCORES, TEXTS, ScoreCacheContract
from tests.ports import free_port

ALL = dict(zip(TEXTS, SCORES, strict=True))


class Bench:
    """A cache over a Redis link whose circuit breakers use the test's clock."""

    def __init__(self, url: str, timeout: float) -> None:
        self.clock = Clock()
        self.link = RedisLink(url, timeout=timeout, failures=3, clock=self.clock)
        self.scores = RedisScoreCache(self.link)

    @property
    def states(self) -> tuple[State, State]:
        return self.link.state("read"), self.link.state("write")

    async def read(self) -> list[CachedScore | None]:
        return await self.scores.read(MODEL, QUERY, TEXTS)

    async def write(self) -> None:
        await self.scores.write(MODEL, QUERY, ALL)

    async def everything_is_missed(self) -> None:
        for _ in range(4):
            assert await self.read() == [None, None, None]
            assert await self.scores.look_up(MODEL, QUERY) == {}
            await self.write()

    async def everything_works(self) -> None:
        self.clock.now += 60
        await self.write()
        assert await self.read() == SCORES
        assert await self.scores.look_up(MODEL, QUERY) == ALL
        assert self.states == (State.CLOSED, State.CLOSED)


@pytest.fixture
async def link(server: RedisServer) -> AsyncIterator[RedisLink]:
    link = RedisLink(server.url, timeout=10)
    yield link
    await link.close()


async def test_caches_built_from_settings_use_redis_and_close_their_link(server: RedisServer) -> None:
    caches = build_caches(
        CacheSettings(url=SecretStr(server.url), timeout_seconds=10, seconds_to_live=60, namespace="blue")
    )
    assert caches.scores
    await caches.scores.write(MODEL, QUERY, {TEXTS[0]: SCORES[0]})
    with server.admin() as admin:
        keys = admin.keys("boundarymorph:blue:*")
        assert len(keys) == 1 and all(0 < admin.ttl(key) <= 60 for key in keys)
    assert await caches.scores.read(MODEL, QUERY, TEXTS[:1]) == [SCORES[0]]
    await caches.close()
    assert await caches.scores.read(MODEL, QUERY, TEXTS[:1]) == [None]


class TestRedisScoreCache(ScoreCacheContract):
    @pytest.fixture
    def cache(self, link: RedisLink) -> RedisScoreCache:
        return RedisScoreCache(link, seconds_to_live=24 * 3600)

    async def test_cached_scores_expire_a_day_after_the_first_write(
        self, cache: RedisScoreCache, server: RedisServer
    ) -> None:
        """This holds after a crash between the two commands, and after the setting was lowered."""
        key, day = score_key(MODEL, QUERY), 24 * 3600
        with server.admin() as admin:
            for before, most in [
                (("TTL", []), day),
                (("EXPIRE", [100]), 100),
                (("PERSIST", []), day),
                (("EXPIRE", [7 * day]), day),
            ]:
                admin.execute_command(before[0], key, *before[1])
                await cache.write(MODEL, QUERY, {TEXTS[0]: SCORES[0]})
                assert most - 60 < admin.ttl(key) <= most

    async def test_foreign_values_in_redis_are_misses(self, cache: RedisScoreCache, server: RedisServer) -> None:
        await cache.write(MODEL, QUERY, ALL)
        with server.admin() as admin:
            key = score_key(MODEL, QUERY)
            assert min(map(len, admin.hvals(key))) == 9, "a score without an id takes 9 bytes"
            admin.hset(key, TEXTS[0], "0.5")
            admin.hset(key, "not a digest", admin.hget(key, TEXTS[2]) or b"")
        with CacheCounts("scores") as counted:
            assert await cache.read(MODEL, QUERY, TEXTS) == [None, *SCORES[1:]]
            assert await cache.look_up(MODEL, QUERY) == dict(list(ALL.items())[1:])
        assert counted.lookups == {"corrupt": 3, "hit": 2}

    async def test_redis_cache_sends_one_command_per_query(self, cache: RedisScoreCache, server: RedisServer) -> None:
        scores = {digest(str(number)): CachedScore(number / 1_000) for number in range(1_000)}
        with server.admin() as admin:
            admin.config_resetstat()
            await cache.write(MODEL, QUERY, scores)
            assert await cache.read(MODEL, QUERY, list(scores)) == list(scores.values())
            await cache.look_up(MODEL, QUERY)
            calls = {name: one["calls"] for name, one in admin.info("commandstats").items()}
        assert [calls[f"cmdstat_{name}"] for name in ("hset", "hmget", "hrandfield", "pttl", "pexpire")] == [1] * 5

    async def test_cache_metrics_count_each_score_looked_up_or_written(self, cache: RedisScoreCache) -> None:
        before = commands("read"), commands("write")
        with CacheCounts("scores") as counted:
            await cache.write(MODEL, QUERY, dict(list(ALL.items())[:2]))
            await cache.read(MODEL, QUERY, TEXTS)
            await cache.look_up(MODEL, QUERY)
        assert (counted.lookups, counted.writes) == ({"hit": 2, "miss": 1}, {"ok": 2})
        assert (commands("read") - before[0], commands("write") - before[1]) == (2, 3)


def commands(operation: str) -> float:
    name = "boundarymorph_cache_operation_duration_seconds_count"
    return metrics.counted(name, cache="scores", operation=operation)


def circuit(operation: str) -> float | None:
    return metrics.sample("boundarymorph_cache_circuit_state", operation=operation)


@asynccontextmanager
async def bench_at(url: str, seconds: float = 5.0) -> AsyncIterator[Bench]:
    bench = Bench(url, seconds)
    try:
        yield bench
    finally:
        await bench.link.close()


@pytest.fixture
async def bench(own_server: RedisServer) -> AsyncIterator[Bench]:
    async with bench_at(own_server.url) as bench:
        yield bench


@pytest.mark.servers
async def test_link_recovers_after_its_server_is_killed(
    bench: Bench, own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.everything_works()
    own_server.kill()
    caplog.set_level(logging.INFO, "boundarymorph")
    with CacheCounts("scores") as counted:
        await bench.everything_is_missed()
    assert bench.states == (State.OPEN, State.OPEN)
    assert counted.lookups == {"error": 12 + 4}  # looking a query up counts once
    assert counted.writes == {"error": 12}
    assert len([record for record in caplog.records if "suspended until it does" in record.message]) == 2
    own_server.start()
    await bench.everything_is_missed()
    await bench.everything_works()
    again = [record.message for record in caplog.records if "works again" in record.message]
    assert sorted(again) == [f"Redis works again: cache {operation}s go on" for operation in ("read", "write")]


async def test_link_to_a_closed_port_opens_its_circuits(caplog: pytest.LogCaptureFixture) -> None:
    async with bench_at(f"redis://:secret@127.0.0.1:{free_port()}") as bench:
        assert (circuit("read"), circuit("write")) == (0, 0)
        before = commands("read")
        for _ in range(6):
            assert await bench.read() == [None, None, None]
        assert (circuit("read"), circuit("write"), commands("read") - before) == (2, 0, 3)
        bench.clock.now += 1
        assert (circuit("read"), circuit("write")) == (1, 0)
        await bench.read()
        assert (circuit("read"), commands("read") - before) == (2, 4)
    assert circuit("read") is None
    assert "secret" not in caplog.text


async def test_link_never_gives_a_late_answer_to_another_request(own_server: RedisServer) -> None:
    queries = [f"query {number}" for number in range(20)]
    async with bench_at(own_server.url) as patient:
        for number, query in enumerate(queries):
            await patient.scores.write(MODEL, query, {TEXTS[0]: CachedScore(number / 20)})
    async with bench_at(own_server.url, seconds=0.1) as bench:
        own_server.hang()
        await asyncio.gather(*(bench.scores.read(MODEL, query, TEXTS[:1]) for query in queries))
        own_server.resume()
        for number, query in enumerate(queries):
            bench.clock.now += 60
            assert (await bench.scores.read(MODEL, query, TEXTS[:1]))[0] in (None, CachedScore(number / 20))
    async with bench_at(own_server.url) as patient:
        for number, query in enumerate(queries):
            assert await patient.scores.read(MODEL, query, TEXTS[:1]) == [CachedScore(number / 20)]


async def test_link_survives_cancelled_reads_and_closed_connections(server: RedisServer) -> None:
    async with bench_at(server.url) as bench:
        await bench.everything_works()
        for turns in range(30):
            reading = asyncio.ensure_future(bench.read())
            for _ in range(turns % 10):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            assert await bench.read() == SCORES
        with server.admin() as admin:
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await bench.everything_works()


@pytest.mark.parametrize("fault", ["full", "read-only"])
async def test_cache_reads_a_server_that_refuses_writes(bench: Bench, own_server: RedisServer, fault: str) -> None:
    await bench.everything_works()
    with own_server.admin() as admin:
        if fault == "full":
            admin.config_set("maxmemory-policy", "noeviction")
            admin.config_set("maxmemory", 1)
        else:
            admin.replicaof("127.0.0.1", free_port())
        with CacheCounts("scores") as counted:
            for _ in range(4):
                await bench.write()
                assert await bench.read() == SCORES
        assert counted.writes == {"error": 12}
        assert bench.states == (State.CLOSED, State.OPEN)
        admin.config_set("maxmemory", 0)
        admin.replicaof("NO", "ONE")
    await bench.everything_works()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"+OK\r\n",
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"*3\r\n:1\r\n$2\r\nab\r\n$-1\r\n",
        b"*1\r\n" * 5_000 + b":1\r\n",
        b"$99999999999999999999\r\nab\r\n",
    ],
    ids=lambda answer: repr(answer[:12]),
)
async def test_malformed_redis_answers_are_misses(answer: bytes) -> None:
    async with fixed_answer_server(answer) as url, bench_at(url, seconds=0.1) as bench:
        for _ in range(3):
            assert await bench.read() == [None, None, None]
            assert await bench.scores.look_up(MODEL, QUERY) == {}
            await bench.write()


@pytest.mark.parametrize(
    "url",
    ["", "localhost:6379", "http://:secret@host", "redis://:secret@host:port", "redis://:secret@host/?timeout=secret"],
)
def test_malformed_redis_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        RedisLink(url)
    assert "secret" not in str(raised.value)
