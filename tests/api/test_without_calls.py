"""`"budget": 0`: whose order the answer has."""

from typing import Any

import httpx
import pytest

from tests.api.service import answer

TEXTS = [f"tram line {number} to the harbour" for number in range(30)]
TEXTS[7:10] = ["by the sea", "a tram to the hills", "a hotel by the sea"]
POOL = [{"id": str(place), "text": text, "score": 80.0 - place} for place, text in enumerate(TEXTS)]
REQUEST: dict[str, Any] = {"query": "hotel by the sea", "pool": POOL, "budget": 0, "k": 6}


@pytest.mark.strangers
async def test_words_move_documents_up_and_the_paper_s_method_keeps_the_order(client: httpx.AsyncClient) -> None:
    ranks = {}
    for method in ("trend", "boundarymorph"):
        body = answer(await client.post("/select", json=REQUEST | {"method": method}))
        assert (body["status"], body["usage"]["cross_encoder_calls"]) == ("complete", 0)
        ranks[method] = [document["retrieval_rank"] for document in body["documents"]]
    assert ranks["boundarymorph"] == [1, 2, 3, 4, 5, 6]
    assert 8 in ranks["trend"]
