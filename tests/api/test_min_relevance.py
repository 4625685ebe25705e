"""POST /select with min_relevance."""

import httpx
import numpy as np
import pytest

from tests.api.service import answer, texts
from tests.scoring.fakes import score_of

QUERY, COUNT = "thresholds", 120
POOL = texts(COUNT)
SCORES = {document["id"]: score_of(QUERY, document["text"]) for document in POOL}
LEAST = float(np.quantile(list(SCORES.values()), 0.8))


async def test_with_all_scores_known_exactly_the_relevant_ones_are_returned(
    client: httpx.AsyncClient,
) -> None:
    request = {"query": QUERY, "pool": POOL, "budget": COUNT, "min_relevance": LEAST}
    body = answer(await client.post("/select", json={**request, "k": COUNT}))
    assert body["min_relevance"] == LEAST
    assert {document["id"] for document in body["documents"]} == {id for id, score in SCORES.items() if score >= LEAST}
    few = answer(await client.post("/select", json={**request, "k": 5}))["documents"]
    assert [document["id"] for document in few] == sorted(SCORES, key=lambda id: -SCORES[id])[:5]


@pytest.mark.parametrize("method", ["trend", "boundarymorph"])
async def test_calls_go_to_where_it_is_in_doubt(client: httpx.AsyncClient, method: str) -> None:
    request = {"query": QUERY, "pool": POOL, "budget": 30, "k": 50, "reuse": False, "method": method}
    body = answer(await client.post("/select", json={**request, "min_relevance": LEAST}))
    assert body["usage"]["cross_encoder_calls"] + body["usage"]["cached_scores"] == 30
    documents = body["documents"]
    assert len(documents) < 50
    assert all(found["relevance"] >= LEAST for found in documents if found["source"] == "cross_encoder")
    departed = [warning for warning in body["warnings"] if "min_relevance" in warning]
    assert len(departed) == (method == "boundarymorph")
    plain = answer(await client.post("/select", json=request))
    assert plain["min_relevance"] is None and len(plain["documents"]) == 50
