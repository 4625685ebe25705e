"""Redis ends, hangs, is full, fails over: nobody but the bill notices."""

import time
from contextlib import ExitStack
from pathlib import Path

from tests.caching.servers import cluster_url, running_cluster, running_replica
from tests.faults.conftest import Deployment
from tests.faults.scenario import (
    BUDGET,
    Role,
    Stopwatch,
    ask,
    asked,
    ids,
    new_query,
    remembers,
    selection,
    spent,
    whole,
)
from tests.faults.table import Table, load_row
from tests.patience import until
from tests.scoring.remote.servers import Server
from tests.system.load import COMPLETE, Answer, load, outcome
from tests.system.service import service

PAID_AGAIN = "scores are paid for again"


def test_killed(deployment: Deployment, table: Table) -> None:
    gateway, query = deployment.gateway.service, new_query()
    expected = ids(asked(gateway, query))
    deployment.redis.kill()
    for _ in range(3):
        response = ask(gateway, query)
        body = whole(response)
        assert (spent(body), ids(body)) == ((BUDGET, 0), expected)
    watch = Stopwatch()
    deployment.redis.start()
    recovery = watch.until(lambda: remembers(gateway, query))
    table.add("Redis killed", f"{outcome(response)}; {PAID_AGAIN}", recovery)


def test_killed_under_load(deployment: Deployment, table: Table) -> None:
    """Every answer is complete; known queries cost nothing before the kill, and again once Redis is back."""
    gateway, queries = deployment.gateway.service, [new_query() for _ in range(4)]
    for query in queries:
        asked(gateway, query)

    def is_free(answer: Answer) -> bool:
        return answer.is_complete() and answer.calls == 0

    with load(gateway.url, lambda number: selection(queries[number % len(queries)])) as seen:
        until(lambda: seen.is_normal(0.0, is_free))
        deployment.redis.kill()
        killed = time.monotonic()
        until(lambda: seen.goes_on(killed))
        deployment.redis.start()
        restarted = time.monotonic()
        until(lambda: seen.is_normal(restarted, is_free))
    assert set(seen.outcomes()) == {COMPLETE}
    table.under_load = load_row("Redis", "make test-faults", seen, killed, restarted, is_free)


def test_hangs(deployment: Deployment, table: Table) -> None:
    gateway, query = deployment.gateway.service, new_query()
    expected = ids(asked(gateway, query))
    deployment.redis.hang()
    try:
        for _ in range(3):
            response = ask(gateway, query)
            body = whole(response)
            assert (spent(body), ids(body)) == ((BUDGET, 0), expected)
    finally:
        deployment.redis.go_on()
    recovery = Stopwatch().until(lambda: remembers(gateway, query))
    saw = f"{outcome(response)}, later by `cache.timeout_seconds` a lookup until it is left alone; {PAID_AGAIN}"
    table.add("Redis hangs", saw, recovery)


def test_full(deployment: Deployment, table: Table) -> None:
    gateway, known, new = deployment.gateway.service, new_query(), new_query()
    expected = ids(asked(gateway, known))
    with deployment.redis.admin() as admin:
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", 1)
        try:
            for _ in range(2):
                response = ask(gateway, new)
                assert spent(whole(response)) == (BUDGET, 0)
            body = whole(ask(gateway, known))
            assert (spent(body), ids(body)) == ((0, BUDGET), expected)
        finally:
            admin.config_set("maxmemory", 0)
    recovery = Stopwatch().until(lambda: remembers(gateway, new))
    table.add("Redis full", f"{outcome(response)}; what is new is paid for again, what is known is not", recovery)


def test_a_cluster_fails_over(tmp_path: Path, indexes: Role, rogue: Server, table: Table) -> None:
    """One of three nodes is killed, and its replica takes over."""
    queries = [new_query() for _ in range(12)]
    with ExitStack() as stack:
        primary, *others = stack.enter_context(running_cluster(tmp_path / "cluster"))
        replica = stack.enter_context(running_replica(tmp_path / "replica", primary))
        (tmp_path / "boundarymorph.toml").write_text(
            f'[cache]\nurl = "{cluster_url([primary, *others])}"\ntimeout_seconds = 2'
        )
        options = ("--retriever-url", indexes.service.url, "--scorer-url", rogue.endpoint().base)
        gateway = stack.enter_context(service(tmp_path / "data", *options))
        expected = [ids(asked(gateway, query)) for query in queries]
        with replica.admin() as copy, primary.admin() as original:
            assert original.keys()
            until(lambda: sorted(copy.keys()) == sorted(original.keys()))
        watch = Stopwatch()
        primary.kill()
        for query, chosen in zip(queries, expected, strict=True):
            response = ask(gateway, query)
            assert ids(whole(response)) == chosen
        recovery = watch.until(lambda: all(remembers(gateway, query) for query in queries))
        assert "Traceback" not in gateway.log
    table.add("a Redis Cluster's primary killed", f"{outcome(response)}; of its queries, {PAID_AGAIN}", recovery)
