"""Known scores are not paid for again, and how they are counted."""

from pathlib import Path
from typing import Any

from tests.system.service import Service, service

TOPICS = ("violins have strings", "trams have wheels", "bread has a crust", "rivers have banks")
POOL: list[dict[str, Any]] = [
    {"id": f"d{number}", "text": f"{TOPICS[number % 4]}, says page {number}", "embedding": [1.0, number / 60]}
    for number in range(60)
]
SELECT = {"query": "string instruments", "query_embedding": [1.0, 0.2], "pool": POOL, "k": 12, "rounds": 4}


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
