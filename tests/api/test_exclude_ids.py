"""Selections without what was seen before."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.api.dependencies import Parts
from boundarymorph.errors import EncoderUnavailable
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.selector.selector import Selector
from boundarymorph.settings import Limits, Settings
from tests.api.service import answer, fake_service, filled, problem, serving
from tests.retrieval.fakes import SeededEncoder
from tests.scoring.fakes import score_of

QUERY = "what is new"
POOL = [f"text {number}" for number in range(30)]
SCORES = {str(number): score_of(QUERY, text) for number, text in enumerate(POOL)}


@pytest.fixture(params=["pool", "index"])
def source(request: pytest.FixtureRequest) -> dict[str, Any]:
    """30 documents of a pool, or 40 of an index."""
    return {"pool": POOL, "ranked": True} if request.param == "pool" else {"index": "texts"}


def ids(found: dict[str, Any]) -> list[str]:
    return [document["id"] for document in found["documents"]]


@pytest.mark.parametrize("budget", [0, 6])
@pytest.mark.parametrize("more", [{"k": 5}, {"k": 100}, {"max_tokens": 20}, {"k": 8, "distinct": True}])
async def test_turns_share_nothing(
    client: httpx.AsyncClient, source: dict[str, Any], budget: int, more: dict[str, Any]
) -> None:
    """An agent's turns: each leaves out what those before it returned, until nothing is left."""
    asked = {"query": QUERY, **source, "budget": budget, **more}
    seen: list[str] = []
    for _ in range(12):
        found = answer(await client.post("/select", json=asked | {"exclude_ids": seen}))
        assert not set(ids(found)) & set(seen) and not any("deleted" in warning for warning in found["warnings"])
        seen += ids(found)
        size = found["pool_size"]
        if len(seen) == size:
            break
    assert len(seen) == len(set(seen)) == size
    last = answer(await client.post("/select", json=asked | {"exclude_ids": [*seen, "unknown"]}))
    assert ids(last) == [] and last["usage"]["cross_encoder_calls"] == 0


async def test_no_call_for_them_and_the_best_of_the_others(client: httpx.AsyncClient) -> None:
    best = sorted(SCORES, key=lambda id: -SCORES[id])
    asked = {"query": QUERY, "pool": POOL, "budget": 40, "k": 5, "exclude_ids": best[:10], "explain": True}
    found = answer(await client.post("/select", json=asked))
    called = {call["id"] for made in found["rounds"] for call in made["calls"]}
    assert ids(found) == best[10:15] and not called & set(best[:10])
    assert found["usage"]["cross_encoder_calls"] == 20
    numbers = answer(await client.post("/select", json=asked | {"exclude_ids": [int(id) for id in best[:10]]}))
    assert ids(numbers) == ids(found), "an integer is the same id"


async def test_their_known_scores_replace_no_call(client: httpx.AsyncClient) -> None:
    pool = [{"text": text} for text in POOL]
    known = [
        {**document, "cross_encoder_score": SCORES[str(n)]} if n < 10 else document for n, document in enumerate(pool)
    ]
    seen = [str(number) for number in range(10)]
    asked = {"query": QUERY, "pool": known, "budget": 6, "k": 4, "exclude_ids": seen}
    found = answer(await client.post("/select", json=asked))
    assert found["usage"]["cross_encoder_calls"] == 6 and not set(ids(found)) & set(seen)


async def test_a_small_depth_is_filled(client: httpx.AsyncClient) -> None:
    asked = {"query": QUERY, "index": "texts", "depth": 5, "k": 5, "budget": 0}
    first = answer(await client.post("/select", json=asked))
    second = answer(await client.post("/select", json=asked | {"exclude_ids": ids(first)}))
    assert len(ids(second)) == 5 and second["pool_size"] == 10


async def test_how_many(tmp_path: Path) -> None:
    async with filled(Settings(data_directory=tmp_path, depth=4, limits=Limits(pool=6))) as client:
        asked = {"query": QUERY, "index": "texts", "k": 2, "budget": 0}
        found = answer(await client.post("/select", json=asked | {"exclude_ids": [f"x{n}" for n in range(6)]}))
        assert found["pool_size"] == 6, "no more candidates than the limit"
        over = await client.post("/select", json=asked | {"exclude_ids": [f"x{n}" for n in range(7)]})
        assert "exclude_ids" in problem(over, 422, "limit-exceeded")


@pytest.mark.parametrize("more", [{"k": 5}, {"k": 100}, {"max_tokens": 20}, {"k": 8, "distinct": True}])
async def test_where_only_the_order_is_known(tmp_path: Path, more: dict[str, Any]) -> None:
    class Away(SeededEncoder):
        async def encode_documents(self, texts: Sequence[str]) -> Embeddings:
            raise EncoderUnavailable("its server is gone")

    def build(settings: Settings, *_: object) -> Parts:
        whole, encoder = fake_service(settings), Away()
        retriever = IndexRetriever(whole.catalog, encoder)
        return replace(whole, encoder=encoder, retriever=retriever, selector=Selector(retriever, whole.scorer))

    async with serving(Settings(data_directory=tmp_path), build) as client:
        seen = [str(number) for number in range(3)]
        asked = {"query": QUERY, "pool": POOL, "ranked": True, "vectors": "encoder", "exclude_ids": seen, **more}
        found = answer(await client.post("/select", json=asked))
    assert found["status"] == "retrieval_only"
    count = len(ids(found))
    assert count > 0 and ids(found) == [str(number) for number in range(3, 3 + count)]
