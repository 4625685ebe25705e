"""Test that no tenant can find out whether another tenant had a document scored."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.caching.scores import MemoryScoreCache
from boundarymorph.settings import Settings
from tests.fakes.service import answer, faked, serving, texts

MADE = {
    name: callers.make_key(name, [Scope.SELECT], tenant=tenant)
    for name, tenant in (("ada", "acme"), ("alan", "acme"), ("grace", "other"), ("nobody", ""), ("anybody", ""))
}
SELECT = {"query": "which company do we buy?", "pool": texts(5), "k": 5, "budget": 5}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(data_directory=tmp_path, keys=tuple(str(key) for _, key in MADE.values()))
    async with serving(settings, faked(cache=MemoryScoreCache())) as client:
        yield client


async def select(client: httpx.AsyncClient, who: str, **options: Any) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {MADE[who][0]}"}
    return answer(await client.post("/select", json=SELECT | options, headers=headers))


class TestTenants:
    SHARED: ClassVar = {("ada", "alan"), ("nobody", "anybody")}

    @pytest.mark.parametrize("guesser", MADE)
    @pytest.mark.parametrize("first", ["ada", "nobody"])
    async def test_cached_scores_are_shared_only_within_a_tenant(
        self, client: httpx.AsyncClient, first: str, guesser: str
    ) -> None:
        paid = await select(client, first)
        assert paid["usage"]["cross_encoder_calls"] == 5
        guess = await select(client, guesser, budget=0)
        known = guesser == first or (first, guesser) in self.SHARED
        assert guess["usage"]["reused_scores"] == (5 if known else 0)
        assert [found["source"] for found in guess["documents"]] == ["cross_encoder" if known else "posterior"] * 5
        again = await select(client, guesser)
        assert again["usage"]["cross_encoder_calls"] == (0 if known else 5)
        rerank = {"query": SELECT["query"], "documents": [document["text"] for document in texts(5)]}
        for who in (first, guesser):
            headers = {"authorization": f"Bearer {MADE[who][0]}"}
            ranked = answer(await client.post("/rerank", json=rerank, headers=headers))["boundarymorph"]
            assert ranked["cross_encoder_calls"] == 0

    async def test_scores_in_flight_are_not_shared_between_tenants(self, client: httpx.AsyncClient) -> None:
        answers = await asyncio.gather(*(select(client, who, reuse=False) for who in ("ada", "grace", "nobody")))
        assert [found["usage"]["cross_encoder_calls"] for found in answers] == [5, 5, 5]
        assert [found["usage"]["cached_scores"] for found in answers] == [0, 0, 0]
