"""Known scores are not paid for again: in one process, through a real Redis, and without one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.caching.servers import RedisServer
from tests.patience import PATIENCE
from tests.system.service import Service, service

TOPICS = ("violins have strings", "trams have wheels", "bread has a crust", "rivers have banks")
POOL: list[dict[str, Any]] = [
    {"id": f"d{number}", "text": f"{TOPICS[number % 4]}, says page {number}", "embedding": [1.0, number / 60]}
    for number in range(60)
]
SELECT = {"query": "string instruments", "query_embedding": [1.0, 0.2], "pool": POOL, "k": 12, "rounds": 4}


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    yield server
    server.kill()


def select(running: Service, budget: int, **options: Any) -> dict[str, Any]:
    return running.select(**SELECT | {"budget": budget} | options)


def spent(body: dict[str, Any]) -> tuple[int, int]:
    """Calls, and scores that were known."""
    return body["usage"]["cross_encoder_calls"], body["usage"]["reused_scores"]


def ids(body: dict[str, Any]) -> list[str]:
    return [document["id"] for document in body["documents"]]


def test_in_one_process(tmp_path: Path) -> None:
    with service(tmp_path / "data") as running:
        first = select(running, 20)
        assert spent(first) == (20, 0)
        again = select(running, 20)
        assert spent(again) == (0, 20)
        assert ids(again) == ids(first)
        assert spent(select(running, 30)) == (10, 20)
        fresh = select(running, 20, reuse=False)
        assert (*spent(fresh), fresh["usage"]["cached_scores"]) == (0, 0, 20)
        assert ids(fresh) == ids(first)
        assert spent(select(running, 20, query="public transport")) == (20, 0)
        renamed = [document | {"id": f"other-{document['id']}"} for document in POOL]
        assert spent(select(running, 20, pool=renamed)) == (0, 30)
        changed = [document | {"text": document["text"] + "!"} for document in POOL]
        assert spent(select(running, 20, pool=changed)) == (20, 0)
        assert running.metric('boundarymorph_cache_lookups_total{cache="scores",outcome="hit"}') >= 20


def test_between_processes(tmp_path: Path, redis: RedisServer) -> None:
    (tmp_path / "boundarymorph.toml").write_text(f'[cache]\nurl = "{redis.url}"\ntimeout_seconds = {PATIENCE}')
    with service(tmp_path / "one") as one, service(tmp_path / "two") as two:
        first = select(one, 20)
        assert spent(first) == (20, 0)
        elsewhere = select(two, 25)
        assert spent(elsewhere) == (5, 20)
        redis.kill()
        alone = select(two, 20)
        assert spent(alone) == (20, 0)
        assert ids(alone) == ids(first)
        assert alone["status"] == "complete"
        assert "Traceback" not in one.log + two.log


def test_a_redis_that_was_never_there(tmp_path: Path) -> None:
    (tmp_path / "boundarymorph.toml").write_text('[cache]\nurl = "redis://127.0.0.1:1"')
    with service(tmp_path / "data") as running:
        assert spent(select(running, 20)) == spent(select(running, 20)) == (20, 0)
