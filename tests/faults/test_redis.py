"""Test a Redis that ends, hangs, is full or fails over: requests only cost more calls."""

import time

import pytest

from tests.faults.conftest import Deployment
from tests.faults.scenario import (
    BUDGET,
    Stopwatch,
    ask,
    ask_and_cache,
    calls_and_hits,
    check_answer,
    ids,
    is_cached,
    new_query,
    selection,
)
from tests.faults.table import Table, load_row
from tests.patience import until
from tests.system.load import COMPLETE, Answer, load, outcome


@pytest.mark.parametrize("fault", ["killed", "hangs"])
def test_redis_killed_or_hanging_leaves_answers_unchanged(deployment: Deployment, table: Table, fault: str) -> None:
    gateway, query = deployment.gateway.service, new_query()
    expected = ids(ask_and_cache(gateway, query))
    deployment.redis.kill() if fault == "killed" else deployment.redis.hang()
    try:
        for _ in range(3):
            response = ask(gateway, query)
            body = check_answer(response)
            assert (calls_and_hits(body), ids(body)) == ((BUDGET, 0), expected)
    finally:
        watch = Stopwatch()
        deployment.redis.repair()
    recovery = watch.until(lambda: is_cached(gateway, query))
    table.add(f"Redis {fault}", f"{outcome(response)}; scores are computed again", recovery)


def test_redis_killed_under_load_fails_no_request(deployment: Deployment, table: Table) -> None:
    """Repeated queries cost nothing before the kill, and again once Redis is back."""
    gateway, queries = deployment.gateway.service, [new_query() for _ in range(4)]
    for query in queries:
        ask_and_cache(gateway, query)

    def is_free(answer: Answer) -> bool:
        return answer.is_complete() and answer.calls == 0

    with load(gateway.url, lambda number: selection(queries[number % len(queries)])) as seen:
        until(lambda: seen.is_normal(0.0, is_free))
        deployment.redis.kill()
        killed = time.monotonic()
        until(lambda: seen.has_answers_since(killed))
        deployment.redis.start()
        restarted = time.monotonic()
        until(lambda: seen.is_normal(restarted, is_free))
    assert set(seen.outcomes()) == {COMPLETE}
    table.under_load = load_row(seen, killed, restarted, is_free)


def test_redis_full_still_serves_cached_scores(deployment: Deployment, table: Table) -> None:
    gateway, known, new = deployment.gateway.service, new_query(), new_query()
    expected = ids(ask_and_cache(gateway, known))
    with deployment.redis.admin() as admin:
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", 1)
        try:
            for _ in range(2):
                response = ask(gateway, new)
                assert calls_and_hits(check_answer(response)) == (BUDGET, 0)
            body = check_answer(ask(gateway, known))
            assert (calls_and_hits(body), ids(body)) == ((0, BUDGET), expected)
        finally:
            admin.config_set("maxmemory", 0)
    recovery = Stopwatch().until(lambda: is_cached(gateway, new))
    table.add("Redis full", f"{outcome(response)}; scores are computed again", recovery)
