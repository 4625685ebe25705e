"""A Redis Cluster of real nodes: whole, damaged, and changing."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from boundarymorph.caching.circuit import State
from boundarymorph.caching.interfaces import CachedScore
from boundarymorph.caching.link import RedisLink
from boundarymorph.caching.redis import RedisEmbeddingCache, RedisScoreCache, score_key
from tests.caching.servers import (
    SLOTS,
    RedisServer,
    cluster_url,
    running_cluster,
    running_replica,
    slots_known,
)
from tests.caching.test_faults import Bench, bench_at
from tests.contract.embedding_cache import EmbeddingCacheContract
from tests.contract.score_cache import MODEL, SCORES, TEXTS, ScoreCacheContract
from tests.patience import until

QUERIES = [f"query {number}" for number in range(60)]


@pytest.fixture
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    """A cluster that a test may do anything to."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


@pytest.fixture
async def link(cluster: list[RedisServer]) -> AsyncIterator[RedisLink]:
    link = RedisLink(cluster_url(cluster[:1]), timeout=10)
    yield link
    await link.close()


class TestScoresInACluster(ScoreCacheContract):
    @pytest.fixture
    def cache(self, link: RedisLink) -> RedisScoreCache:
        return RedisScoreCache(link)


class TestEmbeddingsInACluster(EmbeddingCacheContract):
    @pytest.fixture
    def cache(self, link: RedisLink) -> RedisEmbeddingCache:
        return RedisEmbeddingCache(link)


async def write_all(bench: Bench) -> None:
    for query in QUERIES:
        await bench.scores.write(MODEL, query, {TEXTS[0]: SCORES[0]})


async def known(bench: Bench) -> set[str]:
    """Queries whose scores are read and recalled."""
    found = set()
    for query in QUERIES:
        read = await bench.scores.read(MODEL, query, TEXTS[:1])
        recalled = await bench.scores.recall(MODEL, query)
        if read == [SCORES[0]] and recalled == {TEXTS[0]: SCORES[0]}:
            found.add(query)
    return found


def kept_by(server: RedisServer) -> set[str]:
    with server.admin() as admin:
        return {query for query in QUERIES if score_key(MODEL, query) in admin.keys()}  # noqa: SIM118


@pytest.mark.servers
async def test_queries_are_spread_over_the_nodes(cluster: list[RedisServer], link: RedisLink) -> None:
    async with bench_at(cluster_url(cluster)) as bench:
        await write_all(bench)
        assert await known(bench) == set(QUERIES)
        await bench.everything_works()
    kept = [kept_by(server) for server in cluster]
    assert all(kept)
    assert sum(map(len, kept)) == len(QUERIES)


async def test_a_killed_node_costs_its_own_queries_only(own_cluster: list[RedisServer]) -> None:
    async with bench_at(cluster_url(own_cluster), 2) as bench:
        await write_all(bench)
        assert await known(bench) == set(QUERIES)
        lost = kept_by(own_cluster[0])
        own_cluster[0].kill()
        for _ in range(3):
            await known(bench)
            await write_all(bench)
        assert await known(bench) == set(QUERIES) - lost
        assert bench.states == (State.OPEN, State.OPEN)

        own_cluster[0].start()
        until(lambda: all(slots_known(server) == 16_384 for server in own_cluster))
        for _ in range(2):
            bench.clock.now += 60
            await write_all(bench)
        assert await known(bench) == set(QUERIES)
        assert bench.states == (State.CLOSED, State.CLOSED)


async def test_a_hung_node_costs_its_own_queries_only(own_cluster: list[RedisServer]) -> None:
    async with bench_at(cluster_url(own_cluster)) as bench:
        await write_all(bench)
    async with bench_at(cluster_url(own_cluster), 0.3) as bench:
        assert await known(bench) == set(QUERIES)
        lost = kept_by(own_cluster[1])
        own_cluster[1].hang()
        await known(bench)
        await known(bench)
        assert await known(bench) == set(QUERIES) - lost
        own_cluster[1].go_on()
        until(lambda: all(slots_known(server) == 16_384 for server in own_cluster))
        bench.clock.now += 60
        await known(bench)
        assert await known(bench) == set(QUERIES)


async def test_all_nodes_killed(own_cluster: list[RedisServer]) -> None:
    async with bench_at(cluster_url(own_cluster), 2) as bench:
        await write_all(bench)
        for server in own_cluster:
            server.kill()
        for _ in range(3):
            assert await known(bench) == set()
        await bench.everything_is_missed()
        assert bench.states == (State.OPEN, State.OPEN)


async def test_who_leaves_while_the_nodes_are_looked_for_disturbs_nobody(cluster: list[RedisServer]) -> None:
    for turns in range(0, 20, 2):
        async with bench_at(cluster_url(cluster)) as bench:
            await bench.write()
        async with bench_at(cluster_url(cluster)) as bench:
            leaving, staying = (asyncio.ensure_future(bench.read()) for _ in range(2))
            for _ in range(turns):
                await asyncio.sleep(0)
            leaving.cancel()
            assert await staying == SCORES
            await asyncio.gather(leaving, return_exceptions=True)


@pytest.mark.parametrize("dead", [0, 1, 2])
async def test_one_node_is_dead_from_the_beginning(own_cluster: list[RedisServer], dead: int) -> None:
    own_cluster[dead].kill()
    async with bench_at(cluster_url(own_cluster), 2) as bench:
        for _ in range(3):
            await write_all(bench)
            bench.clock.now += 60
        kept = [kept_by(server) for number, server in enumerate(own_cluster) if number != dead]
        assert all(kept)
        assert await known(bench) == set.union(*kept)


async def test_slots_of_no_node_cost_their_own_queries_only(own_cluster: list[RedisServer]) -> None:
    with own_cluster[0].admin() as admin:
        admin.execute_command("CLUSTER DELSLOTS", *range(SLOTS // 3))
    async with bench_at(cluster_url(own_cluster[:1])) as bench:
        await write_all(bench)
        found = await known(bench)
    assert found == kept_by(own_cluster[1]) | kept_by(own_cluster[2])
    assert found and not kept_by(own_cluster[0])


async def test_who_waits_for_the_nodes_when_it_is_closed_misses(own_cluster: list[RedisServer]) -> None:
    for server in own_cluster:
        server.hang()
    async with bench_at(cluster_url(own_cluster)) as bench:
        waiting = asyncio.ensure_future(bench.read())
        await asyncio.sleep(0.05)
    assert await waiting == [None, None, None]


async def test_a_node_hangs_from_the_beginning(own_cluster: list[RedisServer]) -> None:
    own_cluster[0].hang()
    async with bench_at(cluster_url(own_cluster), 0.3) as bench:
        for _ in range(4):
            await write_all(bench)
            bench.clock.now += 60
        kept = [kept_by(server) for server in own_cluster[1:]]
        assert all(kept)
        await known(bench)
        assert await known(bench) == set.union(*kept)


async def test_a_slot_moves(own_cluster: list[RedisServer]) -> None:
    async with bench_at(cluster_url(own_cluster)) as bench:
        await bench.write()
        assert None not in await bench.read()
        with own_cluster[0].admin() as admin:
            slot = admin.execute_command("CLUSTER KEYSLOT", score_key(MODEL, "how often do trams run?"))
        before = next(number for number in range(3) if slot < (number + 1) * 16_384 // 3)
        after = (before + 1) % 3
        with own_cluster[after].admin() as new, own_cluster[before].admin() as old:
            new_id = new.execute_command("CLUSTER MYID").decode()
            old.flushall()
            for admin in (new, old):
                admin.execute_command("CLUSTER SETSLOT", slot, "NODE", new_id)
        assert await bench.read() == [None, None, None]
        await bench.write()
        assert await bench.read() == SCORES
        assert bench.states == (State.CLOSED, State.CLOSED)


@pytest.fixture
def replica(own_cluster: list[RedisServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A replica of the first node."""
    with running_replica(tmp_path_factory.mktemp("replica"), own_cluster[0]) as replica:
        yield replica


async def test_a_replica_takes_over(own_cluster: list[RedisServer], replica: RedisServer) -> None:
    primary, *others = own_cluster
    async with bench_at(cluster_url(own_cluster), 2) as bench:
        await write_all(bench)
        with replica.admin() as admin:
            until(lambda: kept_by(replica) == kept_by(primary))
            primary.kill()
            await known(bench)
            until(lambda: admin.info("replication")["role"] == "master")
        until(lambda: all(slots_known(server) == 16_384 for server in others))
        for _ in range(3):
            bench.clock.now += 60
            await known(bench)
        assert await known(bench) == set(QUERIES)
        await bench.scores.write(MODEL, QUERIES[0], {TEXTS[1]: CachedScore(0.25)})
        await write_all(bench)
        bench.clock.now += 60
        assert bench.states == (State.CLOSED, State.CLOSED)


async def test_few_commands_and_keys_are_needed(own_cluster: list[RedisServer]) -> None:
    for server in own_cluster:
        with server.admin() as admin:
            commands = [
                f"+{name}" for name in ("hmget", "hrandfield", "hset", "get", "set", "pttl", "pexpire", "unlink")
            ]
            admin.execute_command(
                *("ACL", "SETUSER", "cache", "on", ">word", "~boundarymorph:*", "-@all", *commands),
                *("+cluster|slots", "+command"),
            )
    url = cluster_url(own_cluster).replace("://", "://cache:word@")
    async with bench_at(url) as bench:
        await bench.everything_works()
